"""History in partitions: periods are added ahead, and dropped as a whole."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import psycopg
import pytest
from celery import Celery
from psycopg.errors import InsufficientPrivilege
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from pgbeat.beat.maintenance import histories
from pgbeat.beat.maintenance.background import Background
from pgbeat.beat.maintenance.histories import HISTORIES
from pgbeat.beat.maintenance.leader_maintenance import LeaderMaintenance
from pgbeat.broker.publishing.publisher import publisher
from pgbeat.config import Settings, postgres_url
from pgbeat.database import connections
from pgbeat.monitoring.checks import server_checks
from pgbeat.schedules import ticks
from pgbeat.testing.databases import Databases
from tests.support.databases import Role, connected, copied
from tests.support.old_rows import prune
from tests.support.partitions import make_partitions
from tests.support.processes import until
from tests.support.rows import (
    Sql,
    ago,
    make_execution,
    make_group,
    make_job,
    make_schedule,
    make_tick,
)
from tests.support.threads import WAITS

DAYS = 40
Keep = Callable[..., None]


@pytest.fixture(scope="module")
def aged(pgbeat_databases: Databases) -> Iterator[str]:
    """The name of a database with partitions, which take a second to make."""
    with pgbeat_databases.lent() as dsn:
        with psycopg.connect(dsn, autocommit=True) as own:
            make_partitions(own, DAYS)
            own.execute("INSERT INTO pgbeat.namespaces (name, timezone) VALUES ('default', 'UTC')")
        yield str(postgres_url(dsn).database)


@pytest.fixture
def database(request: pytest.FixtureRequest, server: str) -> Iterator[str]:
    """A copy of it, for the tests whose connection is there."""
    if "connection" not in request.fixturenames:
        yield request.getfixturevalue("pgbeat_database")
        return
    with copied(server, request.getfixturevalue("aged")) as dsn:
        yield dsn


@pytest.fixture
def settings(database: str) -> Settings:
    return Settings(postgres_url(database), retention_days=30, retention_count=2)


@pytest.fixture
def keep(connection: Connection, settings: Settings) -> Keep:
    """Keeps histories, as the beat that leads does."""
    return partial(histories.keep, connection, settings)


def names(sql: Sql, history: str) -> list[str]:
    rows = sql("SELECT name FROM pgbeat.partitions WHERE history = %s ORDER BY starts_at", history)
    return [name for (name,) in rows]


def add_jobs(sql: Sql, ages: list[int], schedule: int | None = None, **values: Any) -> None:
    """Adds ended jobs, each with an execution and a tick; `ages` are in days."""
    for age in ages:
        at = ago(sql, f"{age} days")
        times = {"started_at": at, "finished_at": at}
        given = {"schedule_id": schedule, "created_at": at, "description": str(age), **values}
        job = make_job(sql, "completed", task="t", **times, **given)
        make_execution(sql, job, "completed", **times)
        if schedule is not None:
            make_tick(sql, schedule, "launched", due_at=at, decided_at=at, job_id=job)


def ages(sql: Sql) -> list[int]:
    return sorted(int(age) for (age,) in sql("SELECT description FROM pgbeat.jobs"))


a_schedule = partial(make_schedule, every="1 day")


def test_periods_are_added_ahead(connection: Connection, sql: Sql) -> None:
    sql("UPDATE pgbeat.namespaces SET retention_days = 30")
    before = {name for history in HISTORIES for name in names(sql, history)}
    added = histories.add_ahead(connection)
    assert {name for history in HISTORIES for name in names(sql, history)} == before | set(added)
    assert len(added) == len(HISTORIES)
    assert histories.add_ahead(connection) == []
    [(ahead,)] = sql(
        "SELECT min(starts_at) - now() FROM pgbeat.partitions WHERE name LIKE '%%_to_come'"
    )
    assert timedelta(days=3) <= ahead <= timedelta(days=4)


def test_a_time_without_a_beat_is_one_period(database: str, sql: Sql, settings: Settings) -> None:
    """However much there is, it stays where it is."""
    sql("INSERT INTO pgbeat.namespaces (name, timezone) VALUES ('default', 'UTC')")
    with psycopg.connect(database, autocommit=True) as own:
        make_partitions(own, 20, ahead=-20)
    add_jobs(sql, [0, 7, 12], schedule=a_schedule(sql))
    before = sql("SELECT ctid, id FROM pgbeat.jobs ORDER BY id")
    make_tick(sql, 1, due_at=ago(sql, "-9 days"))
    with connected(database) as connection:
        histories.keep(connection, settings)
    assert sql("SELECT ctid, id FROM pgbeat.jobs ORDER BY id") == before
    assert len(sql("SELECT DISTINCT tableoid FROM pgbeat.jobs")) == 1
    [(length,)] = sql(
        "SELECT max(ends_at - starts_at) FROM pgbeat.partitions WHERE history = 'ended_jobs'"
    )
    assert length == timedelta(days=21)
    # What is of a time after it has moved, and nothing followed from that.
    assert sql("SELECT tableoid::regclass::text FROM pgbeat.ticks WHERE due_at > now()") == [
        ("pgbeat.ticks_to_come",)
    ]
    assert sql("SELECT count(*) FROM pgbeat.ticks") == [(4,)]


def test_what_came_before_its_period_was_added_stays(
    database: str, sql: Sql, settings: Settings
) -> None:
    """A database without a beat: all is in `…_to_come` until one leads."""
    sql("INSERT INTO pgbeat.namespaces (name, timezone) VALUES ('default', 'UTC')")
    schedule = a_schedule(sql)
    add_jobs(sql, [0, 0], schedule=schedule)
    with connected(database) as connection:
        histories.keep(connection, settings)
    places = sql(
        "SELECT DISTINCT tableoid::regclass::text FROM pgbeat.jobs "
        "UNION SELECT tableoid::regclass::text FROM pgbeat.executions "
        "UNION SELECT tableoid::regclass::text FROM pgbeat.ticks ORDER BY 1"
    )
    [(today,)] = sql(
        "SELECT to_char(max(decided_at) AT TIME ZONE 'UTC', 'YYYYMMDD') FROM pgbeat.ticks"
    )
    assert [place for (place,) in places] == [
        f"pgbeat.ended_executions_{today}",
        f"pgbeat.ended_jobs_{today}",
        f"pgbeat.ticks_{today}",
    ]
    # Moving is not ending: nothing that follows the end of a job happens twice.
    assert sql("SELECT count(*) FROM pgbeat.ticks") == [(2,)]


def test_old_periods_go_as_a_whole(keep: Keep, sql: Sql) -> None:
    add_jobs(sql, [5, 20, 32, 35, 39])
    told: list[str] = []
    keep(told.append)
    assert ages(sql) == [5, 20]
    assert sql("SELECT count(*) FROM pgbeat.executions") == [(2,)]
    gone = DAYS - 30
    assert len(told) == gone * len(HISTORIES)
    for history in HISTORIES:
        found = names(sql, history)
        assert len(found) == 31 + 3 + 2, found


def test_the_newest_of_a_schedule_are_kept(keep: Keep, sql: Sql) -> None:
    add_jobs(sql, [33, 34, 35, 36], schedule=a_schedule(sql))
    add_jobs(sql, [3, 37, 38], schedule=a_schedule(sql, "other"))
    add_jobs(sql, [39], schedule=12345)  # deleted
    keep()
    assert ages(sql) == [3, 33, 34, 37]
    assert sql("SELECT count(*) FROM pgbeat.executions") == [(4,)]
    assert sql("SELECT count(*) FROM pgbeat.ticks") == [(4,)]
    places = sql("SELECT DISTINCT tableoid::regclass::text FROM pgbeat.jobs ORDER BY 1")
    assert ("pgbeat.ended_jobs_kept",) in places


def test_what_was_kept_goes_once_there_are_newer_ones(
    keep: Keep, connection: Connection, settings: Settings, sql: Sql
) -> None:
    schedule = a_schedule(sql)
    add_jobs(sql, [33, 34], schedule=schedule)
    keep()
    add_jobs(sql, [1, 31], schedule=schedule)
    deleted = prune(connection, settings, leaves_periods=True)
    # The one of 31 days is in a period that is not old as a whole.
    assert ages(sql) == [1, 31]
    assert deleted["jobs"] == deleted["executions"] == 2


def test_rows_are_copied_before_the_history_is_locked(
    keep: Keep,
    connection: Connection,
    settings: Settings,
    sql: Sql,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However many there are, ends of jobs wait for milliseconds; small partitions become one."""
    sql(
        """
        CREATE FUNCTION pgbeat.unlocked(id uuid) RETURNS uuid LANGUAGE plpgsql IMMUTABLE AS $$
        BEGIN
            IF EXISTS (SELECT FROM pg_locks WHERE pid = pg_backend_pid() AND granted
                          AND relation = 'pgbeat.ended_jobs'::regclass
                          AND mode IN ('AccessExclusiveLock', 'ExclusiveLock')) THEN
                RAISE 'a row is written while the history is locked';
            END IF;
            RETURN id;
        END $$
        """
    )
    # What is indexed is computed whenever a row is written to a partition.
    sql("CREATE INDEX written ON pgbeat.ended_jobs (pgbeat.unlocked(id))")
    first, second = a_schedule(sql), a_schedule(sql, "other")
    add_jobs(sql, [34, 35, 39], schedule=first)
    add_jobs(sql, [31, 32], schedule=second)
    monkeypatch.setattr(histories, "MERGED", 1)
    kept = "SELECT count(*) FROM pgbeat.partitions WHERE history = 'ended_jobs' AND is_kept"
    keep()
    assert ages(sql) == [31, 32, 34, 35]
    assert sql(kept) == [(4,)]
    monkeypatch.setattr(histories, "MERGED", 3)
    histories._merge(connection, "ended_jobs")
    assert sql(kept) == [(3,)]
    assert ages(sql) == [31, 32, 34, 35]
    add_jobs(sql, [1, 2], schedule=first)
    prune(connection, settings, leaves_periods=True)
    assert ages(sql) == [1, 2, 31, 32]
    assert sql("SELECT relname FROM pg_class WHERE relname LIKE '%%gone%%' AND relkind = 'r'") == []


def test_members_of_a_running_group_are_kept(keep: Keep, sql: Sql) -> None:
    group = make_group(sql)
    add_jobs(sql, [35], group_id=group)
    keep()
    assert ages(sql) == [35]


def test_executions_of_a_job_that_has_not_ended_are_kept(keep: Keep, sql: Sql) -> None:
    before, at = ago(sql, "40 days"), ago(sql, "36 days")
    job = make_job(sql, "running", created_at=before, started_at=before)
    make_execution(sql, job, "failed", started_at=at, finished_at=at)
    keep()
    assert sql("SELECT number FROM pgbeat.executions") == [(1,)]


def test_a_tick_that_was_decided_late_is_kept(keep: Keep, sql: Sql) -> None:
    """Of a backfill: its due time is old, the decision is not."""
    for due, decided in ((36, 1), (36, 36), (36, 35)):
        times = {"due_at": ago(sql, f"{due} days"), "decided_at": ago(sql, f"{decided} days")}
        make_tick(sql, 1, **times)
    keep()
    assert sql("SELECT count(*) FROM pgbeat.ticks") == [(1,)]


def test_a_tick_that_is_written_after_the_others_were_copied_is_kept(
    connection: Connection, settings: Settings, sql: Sql, database: str
) -> None:
    """Of a backfill, while the drop waits for a reader."""
    late = ticks.Tick(1, "s", "backfill", ago(sql, "45 days"), "skipped", "no work")
    sleeps = (
        "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep' "
        "AND datname = current_database() AND query LIKE '%%keep_partition%%'"
    )

    def drop() -> None:
        with connected(database) as own, suppress(DBAPIError):  # the next one is for later
            histories.keep(own, settings)

    def write() -> None:
        with connections.transaction(connection):
            ticks.record(connection, [late])

    histories.add_ahead(connection)
    before = names(sql, "ticks")
    with psycopg.connect(database) as reader, ThreadPoolExecutor(2) as pool:
        reader.execute("SELECT count(*) FROM pgbeat.ticks")
        calls = [pool.submit(drop)]
        until(lambda: sql(sleeps))
        calls.append(pool.submit(write))
        until(lambda: calls[1].done() or sql(f"{WAITS} AND locktype = 'advisory'"))
        reader.rollback()
        for call in calls:
            call.result(30)
    assert before[0] not in names(sql, "ticks")
    assert sql("SELECT count(*) FROM pgbeat.ticks") == [(1,)]


def test_a_namespace_that_keeps_longer_is_heeded(
    keep: Keep, connection: Connection, settings: Settings, sql: Sql
) -> None:
    sql(
        "INSERT INTO pgbeat.namespaces (name, timezone, retention_days) VALUES ('other', 'UTC', 36)"
    )
    add_jobs(sql, [32, 38])
    keep()
    assert ages(sql) == [32]
    # This namespace deletes its own rows one by one.
    prune(connection, settings, leaves_periods=True)
    assert ages(sql) == []


def test_for_ever_means_for_ever(connection: Connection, settings: Settings, sql: Sql) -> None:
    add_jobs(sql, [39])
    histories.keep(connection, replace(settings, retention_days=0))
    assert ages(sql) == [39]


def test_a_due_time_is_decided_once_in_whichever_period(connection: Connection, sql: Sql) -> None:
    insert = (
        "INSERT INTO pgbeat.ticks (schedule_id, schedule, due_at, outcome, reason) VALUES "
        "(1, 's', date_trunc('day', now()) - interval '20 days', 'skipped', 'r') "
        "ON CONFLICT ON CONSTRAINT ticks_one_decision DO NOTHING RETURNING id"
    )
    assert len(sql(insert)) == 1
    assert sql(insert) == []


def test_an_open_transaction_holds_nobody_up(
    connection: Connection, settings: Settings, sql: Sql, database: str
) -> None:
    """The drop waits for a moment, again and again; others wait for it no longer than that."""
    add_jobs(sql, [35])
    with psycopg.connect(database) as reader:
        reader.execute("SELECT count(*) FROM pgbeat.jobs")
        dropped = threading.Event()

        def drop() -> None:
            with connected(database) as own:
                histories.keep(own, settings)
            dropped.set()

        thread = threading.Thread(target=drop)
        thread.start()
        for _ in range(5):
            with psycopg.connect(database, autocommit=True) as other:
                other.execute("SET statement_timeout = '2s'")
                other.execute("SELECT count(*) FROM pgbeat.jobs")
        assert not dropped.is_set()
        reader.rollback()
        assert dropped.wait(20)
        thread.join()
    assert ages(sql) == []


def test_only_the_oldest_period_can_be_dropped(connection: Connection, sql: Sql) -> None:
    oldest, newer, *_ = [name for name in names(sql, "ticks") if name != "ticks_kept"]
    for merged, period in (
        ([], newer),
        (["ticks_kept"], newer),
        ([oldest], newer),
        ([oldest], None),
        ([], "ticks_kept_to_come"),
        (["ended_jobs_kept"], oldest),
    ):
        with pytest.raises(psycopg.Error, match=r"oldest|no rows|more than one row"):
            sql("SELECT pgbeat.keep_partition(%s, %s, '{}')", merged, period)


def test_a_role_that_may_not_delete_drops_nothing(
    connection: Connection, sql: Sql, ordinary_role: Role
) -> None:
    role = ordinary_role.name
    sql(f"GRANT USAGE ON SCHEMA pgbeat TO {role}")
    sql(f"GRANT SELECT ON ALL TABLES IN SCHEMA pgbeat TO {role}")
    for call in (
        f"SELECT pgbeat.keep_partition('{{}}', '{names(sql, 'ticks')[0]}', '{{}}')",
        "SELECT pgbeat.add_partition('ticks', now() + interval '99 days')",
    ):
        with pytest.raises(InsufficientPrivilege):
            sql(f"SET ROLE {role}; {call}")


def test_a_role_that_owns_nothing_keeps_them(
    database: str, sql: Sql, settings: Settings, ordinary_role: Role
) -> None:
    """It has what the documentation grants, before there are periods: it gets none of them."""
    role = ordinary_role.name
    sql(f"GRANT USAGE ON SCHEMA pgbeat TO {role}")
    sql(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA pgbeat TO {role}")
    sql("INSERT INTO pgbeat.namespaces (name, timezone) VALUES ('default', 'UTC')")
    with psycopg.connect(database, autocommit=True) as owner:
        make_partitions(owner, 49, step=7, ahead=0)
    add_jobs(sql, [5, 36, 37, 47], schedule=a_schedule(sql))
    with connected(database) as connection:
        connection.exec_driver_sql(f"SET ROLE {role}")
        histories.keep(connection, settings)
        assert server_checks.missing_privileges(connection).result == "ok"
    assert ages(sql) == [5, 36]
    periods = (
        "SELECT count(*) FILTER (WHERE ends_at < now() - interval '30 days'), "
        "min(starts_at) FILTER (WHERE ends_at IS NULL) > now() + interval '3 days' "
        "FROM pgbeat.partitions WHERE NOT is_kept"
    )
    assert sql(periods) == [(0, True)]


def test_a_beat_keeps_them_in_a_thread(
    connection: Connection, settings: Settings, sql: Sql
) -> None:
    add_jobs(sql, [35])
    keeper = Background(
        settings, "retention", lambda c: histories.keep(c, settings), first=60, every=600
    )
    keeper.step(keeper._next_at - 1)
    assert keeper._thread is None
    keeper.step(keeper._next_at)
    until(lambda: ages(sql) == [] or None)
    keeper.close(10)


def test_a_round_may_take_its_time(
    settings: Settings, sql: Sql, caplog: pytest.LogCaptureFixture
) -> None:
    """However soon the role's statements must end."""
    sql(f'ALTER DATABASE "{settings.url.database}" SET statement_timeout = 500')
    keeper = Background(
        settings, "retention", lambda c: c.execute(text("SELECT pg_sleep(0.6)")), first=0, every=600
    )
    keeper.step(keeper._next_at)
    keeper.close(10)
    assert caplog.records == []


def test_a_round_that_fails_is_logged(settings: Settings, caplog: pytest.LogCaptureFixture) -> None:
    """Once, not each time. A wait for a lock is not: doctor says if that lasts."""
    tables = ["gone"] * 3 + ["jobs", "gone", "away"]
    keeper = Background(
        settings,
        "retention",
        lambda c: c.execute(text(f"TABLE pgbeat.{tables.pop(0)}")),
        first=0,
        every=0,
    )
    while tables:
        keeper.step(keeper._next_at)
        keeper.close(10)
    assert {record.levelname for record in caplog.records} == {"WARNING"}
    assert [record.getMessage() for record in caplog.records] == [
        f'retention failed: relation "pgbeat.{table}" does not exist'
        for table in ("gone", "gone", "away")
    ]


def test_a_beat_that_is_never_idle_keeps_histories_too(
    app: Celery, connection: Connection, settings: Settings, sql: Sql
) -> None:
    add_jobs(sql, [35])
    maintenance = LeaderMaintenance(app, settings, publisher(app, settings, lambda: None))
    for each in maintenance._background:
        each._next_at = 0.0
    maintenance.step(connection, is_due=False, is_idle=False)
    until(lambda: ages(sql) == [] or None)
    maintenance.close(10)


@pytest.mark.parametrize(("days", "step"), [(1, 1), (31, 1), (32, 7), (365, 30), (0, 30)])
def test_a_retention_is_about_thirty_periods(days: int, step: int) -> None:
    longest = timedelta(days=days) if days else None
    assert histories.step(longest) == timedelta(days=step)
