"""Starts real Celery processes, and waits for what they do."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import psutil
import psycopg

from pgbeat.access.roles import Profile
from pgbeat.database.watched import is_alive
from tests.support import roles
from tests.support.databases import Role, executed

T = TypeVar("T")
ROOT = Path(__file__).parents[2]
#: The commands, to which arguments are added.
PGBEAT = [sys.executable, "-c", "from pgbeat.cli import main; main()"]
CELERY = [sys.executable, "-m", "celery"]


def free_port() -> int:
    """Returns a port on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until(condition: Callable[[], T | None], seconds: float = 60.0, what: str = "") -> T:
    """Asks again and again until the condition is truthy; its value. Fails after `seconds`.

    It asks less often with time: what is awaited needs the processor.
    """
    began = time.monotonic()
    while True:
        value = condition()
        if value:
            return value
        waited = time.monotonic() - began
        if waited > seconds:
            raise AssertionError(f"not within {seconds:g} s: {what or condition}; last: {value!r}")
        time.sleep(min(0.01 + waited / 20, 0.05))


def shell(
    *command: str,
    cwd: Path = ROOT,
    base: Mapping[str, str] | None = None,
    stdout: int = subprocess.PIPE,
    **env: str,
) -> "subprocess.CompletedProcess[str]":
    """Runs a command to its end; without the user's settings, unless an environment is given."""
    if base is None:
        base = {k: v for k, v in os.environ.items() if not k.startswith(("PGBEAT_", "CELERY_"))}
    return subprocess.run(
        command,
        cwd=cwd,
        env={**base, **env},
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        timeout=120,
    )


class Process(subprocess.Popen[bytes]):
    """A process whose output goes to a file, killed with its children."""

    def __init__(
        self, command: list[str], log: Path, env: dict[str, str], cwd: Path = ROOT
    ) -> None:
        self.log, self.command = log, " ".join(command)
        with log.open("wb") as output:
            super().__init__(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=env,
                cwd=cwd,
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        """Returns all that it has printed so far."""
        return self.log.read_text(errors="replace")

    def says(self, text: str, seconds: float = 30.0) -> None:
        """Waits until it has printed the text."""

        def printed() -> bool:
            if text in self.output:
                return True
            if self.poll() is not None and text not in self.output:
                raise AssertionError(f"ended ({self.returncode}) without {text!r}:\n{self.output}")
            return False

        try:
            until(printed, seconds, text)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.output}") from None

    def signal_group(self, sign: signal.Signals) -> None:
        """Sends a signal to it and to all its children."""
        # Its id is free once it was waited for and has no children left. On a busy machine that is
        # soon another process's: a Postgres backend's, whose server then restarts.
        if self.poll() is None or not psutil.pid_exists(self.pid):
            with suppress(ProcessLookupError):
                os.killpg(self.pid, sign)

    def kill_group(self) -> None:
        """Kills it and all its children."""
        self.signal_group(signal.SIGKILL)
        self.wait()


class Processes:
    """Starts and stops the processes of one test."""

    def __init__(self, database: str, folder: Path) -> None:
        self.database, self.folder = database, folder
        self.env = {
            **{key: value for key, value in os.environ.items() if not key.startswith("PGBEAT_")},
            "PYTHONUNBUFFERED": "1",
            "TESTS_DATABASE": database,
        }
        self.started: list[Process] = []
        self._roles: dict[str, Role] = {}
        self._session: psycopg.Connection[Any] | None = None

    def run(self, *command: str, **env: str) -> Process:
        """Starts a command."""
        log = self.folder / f"process-{len(self.started)}.log"
        process = Process(list(command), log, {**self.env, **env})
        self.started.append(process)
        return process

    def celery(self, *arguments: str, app: str = "tests.support.apps.basic", **env: str) -> Process:
        """Starts `celery -A APP …`."""
        env = {**self._as_role(arguments[0]), **env}
        return self.run(sys.executable, "-m", "celery", "-A", app, *arguments, **env)

    def _as_role(self, command: str) -> dict[str, str]:
        """Returns the variables by which a beat or a worker connects as a role of its own."""
        if not roles.ARE_USED or command not in ("beat", "worker"):
            return {}
        profile: Profile = "beat" if command == "beat" else "worker"
        if profile not in self._roles:
            self._roles[profile] = roles.make(self.database, profile)
            roles.own_tables(self.database, self._roles[profile])
        return {
            name: value.replace(self.database, self._roles[profile].dsn)
            for name, value in self.env.items()
            if self.database in value
        }

    def beat(
        self,
        *arguments: str,
        scheduler: str = "pgbeat.Scheduler",
        app: str = "tests.support.apps.basic",
        **env: Any,
    ) -> Process:
        """Starts `celery beat` with our scheduler at INFO."""
        return self.celery("beat", "-S", scheduler, "-l", "INFO", *arguments, app=app, **env)

    def worker(self, *arguments: str, app: str = "tests.support.apps.basic", **env: str) -> Process:
        """Starts a stock `celery worker`, solo unless told otherwise."""
        pool = () if "-P" in arguments else ("-P", "solo")
        name = f"w{len(self.started)}@tests"
        return self.celery("worker", "-l", "INFO", "-n", name, *pool, *arguments, app=app, **env)

    def sql(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Runs a statement, autocommitted, in a session that serves the next one, too; its rows."""
        if self._session is None or not is_alive(self._session):
            self._close_session()
            self._session = psycopg.connect(self.database, autocommit=True, prepare_threshold=None)
        return executed(self._session, statement, *parameters)

    def _close_session(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    def stop_all(self) -> None:
        """Kills what still runs, and prints what each said last: pytest shows it on a failure."""
        for process in self.started:
            process.kill_group()
        for role in self._roles.values():
            roles.drop(self.database, role)
        self._close_session()
        for process in self.started:
            print(f"--- {process.command[-100:]}\n{process.output[-3000:]}")


class JournalWorkers(Processes):
    """Workers whose tasks write lines in a journal."""

    #: The module of their app.
    app: str

    def __init__(self, database: str, folder: Path) -> None:
        super().__init__(database, folder)
        self.env["TESTS_FOLDER"] = str(folder)

    def start(self, *arguments: str, **env: str) -> Process:
        """Starts a worker and waits until it consumes."""
        quiet = ("--without-mingle", "--without-gossip")
        worker = self.worker(*quiet, *arguments, app=self.app, **env)
        worker.says(" ready.", 60)
        return worker

    def journal(self) -> list[str]:
        """Returns what tasks wrote down."""
        file = self.folder / "journal"
        return file.read_text().splitlines() if file.exists() else []
