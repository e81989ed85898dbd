"""Behind a pooler nothing of a session reaches another client: settings, locks, notifications."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest
from celery import Celery
from click.testing import CliRunner
from kombu import Connection

import pgbeat
from pgbeat.beat.scheduler import Scheduler
from pgbeat.cli import pgbeat as command
from pgbeat.config import Settings, postgres_url
from pgbeat.database import connections, poolers
from pgbeat.database.watched import is_direct
from pgbeat.errors import ConfigError
from pgbeat.monitoring.checks.doctor import checks
from tests.support.pgbouncer import Pooler, needs_pgbouncer, pooler
from tests.support.processes import Processes
from tests.support.recorded_workers import TrackedWorkers
from tests.support.rows import Sql

pytestmark = needs_pgbouncer

#: Server sessions that the pooler has at most.
SESSIONS = 3
#: What PgBouncer itself gives each client as the client asked for it.
_TRACKED = [
    "application_name",
    "client_encoding",
    "DateStyle",
    "TimeZone",
    "standard_conforming_strings",
]
_LEFT = """
    SELECT 'setting ' || name || '=' || setting FROM pg_settings
     WHERE setting IS DISTINCT FROM reset_val AND source = 'session' AND name <> ALL (%(tracked)s)
    UNION ALL SELECT 'channel ' || c FROM pg_listening_channels() AS c
    UNION ALL SELECT 'statement ' || name FROM pg_prepared_statements
    UNION ALL SELECT 'lock ' || classid || ' ' || objid FROM pg_locks
     WHERE locktype = 'advisory' AND pid = pg_backend_pid()
"""


@pytest.fixture
def pooled(database: str, tmp_path: Path) -> Iterator[Pooler]:
    with pooler(database, tmp_path, default_pool_size=SESSIONS) as found:
        yield found


def left_over(found: Pooler) -> set[str]:
    """Returns what the next clients find in the sessions that the pooler hands out."""
    left: set[str] = set()
    with ExitStack() as stack:
        for _ in range(SESSIONS):
            # In a transaction each: they have all the sessions that there are.
            client = stack.enter_context(psycopg.connect(found.url))
            left |= {row[0] for row in client.execute(_LEFT, {"tracked": _TRACKED})}
    return left


def make_app(url: str, **options: Any) -> Celery:
    app = Celery("pooled", broker=f"pgbeat+{url}", set_as_current=False)
    app.conf.update(
        task_ignore_result=True,
        result_expires=None,
        pgbeat_loop_interval=0.1,
        broker_transport_options=options,
    )

    @app.task(name="tests.add", shared=False)
    def add(x: int = 1, y: int = 2) -> int:
        return x + y

    return app


def test_a_publisher_leaves_no_settings(pooled: Pooler, sql: Sql) -> None:
    [(name,)] = sql("SELECT current_database()")
    for setting in "DateStyle = German", "IntervalStyle = iso_8601", "client_encoding = LATIN1":
        sql(f'ALTER DATABASE "{name}" SET {setting}')
    options = {"synchronous_commit": "off"}
    with (
        Connection(f"pgbeat+{pooled.url}", transport_options=options) as connection,
        connection.SimpleQueue("work") as queue,
    ):
        for _ in range(3):
            queue.put("a")
    assert left_over(pooled) == set()


def test_synchronous_commit_is_each_publishes(database: str) -> None:
    """The option still does what it says, and only there."""
    options = {"synchronous_commit": "off"}
    with Connection(f"pgbeat+{database}", transport_options=options) as connection:
        broker = connection.transport.broker
        with connection.SimpleQueue("work") as queue:
            queue.put("a")
        with broker.work() as (session, _):
            said = session.exec_driver_sql("SHOW synchronous_commit").scalar()
        assert said == "on"
        assert broker._commit == b"off"


def test_the_command_line_leaves_no_settings(pooled: Pooler) -> None:
    for words in (["metrics"], ["prune"], ["lanes", "list"], ["doctor"]):
        result = CliRunner().invoke(command, ["--url", pooled.url, *words])
        assert "Traceback" not in result.output
    assert left_over(pooled) == set()


def test_a_cli_session_limits_its_waits_in_each_transaction(pooled: Pooler, database: str) -> None:
    for url in (pooled.url, database):
        with connections.engine(postgres_url(url), "tests").connect() as connection:
            connection.execution_options(isolation_level="AUTOCOMMIT")
            connections.configure(connection, {"lock_timeout": "4321"})
            with connections.transaction(connection):
                said = connection.exec_driver_sql("SHOW lock_timeout").scalar()
            assert said == "4321ms"


def test_a_direct_execution_is_refused(pooled: Pooler, database: str) -> None:
    """Its reservation lives by a session's lock, and another client would have that."""
    app = make_app(pooled.url)
    arguments = ["--url", database, "lanes", "set", "hall", "--limit", "1"]
    assert CliRunner().invoke(command, arguments).exit_code == 0
    with pytest.raises(ConfigError, match=r"transaction-mode pooler.*direct_url"):
        pgbeat.run_direct("tests.add", (2, 3), lane="hall", app=app)
    assert left_over(pooled) == set()
    app.close()
    app = make_app(pooled.url, direct_url=database)
    assert pgbeat.run_direct("tests.add", (2, 3), lane="hall", app=app) == 5
    assert left_over(pooled) == set()
    app.close()


def test_a_beat_refuses_to_lead_behind_a_pooler(pooled: Pooler) -> None:
    app = make_app(pooled.url)
    with pytest.raises(SystemExit, match=r"transaction-mode pooler.*pgbeat_url.*direct_url"):
        Scheduler(app=app)
    assert left_over(pooled) == set()


def test_of_two_beats_with_a_direct_url_one_leads(pooled: Pooler, database: str) -> None:
    beats = [Scheduler(app=make_app(pooled.url, direct_url=database)) for _ in range(2)]
    try:
        assert [each._leader.lead() for each in beats] == [True, False]
    finally:
        for each in beats:
            each.close()
    assert left_over(pooled) == set()


def test_a_direct_url_must_lead_to_the_same_database(pooled: Pooler, empty_database: str) -> None:
    wrong = {empty_database: "is not the database", pooled.url: "pooler answers .*too"}
    for url, said in wrong.items():
        with pytest.raises(SystemExit, match=f"direct_url: .*{said}"):
            Scheduler(app=make_app(pooled.url, direct_url=url))
        options = {"direct_url": url}
        with (
            Connection(f"pgbeat+{pooled.url}", transport_options=options) as connection,
            pytest.raises(ConfigError, match=f"direct_url: .*{said}"),
        ):
            connection.SimpleQueue("work").get(timeout=5)


def test_a_session_mode_pooler_will_do(database: str, tmp_path: Path) -> None:
    with pooler(database, tmp_path, pool_mode="session") as found:
        beats = [Scheduler(app=make_app(found.url)) for _ in range(2)]
        try:
            assert [each._leader.lead() for each in beats] == [True, False]
        finally:
            for each in beats:
                each.close()
        connection = poolers.connect(
            postgres_url(found.url), "tests", direct_url=None, purpose="A test needs"
        )
        assert connections.has_own_session(connection)
        assert not is_direct(connections.driver(connection))
        connections.close(connection)


def test_doctor_knows_of_the_direct_url(pooled: Pooler, database: str) -> None:
    for options, result in (({}, "fail"), ({"direct_url": database}, "ok")):
        app = make_app(pooled.url, **options)
        found = {each.check: each for each in checks(Settings.load(app.conf), app)}
        assert found["connection"].result == result
        app.close()


@pytest.mark.slow
def test_a_beat_behind_a_pooler_ends_with_a_sentence(
    pooled: Pooler, database: str, tmp_path: Path
) -> None:
    processes = Processes(database, tmp_path)
    try:
        beat = processes.beat(PGBEAT_URL=pooled.url)
        assert beat.wait(60) == 1
        assert "a transaction-mode pooler answers at" in beat.output
        assert "Traceback" not in beat.output
    finally:
        processes.stop_all()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["with a direct_url", "without"])
def test_a_worker_leaves_nothing(pooled: Pooler, database: str, tmp_path: Path, kind: str) -> None:
    tracked_workers = TrackedWorkers(pooled.url, tmp_path)
    options = {"direct_url": database} if kind != "without" else {}
    try:
        worker = tracked_workers.start(
            "-c", "2", settings={"broker_transport_options": options, "pgbeat_track": "all"}
        )
        ids = tracked_workers.launch("add", count=20)
        tracked_workers.ended(*ids)
        assert left_over(pooled) == set()
        worker.terminate()
        worker.wait(60)
        assert left_over(pooled) == set()
    finally:
        tracked_workers.stop_all()
