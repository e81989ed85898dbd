"""Fixtures: a Postgres for the run, a database for each test, real Celery processes."""

import os
import shutil
import signal
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from celery import Celery
from sqlalchemy.engine import URL

from pgbeat import db, embedded, migrate
from pgbeat.config import postgres_url
from pgbeat.publisher import TransactionPublisher
from pgbeat.scheduler import Scheduler
from tests.broker import Sessions, sessions
from tests.child import Child
from tests.kombus import Connect, connections
from tests.processes import Processes

TEMPLATE = "pgbeat_template"


class Embedded:
    """A Postgres server of the tests' own, in a folder that goes with it."""

    def __init__(self) -> None:
        # A short path: it holds the server's socket, whose name may be 107 bytes long. In memory,
        # where there is room: a database a test is a thousand files a second.
        self._folder = Path(tempfile.mkdtemp(prefix="pgb-", dir=_in_memory()))
        self._folder.chmod(0o755)
        self._running = ExitStack()
        self.start()
        self.dsn = self._server.dsn()

    def start(self) -> None:
        """Starts the server, with what its folder holds."""
        # Tests crash processes, not this machine.
        settings = {"max_connections": "200", "fsync": "off"}
        server = embedded.server(self._folder / "server", settings)
        self._server = self._running.enter_context(server)

    def stop(self, sign: signal.Signals = signal.SIGINT) -> None:
        """Stops it: SIGINT is Postgres's fast shutdown, SIGQUIT its immediate one."""
        os.kill(self._server.pid, sign)
        self._running.close()

    def remove(self) -> None:
        """Stops it for good."""
        self._running.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def _in_memory() -> str | None:
    """A folder in memory, if there is one with room for a server's data."""
    folder = "/dev/shm"  # noqa: S108
    has_room = os.access(folder, os.W_OK) and shutil.disk_usage(folder).free > 4 << 30
    return folder if has_room else None


@pytest.fixture(scope="session")
def server(worker_id: str) -> Iterator[str]:
    """DSN of a Postgres server: `PGBEAT_TEST_URL`, or an embedded one of this test process."""
    given = os.environ.get("PGBEAT_TEST_URL")
    if given:
        yield given
        return
    own = Embedded()
    yield own.dsn
    own.remove()


@pytest.fixture
def own_server() -> Iterator[Embedded]:
    """An embedded server for one test, which may do with it as it likes."""
    own = Embedded()
    yield own
    own.remove()


def in_database(dsn: str, name: str) -> str:
    """The DSN with another database's name."""
    url = _url(dsn).set(drivername="postgresql", database=name)
    return url.render_as_string(hide_password=False)


def _url(dsn: str) -> URL:
    url = postgres_url(dsn)
    return url if url.password else url._replace(password=None)


@pytest.fixture(scope="session")
def template(server: str, worker_id: str) -> Iterator[str]:
    """Name of a database with pgbeat's schema and the broker's tables, copied for each test."""
    name = f"{TEMPLATE}_{worker_id}_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(server, autocommit=True) as admin:
        admin.execute(f'CREATE DATABASE "{name}"')
        url = postgres_url(in_database(server, name))
        migrate.upgrade(url)
        engine = db.engine(url, "tests")
        with engine.begin() as connection:
            TransactionPublisher(Celery(set_as_current=False)).prepare(connection)
        yield name
        admin.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


class Databases:
    """Databases for tests. One whose test left it as it was made, but for rows, is emptied and
    used again under another name: making one takes longer than most tests."""

    def __init__(self, server: str, template: str) -> None:
        self._server, self._template = server, template
        self._idle: list[str] = []

    @contextmanager
    def lent(self) -> Iterator[str]:
        """DSN of a database with pgbeat's schema and nothing else."""
        name = f"pgbeat_{uuid.uuid4().hex[:12]}"
        with psycopg.connect(self._server, autocommit=True) as admin:
            if self._idle:
                admin.execute(f'ALTER DATABASE "{self._idle.pop()}" RENAME TO "{name}"')
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
        """Drops them all."""
        with psycopg.connect(self._server, autocommit=True) as admin:
            for name in self._idle:
                admin.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


_TERMINATE = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %s"
#: Changes with every table, column, function, trigger, constraint and setting, and the version.
_CATALOG = " UNION ALL ".join(
    f"(SELECT md5(string_agg(xmin::text || ctid::text, ',' ORDER BY ctid)) FROM {catalog} "
    f"WHERE {condition})"
    for catalog, condition in {
        "pg_class": "relnamespace::regnamespace::text NOT LIKE 'pg_%'",
        "pg_attribute": "attrelid >= 16384",
        "pg_proc": "oid >= 16384",
        "pg_trigger": "true",
        "pg_constraint": "true",
        "pg_namespace": "nspname NOT LIKE 'pg_%temp%'",
        "pgbeat.migrations": "true",
        "pg_db_role_setting": "setdatabase IN (0, (SELECT oid FROM pg_database "
        "WHERE datname = current_database()))",
    }.items()
)
_EMPTY = """
DO $$
DECLARE
    name      text;
    has_rows  boolean;
    used      text[] := '{}';
BEGIN
    FOR name IN SELECT c.oid::regclass FROM pg_class c
         WHERE relkind = 'r' AND oid >= 16384 AND relname <> 'migrations' LOOP
        EXECUTE format('SELECT EXISTS (SELECT FROM %s)', name) INTO has_rows;
        IF has_rows THEN
            used := used || name;
        END IF;
    END LOOP;
    IF cardinality(used) > 0 THEN
        EXECUTE 'TRUNCATE ' || array_to_string(used, ', ');
    END IF;
    PERFORM setval(oid::regclass, 1, false) FROM pg_class WHERE relkind = 'S';
    INSERT INTO kombu_queue (name) VALUES ('celery');
END
$$
"""


@pytest.fixture(scope="session")
def databases(server: str, template: str) -> Iterator[Databases]:
    """Lends databases."""
    databases = Databases(server, template)
    yield databases
    databases.close()


@pytest.fixture
def database(databases: Databases) -> Iterator[str]:
    """DSN of a database of this test's own, with pgbeat's schema and nothing else."""
    with databases.lent() as dsn:
        yield dsn


@pytest.fixture
def empty_database(server: str) -> Iterator[str]:
    """DSN of a database of this test's own, empty."""
    name = f"pgbeat_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server, autocommit=True) as admin:
        admin.execute(f'CREATE DATABASE "{name}" TEMPLATE template0')
        yield in_database(server, name)
        admin.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


@pytest.fixture
def sql(database: str) -> Iterator[Callable[..., list[tuple[Any, ...]]]]:
    """Runs a statement in the test's database, autocommitted; its rows."""
    with psycopg.connect(database, autocommit=True) as connection:

        def run(statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
            cursor = connection.execute(statement, parameters or None)
            return cursor.fetchall() if cursor.description else []

        yield run


@pytest.fixture
def app(database: str) -> Iterator[Celery]:
    """A Celery app whose broker is the test's database, with two tasks."""
    app = Celery("tests", broker=broker_url(database), set_as_current=False)
    app.conf.task_ignore_result = True
    app.conf.result_expires = None  # no cleanup among the schedules
    app.conf.broker_connection_retry_on_startup = True

    @app.task(name="tests.add", shared=False)
    def add(x: int = 1, y: int = 2) -> int:
        return x + y

    @app.task(name="tests.note", shared=False)
    def note(text: str = "") -> str:
        return text

    yield app
    app.close()


def broker_url(dsn: str) -> str:
    """The DSN as kombu's SQLAlchemy transport wants it."""
    return f"sqla+{sqlalchemy_url(dsn)}"


def sqlalchemy_url(dsn: str) -> str:
    """The DSN with SQLAlchemy's name of the driver."""
    return _url(dsn).render_as_string(hide_password=False)


@pytest.fixture
def beat(app: Celery) -> Iterator[Callable[..., Scheduler]]:
    """Makes schedulers in this process; `run_due` is their tick without the waiting."""
    made: list[Scheduler] = []

    def make(app: Celery = app, **kwargs: Any) -> Scheduler:
        scheduler = Scheduler(app=app, **kwargs)
        made.append(scheduler)
        return scheduler

    yield make
    for scheduler in made:
        scheduler.close()


@pytest.fixture
def processes(database: str, tmp_path: Path) -> Iterator[Processes]:
    """Starts Celery commands for `tests.app`, on the test's database; none survives the test."""
    running = Processes(database, tmp_path)
    yield running
    running.stop_all()


@pytest.fixture
def opened(database: str) -> Iterator[Sessions]:
    """Opens sessions of the broker's domain on the test's database."""
    with sessions(database) as found:
        yield found


@pytest.fixture
def connect(database: str) -> Iterator[Connect]:
    """Makes kombu's connections to the test's database, by pgbeat's transport."""
    with connections(database) as found:
        yield found


@pytest.fixture
def child() -> Iterator[Child]:
    """A second process that publishes and consumes."""
    with Child.lent() as child:
        yield child
