"""The place of the walk: a server, a pooler, beats and workers that are started again."""

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import psycopg
from psycopg.conninfo import conninfo_to_dict

from pgbeat.config import postgres_url
from pgbeat.database.migrations import migrate
from pgbeat.testing.databases import TemporaryServer
from tests.support.databases import rows_of
from tests.support.pgbouncer import Pooler
from tests.support.processes import Process, Processes, until

APP = "tests.acceptance.walk.app"
#: Members of the crew, and how each is started. `pooled` ones know the pooler only.
BEATS = ("beat0", "beat1", "beat2")
WORKERS = {
    "prefork": ("-P", "prefork", "-c", "3"),
    "threads": ("-P", "threads", "-c", "3"),
    "solo": ("-P", "solo"),
    "gevent": ("-P", "gevent", "-c", "6"),
    "pooled": ("-P", "prefork", "-c", "2"),
    "pooledthreads": ("-P", "threads", "-c", "2"),
}
POOLED = frozenset({"pooled", "pooledthreads"})
#: Seconds that a consumer behind the pooler may be silent.
LEASE = 6


class Site:
    """A server with one database, and the processes that use it.

    Each member of the crew connects as a role of its own name, so that a session in
    `pg_stat_activity` can be told from the others'; all that come through the pooler are `pooler`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server = TemporaryServer()
        with self._connect("postgres", "postgres") as admin:
            for role in (*BEATS, *WORKERS, "pooler", "walk"):
                admin.execute(f"CREATE ROLE {role} SUPERUSER LOGIN")
            admin.execute("CREATE DATABASE walk")
        self.dsn = self._dsn("walk")
        migrate.upgrade(postgres_url(self.dsn))
        self._pooler = Pooler(self._dsn("pooler"), folder, default_pool_size=6)
        self._pooler.await_up()
        self.crew: dict[str, Process] = {}
        self._processes = Processes(self.dsn, folder)
        self._starts: dict[str, int] = {}

    # -- the database

    def _dsn(self, role: str, database: str = "walk") -> str:
        parts = conninfo_to_dict(self.server.dsn)
        return f"postgresql://{role}@/{database}?host={parts['host']}"

    def _connect(self, role: str, database: str) -> "psycopg.Connection[Any]":
        return psycopg.connect(self._dsn(role, database), autocommit=True)

    def connect(self) -> "psycopg.Connection[Any]":
        """A session of the walk's own, in autocommit mode."""
        return self._connect("walk", "walk")

    def dump(self) -> None:
        """Writes the database into the folder, to look at after the walk."""
        command = [str(self.server.programs / "pg_dump"), "-f", f"{self.folder}/dump.sql", self.dsn]
        subprocess.run(command, check=False)

    def sql(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Runs a statement in a session of its own; returns its rows."""
        with self.connect() as connection:
            cursor = connection.execute(statement, parameters or None)
            return rows_of(cursor)

    def restart_server(self, sign: signal.Signals) -> None:
        """Stops Postgres by the signal, and starts it again."""
        self._keep_log()
        self.server.stop(sign)
        self.server.start()
        until(self._answers, 60, "Postgres is back")

    def deadlocks(self) -> list[str]:
        """What Postgres has said of each deadlock."""
        self._keep_log()
        text = "".join(
            each.read_text(errors="replace") for each in self.folder.glob("postgres-*.log")
        )
        return [said.partition("CONTEXT:")[0] for said in text.split("deadlock detected")[1:]]

    def _keep_log(self) -> None:
        """Copies the server's log, which begins anew with each start."""
        shutil.copy(self.server.log, self.folder / f"postgres-{self.server.pid}.log")

    def _answers(self) -> bool:
        with suppress(psycopg.OperationalError):
            return bool(self.sql("SELECT 1"))
        return False

    # -- the pooler

    def kill_pooler(self) -> None:
        """Kills the pooler, and starts another."""
        self._pooler.kill()

    def pooler(self, command: str) -> None:
        """Gives the pooler a command: PAUSE, RESUME."""
        self._pooler.command(command)

    # -- the crew

    def start(self, name: str) -> None:
        """Starts a member of the crew. Its Celery node name is new each time."""
        self._starts[name] = number = self._starts.get(name, 0) + 1
        direct = self._dsn(name)
        through = f"postgresql://{name}@127.0.0.1:{self._pooler.port}/walk"
        is_pooled = name in POOLED
        env = {
            "WALK_DATABASE": through if is_pooled else direct,
            "WALK_BROKER": f"pgbeat+{through if is_pooled else direct}",
            "WALK_OPTIONS": json.dumps({"lease": LEASE} if is_pooled else {}),
            "WALK_FOLDER": str(self.folder),
        }
        command: tuple[str, ...] = ("beat", "-S", "pgbeat.Scheduler", "--pidfile=")
        if name in WORKERS:
            node = f"{name}.{number}@walk"
            command = ("worker", "-n", node, "--without-mingle", *WORKERS[name])
        celery = (sys.executable, "-m", "celery", "-A", APP)
        self.crew[name] = self._processes.run(*celery, *command, "-l", "INFO", **env)

    def start_all(self) -> None:
        """Starts the whole crew."""
        for name in (*BEATS, *WORKERS):
            self.start(name)

    def node(self, name: str) -> str:
        """The Celery node name of a worker as it runs now."""
        return f"{name}.{self._starts[name]}@walk"

    def signal(self, name: str, sign: signal.Signals) -> None:
        """Sends a signal to a member of the crew and all its children."""
        self.crew[name].signal_group(sign)

    def kill(self, name: str, *, with_children: bool) -> None:
        """Ends a member by SIGKILL, its children too or not, and starts it again."""
        process = self.crew[name]
        children = [] if with_children else _children(process)
        if with_children:
            process.kill_group()
        else:
            process.kill()
        process.wait()
        self.start(name)
        psutil.wait_procs(children, timeout=0)

    def children(self, name: str) -> list[int]:
        """Process ids of a member's children."""
        return [child.pid for child in _children(self.crew[name])]

    def revive(self, busy: Collection[str] = ()) -> list[str]:
        """Starts members that have ended by themselves; returns who they were.

        Those that a fault has at the moment are `busy`: it starts them again.
        """
        ended = [
            name
            for name, process in self.crew.items()
            if process.poll() is not None and name not in busy
        ]
        nodes = [self.node(name) if name in WORKERS else name for name in ended]
        for name in ended:
            self.start(name)
        return nodes

    def close(self) -> None:
        """Ends everything."""
        for process in self._processes.started:
            process.signal_group(signal.SIGCONT)
            process.kill_group()
        self._pooler.close()
        self.server.remove()


@contextmanager
def opened(folder: Path) -> Iterator[Site]:
    """A site with its crew at work, until the block ends."""
    if shutil.which("pgbouncer") is None:
        raise RuntimeError("the walk needs pgbouncer")
    site = Site(folder)
    try:
        site.start_all()
        yield site
    finally:
        site.close()


def _children(process: Process) -> list[psutil.Process]:
    try:
        return list(psutil.Process(process.pid).children(recursive=True))
    except psutil.NoSuchProcess:
        return []


def now() -> float:
    """The time as the journal has it: seconds since the epoch."""
    return time.time()
