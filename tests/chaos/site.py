"""The place of the chaos: a server, a pooler, beats and workers that are started again."""

import json
import os
import shutil
import signal
import struct
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
from tests.chaos.broken_builds import BUILDS, VARIABLE
from tests.support.databases import rows_of
from tests.support.failing_servers import SmallDisk, begin_standby, data_folder, promote
from tests.support.pgbouncer import Pooler
from tests.support.processes import Process, Processes, until
from tests.support.tcp_proxy import Proxy

APP = "tests.chaos.app"
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
#: Members behind a network that can fail, and those whose clocks can be set.
FAR = ("beat2", "prefork", "solo")
STEPPED = ("beat1", "threads", "pooled")
#: Seconds that a consumer behind the pooler may be silent.
LEASE = 6


class Site:
    """A server with one database, another one to succeed it, and the processes that use them.

    Each member of the crew connects as a role of its own name, so that a session in
    `pg_stat_activity` can be told from the others'; all that come through the pooler are `pooler`.
    """

    def __init__(self, folder: Path, build: str = "") -> None:
        self.folder, self._build = folder, build
        #: The disk of both servers, if it can be full.
        self.disk = _small_disk()
        within = self.disk.folder if self.disk else None
        #: The library by which clocks are set, if it can be compiled.
        self.clock = _compiled_clock(folder)
        #: The server that is the primary, and the one that is stopped.
        self.server, self._spare = TemporaryServer(within), TemporaryServer(within)
        self._data = {each: data_folder(each) for each in (self.server, self._spare)}
        self._sockets = [str(conninfo_to_dict(each.dsn)["host"]) for each in self._data]
        self._spare.stop()
        with self._connect("postgres", "postgres") as admin:
            for role in (*BEATS, *WORKERS, "pooler", "chaos"):
                admin.execute(f"CREATE ROLE {role} SUPERUSER LOGIN")
            admin.execute("CREATE DATABASE chaos")
        migrate.upgrade(postgres_url(self._dsn("chaos")))
        self._pooler = Pooler(self._dsn("pooler"), folder, default_pool_size=6)
        self._pooler.await_up()
        self._replication = Proxy(self.server.dsn)
        self.networks = {name: Proxy(self._dsn(name)) for name in FAR}
        self.crew: dict[str, Process] = {}
        self._processes = Processes(self.dsn, folder)
        self._starts: dict[str, int] = {}

    # -- the database

    @property
    def dsn(self) -> str:
        """The database as clients know it: on either server."""
        return self._anywhere("chaos")

    def _anywhere(self, role: str) -> str:
        return f"postgresql://{role}@/chaos?host={','.join(self._sockets)}"

    def _dsn(self, role: str, database: str = "chaos") -> str:
        parts = conninfo_to_dict(self.server.dsn)
        return f"postgresql://{role}@/{database}?host={parts['host']}"

    def _connect(self, role: str, database: str) -> "psycopg.Connection[Any]":
        return psycopg.connect(self._dsn(role, database), autocommit=True)

    def connect(self) -> "psycopg.Connection[Any]":
        """A session with the primary, in autocommit mode."""
        return self._connect("chaos", "chaos")

    def dump(self) -> None:
        """Writes the database into the folder."""
        program = self.server.programs / "pg_dump"
        options = ("--no-owner", "-f", self.folder / "dump.sql")
        subprocess.run([program, *options, self._dsn("chaos")], check=True)

    def sql(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Runs a statement in a session of its own; returns its rows."""
        with self.connect() as connection:
            cursor = connection.execute(statement, parameters or None)
            return rows_of(cursor)

    def restart_server(self, sign: signal.Signals) -> None:
        """Stops Postgres by the signal, and starts it again."""
        self.keep_log()
        self.server.stop(sign)
        self.server.start()
        until(self._answers, 60, "Postgres is back")

    def await_server(self) -> bool:
        """Waits until Postgres answers; starts it if it has ended. Returns whether it had not."""
        if psutil.Process(self.server.pid).status() != psutil.STATUS_ZOMBIE:
            until(self._answers, 60, "Postgres answers")
            return True
        self.restart_server(signal.SIGQUIT)
        return False

    def begin_standby(self) -> None:
        """Starts a synchronous standby."""
        route, data = self._replication.dsn, self._data[self._spare]
        begin_standby(self.server, route, self._spare, data)

    def promote(self) -> None:
        """Promotes the standby, and leads the pooler and the networks to it.

        The server before is left as it is.
        """
        self.server, self._spare = self._spare, self.server
        promote(self.server)
        self._pooler.lead_to(self._dsn("pooler"))
        self._replication.lead_to(self.server.dsn)
        for name, network in self.networks.items():
            network.lead_to(self._dsn(name))

    def stop_spare(self) -> None:
        """Ends the server that is not the primary."""
        self.keep_log()
        self._spare.stop(signal.SIGQUIT)

    def keep_log(self) -> None:
        """Copies the server's log, which begins anew with each start."""
        for server in (self.server, self._spare):
            shutil.copy(server.log, self.folder / f"postgres-{server.pid}.log")

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
        direct = self.networks[name].dsn if name in FAR else self._anywhere(name)
        through = f"postgresql://{name}@127.0.0.1:{self._pooler.port}/chaos"
        is_pooled = name in POOLED
        env = {
            "CHAOS_DATABASE": through if is_pooled else direct,
            "CHAOS_BROKER": f"pgbeat+{through if is_pooled else direct}",
            "CHAOS_OPTIONS": json.dumps({"lease": LEASE} if is_pooled else {}),
            "CHAOS_FOLDER": str(self.folder),
            "CHAOS_EPOCH": str(time.time() - time.monotonic()),
            VARIABLE: self._build,
            **self._clock(name),
        }
        command: tuple[str, ...] = ("beat", "-S", "pgbeat.Scheduler", "--pidfile=")
        if name in WORKERS:
            node = f"{name}.{number}@chaos"
            command = ("worker", "-n", node, "--without-mingle", *WORKERS[name])
        celery = (sys.executable, "-m", "celery", "-A", APP)
        self.crew[name] = self._processes.run(*celery, *command, "-l", "INFO", **env)

    def start_all(self) -> None:
        """Starts the whole crew."""
        for name in (*BEATS, *WORKERS):
            self.start(name)

    def node(self, name: str) -> str:
        """The Celery node name of a worker as it runs now."""
        return f"{name}.{self._starts[name]}@chaos"

    def _clock(self, name: str) -> dict[str, str]:
        """Returns what has a member's clock follow a file."""
        if name not in STEPPED or self.clock is None:
            return {}
        file = self.folder / f"{name}.clock"
        if not file.exists():
            self.set_clock(name, 0)
        return {"LD_PRELOAD": str(self.clock), "CHAOS_CLOCK": str(file)}

    def set_clock(self, name: str, seconds: int) -> None:
        """Sets a member's clock so much ahead of the true time, or behind it."""
        file = self.folder / f"{name}.clock"
        file.touch()
        with file.open("r+b", buffering=0) as opened:  # which is never empty: it is mapped
            opened.write(struct.pack("@l", seconds))

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
        for network in (self._replication, *self.networks.values()):
            network.close()
        for server in self._data:
            server.remove()
        if self.disk:
            self.disk.close()


@contextmanager
def opened(folder: Path, build: str = "") -> Iterator[Site]:
    """A site with its crew at work, until the block ends. `build` is a broken one."""
    if shutil.which("pgbouncer") is None:
        raise RuntimeError("chaos needs pgbouncer")
    site = Site(folder, build)
    try:
        site.start_all()
        if build:
            until(lambda: site.sql("SELECT to_regclass('kombu_message')") != [(None,)])
            BUILDS[build].patch()
            site.sql(BUILDS[build].sql)
        yield site
    finally:
        site.close()


def _small_disk() -> SmallDisk | None:
    if os.getuid() == 0 and sys.platform == "linux":
        with suppress(subprocess.CalledProcessError):
            return SmallDisk()
    return None


def _compiled_clock(folder: Path) -> Path | None:
    if shutil.which("cc") is None or sys.platform != "linux":
        return None
    source, library = Path(__file__).with_name("clock.c"), folder / "clock.so"
    subprocess.run(["cc", "-O1", "-fPIC", "-shared", "-o", library, source], check=True)
    return library


def _children(process: Process) -> list[psutil.Process]:
    try:
        return list(psutil.Process(process.pid).children(recursive=True))
    except psutil.NoSuchProcess:
        return []


def now() -> float:
    """The time as the journal has it: seconds since the epoch."""
    return time.time()
