"""Postgres for tests: a server for the run, and a database for each test."""

import os
import shutil
import signal
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg
from celery import Celery

from pgbeat.broker.publishing.publisher import TransactionPublisher
from pgbeat.config import postgres_url
from pgbeat.database import connections, migrate
from pgbeat.testing import embedded


class TemporaryServer:
    """An embedded Postgres (extra `embedded`) in a temporary folder."""

    def __init__(self) -> None:
        # A short path, for the server's socket, whose name may be 107 bytes long. In memory, if
        # there is room: a database for each test is a thousand files a second.
        self._folder = Path(tempfile.mkdtemp(prefix="pgb-", dir=_in_memory()))
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
        os.kill(self._server.pid, sign)
        self._running.close()

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
        self._idle: list[str] = []
        with self._admin() as admin:
            admin.execute(f'CREATE DATABASE "{self._template}"')
        url = postgres_url(in_database(server, self._template))
        migrate.upgrade(url)
        with connections.engine(url, "tests").begin() as connection:
            TransactionPublisher(Celery(set_as_current=False)).prepare(connection)

    @contextmanager
    def lent(self) -> Iterator[str]:
        """Lends a database with pgbeat's schema and nothing else; yields its DSN."""
        name = f"pgbeat_{uuid.uuid4().hex[:12]}"
        with self._admin() as admin:
            if self._idle:
                idle = self._idle.pop()
                admin.execute(_TERMINATE, [idle])  # what has connected again since
                admin.execute(f'ALTER DATABASE "{idle}" RENAME TO "{name}"')
            else:
                admin.execute(f'CREATE DATABASE "{name}" TEMPLATE "{self._template}"')
            dsn = in_database(self._server, name)
            with psycopg.connect(dsn) as connection:
                made = connection.execute(_CATALOG).fetchall()
            yield dsn
            admin.execute(_TERMINATE, [name])
            with psycopg.connect(dsn, autocommit=True) as connection:
                is_as_made = connection.execute(_CATALOG).fetchall() == made
                if is_as_made:
                    connection.execute(_EMPTY)
            if is_as_made:
                self._idle.append(name)
            else:
                admin.execute(f'DROP DATABASE "{name}" WITH (FORCE)')

    def close(self) -> None:
        """Drops all databases."""
        with self._admin() as admin:
            for name in (*self._idle, self._template):
                admin.execute(f'DROP DATABASE "{name}" WITH (FORCE)')

    def _admin(self) -> "psycopg.Connection[tuple[object, ...]]":
        return psycopg.connect(self._server, autocommit=True)


def in_database(dsn: str, name: str) -> str:
    """Returns the DSN with another database's name."""
    url = postgres_url(dsn).set(drivername="postgresql", database=name)
    if not url.password:
        url = url._replace(password=None)
    return url.render_as_string(hide_password=False)


_TERMINATE = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %s"
#: Changes with every table, column, function, trigger, constraint and setting, and the version.
_CATALOG = """
SELECT part, md5(string_agg(version, ',' ORDER BY version)) FROM (
    SELECT 'class', xmin::text || ctid::text
      FROM pg_class WHERE relnamespace::regnamespace::text NOT LIKE 'pg_%'
    UNION ALL SELECT 'attribute', xmin::text || ctid::text
      FROM pg_attribute WHERE attrelid >= 16384
    UNION ALL SELECT 'proc', xmin::text || ctid::text FROM pg_proc WHERE oid >= 16384
    UNION ALL SELECT 'trigger', xmin::text || ctid::text FROM pg_trigger
    UNION ALL SELECT 'constraint', xmin::text || ctid::text FROM pg_constraint
    UNION ALL SELECT 'namespace', xmin::text || ctid::text
      FROM pg_namespace WHERE nspname NOT LIKE 'pg_%temp%'
    UNION ALL SELECT 'migrations', xmin::text || ctid::text FROM pgbeat.migrations
    UNION ALL SELECT 'setting', xmin::text || ctid::text FROM pg_db_role_setting
      WHERE setdatabase IN (0, (SELECT oid FROM pg_database WHERE datname = current_database()))
) versions (part, version)
GROUP BY part ORDER BY part
"""
_EMPTY = """
DO $$
DECLARE
    name      text;
    has_rows  boolean;
    used      text[] := '{}';
BEGIN
    FOR name IN SELECT c.oid::regclass FROM pg_class c
         WHERE relkind = 'r' AND oid >= 16384
               AND relname NOT IN ('migrations', 'partitions') LOOP
        EXECUTE format('SELECT EXISTS (SELECT FROM %s)', name) INTO has_rows;
        IF has_rows THEN
            used := used || name;
        END IF;
    END LOOP;
    IF cardinality(used) > 0 THEN
        EXECUTE 'TRUNCATE ' || array_to_string(used, ', ') || ' CASCADE';
    END IF;
    PERFORM setval(oid::regclass, 1, false) FROM pg_class WHERE relkind = 'S';
    INSERT INTO kombu_queue (name) VALUES ('celery');
END
$$
"""
