"""Fixtures: a Postgres for the run, a database for each test, real Celery processes."""

import gc
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery

from pgbeat.beat.scheduler import Scheduler
from pgbeat.broker.transport import broker
from pgbeat.jobs.rescuing import rescue
from pgbeat.schedules.calendars import exclusions
from pgbeat.schedules.calendars import model as calendars
from pgbeat.testing.databases import TemporaryServer
from tests.support import tiers
from tests.support.broker_sessions import Sessions, sessions
from tests.support.budget import Budget
from tests.support.child_process import Child
from tests.support.databases import Role, broker_url, copied, ordinary, statements
from tests.support.jobs import JobControl, job_controls, plain_app
from tests.support.kombu_connections import Connect, connections
from tests.support.processes import Processes
from tests.support.recorded_workers import TrackedWorkers
from tests.support.rows import Sql
from tests.support.simulated_workers import FakeWorkers
from tests.support.transport_workers import TransportWorkers
from tests.support.webhook_receiver import Receiver

if TYPE_CHECKING:
    from tests.support.web import Web

pytest_plugins = ["pgbeat.testing.fixtures"]

# A shell has what it runs in the background ignore Ctrl-C, and so would all that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the option that CI uses."""
    parser.addoption("--budget", type=float, metavar="SECONDS", help="seconds for the default tier")


def pytest_configure(config: pytest.Config) -> None:
    """Counts what the tests take, in the process that hears of all."""
    if config.option.budget is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Budget(config.option.budget))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests that start processes, before `-m` chooses some."""
    tiers.mark(items)


def pytest_collection_finish() -> None:
    """Spares the garbage collector thousands of tests, which stay: a tenth of Python's time.

    It looks less often, too: most of what a test makes stays until the test ends.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000)


@pytest.fixture(autouse=True)
def brokers_end() -> Iterator[None]:
    """Closes what `app.close()` leaves open: connections in Celery's pool, and so the broker's."""
    yield
    for left in list(broker._brokers.values()):
        if left.is_connected and left.lock.acquire(timeout=1):
            try:
                left._drop()
            finally:
                left.lock.release()


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """What runs tests that are coroutines."""
    return "asyncio"


@pytest.fixture(scope="session")
def server(pgbeat_server: str) -> str:
    """DSN of a Postgres server: `PGBEAT_TEST_URL`, or an embedded one of this test process."""
    return pgbeat_server


@pytest.fixture
def own_server() -> Iterator[TemporaryServer]:
    """An embedded server for one test, which may do with it as it likes."""
    own = TemporaryServer()
    yield own
    own.remove()


@pytest.fixture
def database(pgbeat_database: str) -> str:
    """DSN of a database of this test's own, with pgbeat's schema and nothing else."""
    return pgbeat_database


@pytest.fixture
def empty_database(server: str) -> Iterator[str]:
    """DSN of a database of this test's own, empty."""
    with copied(server, "template0") as dsn:
        yield dsn


@pytest.fixture
def sql(database: str) -> Iterator[Sql]:
    """Runs a statement in the test's database, autocommitted; its rows."""
    with statements(database) as run:
        yield run


@pytest.fixture
def ordinary_role(database: str, sql: Callable[..., Any]) -> Iterator[Role]:
    """A role without permissions."""
    with ordinary(database, sql) as role:
        yield role


@pytest.fixture
def app(database: str) -> Iterator[Celery]:
    """A Celery app whose broker is the test's database, with two tasks."""
    with plain_app(broker_url(database)) as app:
        yield app


@pytest.fixture
def web(app: Celery) -> Iterator["Web"]:
    """The web side of the app (`tests.support.web`)."""
    from tests.support.web import opened

    with opened(app) as found:
        yield found


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
    """Starts Celery commands for the basic app, on the test's database; none survives the test."""
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


@pytest.fixture
def transport_workers(database: str, tmp_path: Path) -> Iterator[TransportWorkers]:
    """Starts workers on pgbeat's transport, which write a journal."""
    transport_workers = TransportWorkers(database, tmp_path)
    yield transport_workers
    transport_workers.close()


@pytest.fixture
def tracked_workers(database: str, tmp_path: Path) -> Iterator[TrackedWorkers]:
    """Starts workers that record executions."""
    tracked_workers = TrackedWorkers(database, tmp_path)
    yield tracked_workers
    tracked_workers.close()


@pytest.fixture
def fake_workers(database: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeWorkers]:
    """Makes workers that are nothing but rows; each rescue looks for missing messages."""
    monkeypatch.setattr(rescue, "_MESSAGES_INTERVAL", 0.0)
    fake_workers = FakeWorkers(database)
    yield fake_workers
    fake_workers.close()


@pytest.fixture
def job_control(database: str, app: Celery) -> Iterator[JobControl]:
    with job_controls(database, app) as make:
        yield make()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """Receives webhooks on 127.0.0.1."""
    running = Receiver()
    yield running
    running.close()


@pytest.fixture
def without_holidays(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Hides the package `holidays`, as where it is not installed."""
    monkeypatch.setitem(sys.modules, "holidays", None)
    exclusions.region.cache_clear()
    calendars._rules.cache_clear()
    yield
    calendars._rules.cache_clear()
