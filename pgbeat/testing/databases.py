"""Postgres for tests: a server for the run, and a database for each test."""

import os
import shutil
import signal
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
from celery import Celery

from pgbeat.broker.publishing.publisher import TransactionPublisher
from pgbeat.config import postgres_url
from pgbeat.database import connections, sql
from pgbeat.database.migrations import migrate
from pgbeat.testing import embedded

_Catalog = list[tuple[Any, ...]]


class TemporaryServer:
    """An embedded Postgres (extra `embedded`) in a temporary folder, made in another if given."""

    def __init__(self, within: Path | None = None) -> None:
        # A short path, for the server's socket, whose name may be 107 bytes long. In memory, if
        # there is room: a database for each test is a thousand files a second.
        self._folder = Path(tempfile.mkdtemp(prefix="pgb-", dir=within or _in_memory()))
        self._folder.chmod(0o755)
        self._running = ExitStack()
        self.start()
        self.dsn = self._server.dsn()

    def start(self) -> None:
        """Starts the server on its folder."""
        # Tests crash processes, not the machine.
        settings = {"max_connections": "200", "fsync": "off"}
        server = embedded.server(self._folder / "server", settings)
        self._server = self._running.enter_context(server)

    def stop(self, sign: signal.Signals = signal.SIGINT) -> None:
        """Stops the server: SIGINT is Postgres's fast shutdown, SIGQUIT its immediate one."""
        os.kill(self.pid, sign)
        self._running.close()

    @property
    def pid(self) -> int:
        """The id of the server's first process."""
        return self._server.pid

    @property
    def programs(self) -> Path:
        """The folder of its programs, `psql` and `pg_dump` among them."""
        return self._server.programs

    @property
    def log(self) -> Path:
        """What the server says since it was started."""
        return self._folder / "server" / "postgres.log"

    def remove(self) -> None:
        """Stops the server and removes its folder."""
        self._running.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def _in_memory() -> str | None:
    """Returns a folder in memory, if there is one with room for a server's data."""
    folder = "/dev/shm"  # noqa: S108
    has_room = os.access(folder, os.W_OK) and shutil.disk_usage(folder).free > 4 << 30
    return folder if has_room else None


class Databases:
    """Lends databases with pgbeat's schema and the broker's tables.

    The DSN of the server is a superuser's, or that of a role that may make databases and end their
    sessions. If a test changed only rows of a database, it is emptied and lent again under another
    name: making one takes longer than most tests.
    """

    def __init__(self, server: str) -> None:
        self._server = server
        self._template = f"pgbeat_template_{uuid.uuid4().hex[:12]}"
        self._idle: list[tuple[str, _Catalog]] = []
        self._admin = psycopg.connect(server, autocommit=True)
        self._admin.execute(f'CREATE DATABASE "{self._template}"')
        url = postgres_url(in_database(server, self._template))
        migrate.upgrade(url)
        with connections.engine(url, "tests").begin() as connection:
            TransactionPublisher(Celery(set_as_current=False)).prepare(connection)
            self._catalog = _catalog(connections.driver(connection))  # its copies have the same

    @contextmanager
    def lent(self) -> Iterator[str]:
        """Lends a database with pgbeat's schema and nothing else; yields its DSN."""
        name = f"pgbeat_{uuid.uuid4().hex[:12]}"
        dsn = in_database(self._server, name)
        catalog = self._make(name)
        yield dsn
        self._end_sessions(name)
        with psycopg.connect(dsn, autocommit=True) as connection:
            is_as_made = _catalog(connection) == catalog
            if is_as_made:
                connection.execute(_EMPTY)
                if connection.execute("SHOW pgbeat.has_truncated").fetchone() == ("true",):
                    catalog = _catalog(connection)
        if is_as_made:
            self._idle.append((name, catalog))
        else:
            self._admin.execute(f'DROP DATABASE "{name}" WITH (FORCE)')

    def close(self) -> None:
        """Drops all databases."""
        for name in (*(name for name, _ in self._idle), self._template):
            self._admin.execute(f'DROP DATABASE "{name}" WITH (FORCE)')
        self._admin.close()

    def _end_sessions(self, name: str) -> None:
        """Ends all sessions in a database, and waits until the server has let go of them.

        Postgres itself looks ten times a second only, and most sessions are just being closed.
        """
        deadline = time.monotonic() + 5
        while self._admin.execute(_TERMINATE, [name]).fetchone() and time.monotonic() < deadline:
            time.sleep(0.001)

    def _make(self, name: str) -> _Catalog:
        """Renames an idle database, or creates one; returns its catalog."""
        if self._idle:
            idle, catalog = self._idle.pop()
            self._end_sessions(idle)  # what has connected again since
            self._admin.execute(f'ALTER DATABASE "{idle}" RENAME TO "{name}"')
            return catalog
        self._admin.execute(f'CREATE DATABASE "{name}" TEMPLATE "{self._template}"')
        return self._catalog


def _catalog(connection: psycopg.Connection[Any]) -> _Catalog:
    """Returns a description of the database that changes with anything but rows."""
    return connection.execute(_CATALOG).fetchall()


def in_database(dsn: str, name: str) -> str:
    """Returns the DSN with another database's name."""
    url = postgres_url(dsn).set(drivername="postgresql", database=name)
    if not url.password:
        url = url._replace(password=None)
    return url.render_as_string(hide_password=False)


_TERMINATE = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
_CATALOG = sql.load("databases.sql", "catalog")
_EMPTY = sql.load("databases.sql", "empty")
