"""Starts, checks and stops the processes of the demo."""

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

from pgbeat.errors import PgbeatError
from pgbeat.testing.embedded import child_command

#: Seconds that a process may take to end after TERM.
_PATIENCE = 10.0


class Children:
    """The processes of the demo, each with its log in the folder; stopped when the block ends."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder = folder
        self.environment = environment
        self.running: dict[str, subprocess.Popen[str]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Ends the processes, the price server last: by TERM, then KILL.

        An interruption kills the rest at once.
        """
        first = [process for name, process in self.running.items() if name != "prices"]
        try:
            for group in (first, [*self.running.values()]):
                for process in group:
                    process.terminate()
                deadline = time.monotonic() + _PATIENCE
                for process in group:
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(max(0.0, deadline - time.monotonic()))
        finally:
            for process in self.running.values():
                # A pool's processes are of the worker's group.
                if process.poll() != 0:
                    with suppress(ProcessLookupError, PermissionError):
                        os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def log(self, name: str) -> Path:
        """Returns the path of a process's log."""
        return self.folder / f"{name.replace(' ', '-')}.log"

    def start(self, name: str, module: str, *arguments: str) -> str:
        """Starts a Python module; returns the first line that the price server prints."""
        process = self._popen(name, module, *arguments, pipe=name == "prices")
        self.running[name] = process
        if process.stdout is None:
            return ""
        with process.stdout as output:
            line = output.readline().strip()
        if not line:
            raise self._broken(name)
        return line

    def run(self, name: str, module: str, *arguments: str) -> None:
        """Runs a Python module to its end. Raises `PgbeatError` if it fails."""
        process = self._popen(name, module, *arguments)
        try:
            if process.wait() != 0:
                raise self._broken(name)
        finally:
            process.kill()
            process.wait()

    def link(self) -> str:
        """Returns the console's URL, once its process has printed it."""
        if "web" not in self.running:
            return ""
        match = re.search(r"https?://\S+", self.log("web").read_text(errors="replace"))
        return match[0] if match else ""

    def check(self) -> list[str]:
        """Returns the processes that have ended. Raises `PgbeatError` if the demo fails."""
        ended = [name for name, process in self.running.items() if process.poll() is not None]
        if "worker" in ended or "prices" in ended or {"beat 1", "beat 2"} <= set(ended):
            raise self._broken(ended[0])
        return ended

    def _popen(
        self, name: str, module: str, *arguments: str, pipe: bool = False
    ) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", module, *arguments]
        with self.log(name).open("wb") as log:
            return subprocess.Popen(  # noqa: S603 - our own command
                child_command(command),
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if pipe else log,
                stderr=log,
                text=True,
                # A Ctrl-C in the terminal is for the demo, which ends its children in order.
                start_new_session=True,
            )

    def _broken(self, name: str) -> PgbeatError:
        log = self.log(name)
        last = "\n".join(log.read_text(errors="replace").strip().splitlines()[-5:])
        return PgbeatError(f"{name} has ended; the end of {log}:\n{last}")
