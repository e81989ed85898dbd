"""Subprocesses of the benchmark: each in its own group, with a time limit, none left behind."""

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import IO, Any, ClassVar, Protocol, Self

from beats.spec import VARIABLE, Spec

BENCHMARKS = Path(__file__).resolve().parent.parent


class Told(Protocol):
    """What a subprocess is told."""

    @property
    def folder(self) -> str:
        """Where it runs, and where its errors go."""

    def to_json(self) -> str:
        """The text for `VARIABLE`."""


class ProcessError(Exception):
    """A subprocess ended badly; the message has the end of what it said."""


class Processes:
    """Starts subprocesses; the end of the `with` block kills those that still run."""

    #: The module whose commands `child` runs.
    commands: ClassVar[str] = "beats.child"

    def __init__(self) -> None:
        self._running: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill_all()

    def child(self, spec: Told, command: str, *arguments: float) -> subprocess.Popen[str]:
        """Starts a command of the module `commands`."""
        argv = [sys.executable, "-m", self.commands, command, *map(str, arguments)]
        return self._start(spec, argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def beat(self, spec: Spec, scheduler: str) -> subprocess.Popen[str]:
        """Starts a real `celery beat`."""
        return self.celery(
            spec, "-A", "beats.app", "beat", "-S", scheduler, "-l", "WARNING", "--pidfile="
        )

    def celery(self, spec: Told, *arguments: str) -> subprocess.Popen[str]:
        """Starts a `celery` command."""
        argv = [sys.executable, "-m", "celery", *arguments]
        return self._start(spec, argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    def _start(self, spec: Told, argv: list[str], **pipes: Any) -> subprocess.Popen[str]:
        path = os.pathsep.join(filter(None, [str(BENCHMARKS), os.environ.get("PYTHONPATH")]))
        # The contender's database is the one to use, whatever PGBEAT_URL says.
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PGBEAT_")}
        environment |= {VARIABLE: spec.to_json(), "PYTHONPATH": path}
        with (Path(spec.folder) / "errors.log").open("w") as errors:
            process = subprocess.Popen(
                argv,
                cwd=spec.folder,
                env=environment,
                stderr=errors,
                text=True,
                start_new_session=True,
                **pipes,
            )
        self._running.append(process)
        return process

    def kill(self, process: subprocess.Popen[str]) -> None:
        """Kills a subprocess and its group, if it runs."""
        if process not in self._running:
            return
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        self._running.remove(process)

    def kill_all(self) -> None:
        """Kills all that run."""
        for process in list(self._running):
            self.kill(process)

    def run(
        self, spec: Told, command: str, *arguments: float, limit: float
    ) -> tuple[list[dict[str, Any]], bool]:
        """Runs a command of the module `commands` to its end, or for `limit` seconds.

        Returns what it said, and whether it ended in time. Raises `ProcessError` when it failed.
        """
        process = self.child(spec, command, *arguments)
        try:
            output, _ = process.communicate(timeout=limit)
            in_time = True
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            in_time = False
        finally:
            self.kill(process)
        if in_time and process.returncode:
            raise ProcessError(last_words(spec) or f"{command} ended with {process.returncode}")
        return [json.loads(line) for line in output.splitlines() if line.startswith("{")], in_time


def read_line(stream: IO[str], limit: float) -> str:
    """The next line, or an empty text when none came within `limit` seconds."""
    ready, _, _ = select.select([stream], [], [], limit)
    return stream.readline() if ready else ""


def last_words(spec: Told) -> str:
    """The error that the contender's latest process wrote to stderr last."""
    try:
        lines = (Path(spec.folder) / "errors.log").read_text().strip().splitlines()
    except OSError:
        return ""
    # An exception's own line; SQLAlchemy has the statement and a link below it.
    errors = [line for line in lines if re.match(r"[\w.]+: ", line)]
    return (errors or lines or [""])[-1][:300]


def wait_until(condition: Any, limit: float, pause: float = 0.005) -> bool:
    """Whether `condition()` came true within `limit` seconds."""
    deadline = time.monotonic() + limit
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
    return True
