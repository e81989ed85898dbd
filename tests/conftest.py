"""Fixtures: a Postgres for the run, a database for each test, real Celery processes."""

import os
import shutil
import signal
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
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
from tests.processes import Processes

TEMPLATE = "pgbeat_template"


class Embedded:
    """A Postgres server of the tests' own, in a folder that goes with it."""

    def __init__(self) -> None:
        # A short path: it holds the server's socket, whose name may be 107 bytes long.
        self._folder = Path(tempfile.mkdtemp(prefix="pgb-"))
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


@pytest.fixture
def database(server: str, template: str) -> Iterator[str]:
    """DSN of a database of this test's own, with pgbeat's schema and nothing else."""
    yield from _database(server, f'TEMPLATE "{template}"')


@pytest.fixture
def empty_database(server: str) -> Iterator[str]:
    """DSN of a database of this test's own, empty."""
    yield from _database(server, "TEMPLATE template0")


def _database(server: str, template: str) -> Iterator[str]:
    name = f"pgbeat_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server, autocommit=True) as admin:
        admin.execute(f'CREATE DATABASE "{name}" {template}')
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
