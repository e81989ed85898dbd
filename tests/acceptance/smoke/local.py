"""Processes in place of containers, for pytest-celery's nodes."""

import os
import shutil
import signal
import sys
import tempfile
import uuid
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

import psutil
import psycopg
from psycopg import sql
from pytest_celery import CeleryTestContainer

from pgbeat.testing import embedded
from pgbeat.testing.pytest_celery import PostgresContainer
from tests.acceptance.smoke.worker import SmokeWorkerContainer
from tests.support.processes import Process, until


class LocalContainer(CeleryTestContainer):
    """Docker's part of a container, for processes of this machine."""

    def __init__(self) -> None:
        self._id = uuid.uuid4().hex

    @property
    def id(self) -> str:
        return self._id

    @property
    def name(self) -> str:
        return f"{type(self).__name__}-{self.id[:12]}"

    def reload(self) -> None:
        """Does nothing: each property looks its value up."""


class LocalServer:
    """A Postgres that tests start, stop and kill."""

    def __init__(self) -> None:
        # A short path: it holds the server's socket, whose name may be 107 bytes long.
        self._folder = Path(tempfile.mkdtemp(prefix="pgb-"))
        self._folder.chmod(0o755)
        self._running = ExitStack()
        self.start()

    def start(self) -> None:
        """Starts the server on its folder."""
        server = embedded.server(self._folder / "server", {"fsync": "off"})
        self._server = self._running.enter_context(server)
        self.process = psutil.Process(self._server.pid)

    @property
    def runs(self) -> bool:
        return bool(self.process.is_running() and self.process.status() != psutil.STATUS_ZOMBIE)

    def signal(self, sign: signal.Signals) -> None:
        """Sends SIGKILL to all processes, as for a killed container; other signals to the first."""
        processes = [self.process, *self.process.children(recursive=True)]
        for process in processes if sign is signal.SIGKILL else processes[:1]:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(sign)
        if sign is signal.SIGKILL:
            psutil.wait_procs(processes[1:])
            until(lambda: not self.runs, what="the server is gone")

    def stop(self) -> None:
        """Stops the server in order, if it runs."""
        self._running.close()

    def remove(self) -> None:
        """Stops the server and removes its folder."""
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def create_database(self, name: str) -> str:
        """Makes a database; returns its DSN."""
        self._server.create_database(name)
        return self._server.dsn(name)

    def drop_database(self, name: str) -> None:
        """Drops a database, even if it is in use."""
        with psycopg.connect(self._server.dsn(), autocommit=True) as admin:
            drop = sql.SQL("DROP DATABASE {} WITH (FORCE)")
            admin.execute(drop.format(sql.Identifier(name)))

    def log(self) -> str:
        """Returns its log since the last start."""
        return (self._server.folder / "postgres.log").read_text(errors="replace")


class LocalPostgres(LocalContainer, PostgresContainer):
    """A database on a server that no other test uses meanwhile."""

    def __init__(self, server: LocalServer) -> None:
        super().__init__()
        self._server = server
        self._database = f"smoke_{self.id[:12]}"

    def __enter__(self) -> Self:
        if not self._server.runs:  # another test has left it so
            self.restart()
        self._dsn = self._server.create_database(self._database)
        return self

    def __exit__(self, *error: object) -> None:
        if not self._server.runs:
            self.restart()
        self._server.drop_database(self._database)

    @property
    def url(self) -> str:
        return self._dsn

    @property
    def host_url(self) -> str:
        return self._dsn

    @property
    def hostname(self) -> str:
        return "localhost"

    @property
    def port(self) -> int:
        return 5432

    @property
    def vhost(self) -> str:
        return self._database

    @property
    def status(self) -> str:
        return "running" if self._server.runs else "exited"

    def ready(self) -> bool:
        self.client.close()
        return True

    def logs(self) -> str:
        return self._server.log()

    def kill(self, signal: str | int = "SIGKILL") -> None:
        self._server.signal(as_signal(signal))

    def restart(self, timeout: int = 10) -> None:
        self._server.stop()
        self._server.start()


class LocalWorker(LocalContainer, SmokeWorkerContainer):
    """A `celery worker` process in a folder that stands for its volume."""

    def __init__(
        self, folder: Path, command: list[str], env: dict[str, str], content: dict[str, bytes]
    ) -> None:
        super().__init__()
        self._folder = folder
        # Of a container, the hostname is the beginning of its id.
        self._command = [part.replace("%h", self.id[:12]) for part in command]
        kept = {key: value for key, value in os.environ.items() if not key.startswith("PGBEAT_")}
        self._env = {**kept, **env, "PYTHONPATH": str(folder)}
        self._lives: list[Process] = []
        for name, data in content.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._lives:
            process.kill_group()
        print(f"--- {self.name}\n{self.logs()[-6000:]}")

    def _start(self) -> None:
        log = self._folder / f"worker-{len(self._lives)}.log"
        command = embedded.child_command([sys.executable, "-m", *self._command])
        self._lives.append(Process(command, log, self._env))
        self.ready()

    @property
    def status(self) -> str:
        return "running" if self._lives[-1].poll() is None else "exited"

    def ready(self) -> bool:
        self._lives[-1].says(self.ready_prompt, 60)
        return True

    def logs(self) -> str:
        return "".join(process.output for process in self._lives)

    def kill(self, signal: str | int = "SIGKILL") -> None:
        if as_signal(signal) is as_signal("SIGKILL"):
            self._lives[-1].kill_group()
        else:
            self._lives[-1].send_signal(as_signal(signal))

    def restart(self, timeout: int = 10) -> None:
        process = self._lives[-1]
        process.terminate()
        until(lambda: process.poll() is not None, timeout, "the worker ends")
        process.kill_group()
        self._start()


def as_signal(given: str | int) -> signal.Signals:
    """Returns a signal by its name or number."""
    return signal.Signals[given] if isinstance(given, str) else signal.Signals(given)
