"""A beat beside transactions that others leave open: only what needs their locks is postponed."""

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from celery import Celery
from sqlalchemy import create_engine

import pgbeat
from pgbeat.config import postgres_url
from tests.support.command_line import run_with
from tests.support.databases import sqlalchemy_url
from tests.support.processes import until
from tests.support.refusals import refusing
from tests.support.rows import Sql, make_job, make_lane, make_schedule, make_webhook
from tests.support.schedulers import Beat
from tests.support.threads import repeating, waiting

Running = Callable[[], Any]
Beside = Callable[..., AbstractContextManager[psycopg.Connection[Any]]]


@pytest.fixture
def running(beat: Beat, app: Celery) -> Iterator[Running]:
    """Has a beat lead and tick in a thread, until the test ends."""
    with ExitStack() as until_then:

        def run() -> None:
            app.conf.pgbeat_loop_interval = 0.5
            until_then.enter_context(repeating(beat().tick))

        yield run


def add(sql: Sql, name: str = "s", job: str = "{}", **values: Any) -> None:
    make_schedule(sql, name, due="0 seconds", job_policy=job, **values)


def add_others(sql: Sql) -> None:
    """Twenty schedules that are due at the same time, half of them five times a second."""
    for number in range(20):
        every = "0.2 seconds" if number % 2 else "1 hour"
        add(sql, f"other {number}", every=every, starts_at="2020-01-01T00:00Z")


def run_once(beat: Beat) -> None:
    """Decides what is due, by a beat that then leads no more."""
    scheduler = beat()
    scheduler.run_due()
    scheduler.close()


def ticks(sql: Sql, name: str) -> list[str]:
    """The outcomes of a schedule, oldest first."""
    return [
        r[0] for r in sql("SELECT outcome FROM pgbeat.ticks WHERE schedule = %s ORDER BY id", name)
    ]


def others_go_on(sql: Sql) -> None:
    """Waits until all the others were decided, and those that are due often twice from now on."""
    query = "SELECT count(DISTINCT schedule) FROM pgbeat.ticks WHERE schedule LIKE 'other %'"
    until(lambda: sql(query) == [(20,)], 20, "all others are decided")
    before = len(ticks(sql, "other 1"))
    until(lambda: len(ticks(sql, "other 1")) >= before + 2, 20, "another goes on")


#: Takes the unique key of the schedule `keyed`.
TAKES_K = (
    "INSERT INTO pgbeat.jobs (id, task, unique_key, job_source, created_by, is_system_job) "
    "VALUES (gen_random_uuid(), 'tests.add', 'K', 'system', 'tests', true)"
)


@contextmanager
def opened(database: str, *statements: str) -> Iterator[psycopg.Connection[Any]]:
    """A transaction that somebody leaves open, with these statements in it."""
    with psycopg.connect(database) as connection:
        for statement in statements:
            connection.execute(statement)
        yield connection


def test_an_uncommitted_job_delays_only_the_schedule_with_its_unique_key(
    app: Celery, sql: Sql, database: str, running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    add(sql, "keyed", '{"unique_key": "K"}')
    add_others(sql)
    engine = create_engine(sqlalchemy_url(database))
    caplog.set_level(logging.INFO)
    with engine.connect() as connection:
        pgbeat.submit("tests.add", unique_key="K", connection=connection, app=app)
        running()
        others_go_on(sql)
        until(lambda: "Postponed schedule 'keyed': another transaction makes a job" in caplog.text)
        assert ticks(sql, "keyed") == []
        connection.rollback()
    until(lambda: ticks(sql, "keyed") == ["launched"], 10)
    assert caplog.text.count("Postponed schedule 'keyed'") == 1
    engine.dispose()


@pytest.fixture
def beside(sql: Sql, database: str, running: Running) -> Beside:
    """Has a beat run beside a transaction with these statements; the other schedules go on."""

    @contextmanager
    def stand(*statements: str) -> Iterator[psycopg.Connection[Any]]:
        add_others(sql)
        with opened(database, *statements) as other:
            running()
            others_go_on(sql)
            yield other

    return stand


def test_what_commits_at_last_counts(sql: Sql, beside: Beside) -> None:
    """A row written by hand takes no advisory lock: it is the unique index that is waited for."""
    add(sql, "keyed", '{"unique_key": "K"}')
    with beside(TAKES_K) as other:
        assert ticks(sql, "keyed") == []
        other.commit()
    until(lambda: ticks(sql, "keyed") == ["skipped"], 10)
    [(reason,)] = sql("SELECT reason FROM pgbeat.ticks WHERE schedule = 'keyed'")
    assert "has the same unique key" in reason


def test_a_key_that_is_taken_while_a_launch_is_written(
    app: Celery, sql: Sql, database: str
) -> None:
    """The launch waits for the unique index, and then skips: it has no job."""
    add(sql, "keyed", '{"unique_key": "K"}')
    trigger = partial(run_with, app, "trigger", "keyed")
    with opened(database, TAKES_K) as connection, waiting(sql, trigger):
        connection.commit()
    assert ticks(sql, "keyed") == ["skipped"]


def test_a_locked_lane_delays_only_what_is_in_it(sql: Sql, beside: Beside) -> None:
    make_lane(sql, "a")
    make_lane(sql, "b")
    add(sql, "in lane", '{"lane": "a"}')
    add(sql, "beside it", '{"lane": "b"}')
    given = "SELECT count(*) FROM pgbeat.jobs WHERE schedule = %s AND dispatched_at IS NOT NULL"
    with beside("UPDATE pgbeat.lanes SET max_running = 2 WHERE name = 'a'") as other:
        until(lambda: sql(given, "beside it") == [(1,)])
        assert ticks(sql, "in lane") == ["launched"]
        assert sql(given, "in lane") == [(0,)]
        other.commit()
    until(lambda: sql(given, "in lane") == [(1,)], 10)


def test_an_uncommitted_queue_delays_only_what_is_for_it(sql: Sql, beside: Beside) -> None:
    add(sql, "for it", queue="new")
    sql("SELECT pgbeat.adopt_broker()")
    with beside("INSERT INTO kombu_queue (name) VALUES ('new')") as other:
        assert ticks(sql, "for it") == []
        other.rollback()
    until(lambda: ticks(sql, "for it") == ["launched"], 10)
    assert sql(
        "SELECT count(*) FROM kombu_message m JOIN kombu_queue q ON q.id = m.queue_id "
        "WHERE q.name = 'new'"
    ) == [(1,)]


@pytest.mark.parametrize("overlap", ["cancel_previous", "queue_one"])
def test_a_locked_job_delays_only_its_schedule(
    sql: Sql, beside: Beside, beat: Beat, overlap: str
) -> None:
    add(sql, "overlapping", overlap=overlap)
    run_once(beat)
    [(job,)] = sql("SELECT id FROM pgbeat.jobs")
    sql("UPDATE pgbeat.schedules SET next_run = now()")
    waits = "SELECT waiting_for FROM pgbeat.schedules WHERE name = 'overlapping'"
    with beside(f"UPDATE pgbeat.jobs SET priority = 1 WHERE id = '{job}'") as other:
        assert ticks(sql, "overlapping") == ["launched"]
        assert sql(waits) == [(None,)]
        other.commit()
    if overlap == "queue_one":
        until(lambda: sql(waits) == [(job,)], 10)
    else:
        until(lambda: ticks(sql, "overlapping") == ["launched"] * 2, 10)
        assert sql("SELECT state FROM pgbeat.jobs WHERE id = %s", job) == [("cancelled",)]


def test_a_webhook_that_is_being_deleted_delays_only_what_is_told_to_it(
    sql: Sql, beside: Beside
) -> None:
    make_webhook(sql, url="http://127.0.0.1:9/", events=["tick.failed"])
    add(sql, "failing", task="tests.gone")
    with beside("DELETE FROM pgbeat.webhooks") as other:
        assert ticks(sql, "failing") == []
        other.commit()
    until(lambda: ticks(sql, "failing") == ["failed"], 10)


def test_others_go_on_between_hundreds_that_are_blocked(
    sql: Sql, database: str, running: Running
) -> None:
    make_webhook(sql, url="http://127.0.0.1:9/", events=["tick.failed"])
    for number in range(250):
        add(sql, f"fails {number}", condition_sql="SELECT 1/0")
        add(sql, f"other {number}", condition_sql="SELECT true")
    launched = "SELECT count(*) FROM pgbeat.ticks WHERE outcome = 'launched'"
    with opened(database, "SELECT FROM pgbeat.webhooks FOR UPDATE"):
        running()
        until(lambda: sql(launched)[0][0] >= 20, 30)


def test_locked_sums_and_counters_delay_nothing(app: Celery, sql: Sql, beside: Beside) -> None:
    app.conf.pgbeat_metrics_interval = 0.5
    sql(
        "INSERT INTO pgbeat.counters (namespace, metric, label, kind, value) "
        "VALUES ('default', 'take_overs', '', '', 1)"
    )
    with beside(
        "SELECT FROM pgbeat.counters FOR UPDATE",
        "INSERT INTO pgbeat.counters VALUES ('', 'stale_claims_released', '', '', 1)",
        "INSERT INTO pgbeat.namespaces (name, timezone) VALUES ('default', 'UTC')",
    ) as other:
        other.rollback()
    written = "SELECT value FROM pgbeat.counters WHERE metric = 'take_overs'"
    until(lambda: sql(written) == [(2,)], 30)
    until(lambda: sql("SELECT count(*) FROM pgbeat.namespaces") == [(1,)], 10)


def test_a_job_that_is_due_waits_alone_for_its_queue(
    sql: Sql, database: str, running: Running
) -> None:
    """Jobs with a time are handed out apart, where one of them can't be."""
    sql("SELECT pgbeat.adopt_broker()")
    for queue in ("new", None, None):
        make_job(sql, "scheduled", task="tests.add", queue=queue, run_at="now")
    waiting = "SELECT queue FROM pgbeat.jobs WHERE state = 'scheduled'"
    with opened(database, "INSERT INTO kombu_queue (name) VALUES ('new')") as other:
        running()
        until(lambda: sql(waiting) == [("new",)], 20)
        add_others(sql)
        others_go_on(sql)
        assert sql(waiting) == [("new",)]
        other.commit()
    until(lambda: sql(waiting) == [], 10)


def test_a_locked_table_costs_no_leadership(
    sql: Sql, database: str, running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    add_others(sql)
    caplog.set_level(logging.INFO)
    running()
    others_go_on(sql)
    with opened(database, "LOCK TABLE pgbeat.jobs IN ACCESS EXCLUSIVE MODE"):
        until(lambda: "Postponed all schedules: another transaction" in caplog.text, 20)
    others_go_on(sql)
    assert caplog.text.count("This beat leads") == 1
    assert "The database" not in caplog.text


def test_one_blocked_decision_does_not_split_the_batches_after_it(sql: Sql, beside: Beside) -> None:
    """It is tried again by itself: the others commit together, at the first attempt."""
    add(sql, "keyed", '{"unique_key": "K"}')
    together = (
        "SELECT max(together) FROM (SELECT count(*) AS together FROM pgbeat.ticks WHERE id > %s "
        "GROUP BY xmin::text) AS transactions"
    )
    with beside(TAKES_K):
        [(last,)] = sql("SELECT max(id) FROM pgbeat.ticks")
        others_go_on(sql)
        [(most,)] = sql(together, last)
    assert most >= 5


def test_a_locked_counter_delays_no_rescue(
    sql: Sql, database: str, running: Running, beat: Beat
) -> None:
    """The end of a lost execution counts, later."""
    sql("INSERT INTO pgbeat.counters VALUES ('', 'stale_claims_released', '', '', 1)")
    add(sql, "s")
    run_once(beat)
    lose = (
        "INSERT INTO pgbeat.executions (job_id, number, worker, worker_id, started_at) "
        "SELECT id, (SELECT count(*) FROM pgbeat.executions) + 1, 'gone', 17, "
        "now() - interval '1 hour' FROM pgbeat.jobs LIMIT 1"
    )
    sql("UPDATE pgbeat.jobs SET state = 'running', started_at = now(), max_attempts = 1")
    sql(lose)
    lost = "SELECT count(*) FROM pgbeat.executions WHERE lost"
    with opened(database, "SELECT FROM pgbeat.counters FOR UPDATE"):
        running()
        until(lambda: sql(lost) == [(1,)], 20)
    sql(lose)
    until(lambda: sql(lost) == [(2,)], 20)
    assert sql("SELECT value FROM pgbeat.counters WHERE metric LIKE 'stale%'") == [(3,)]


@pytest.mark.parametrize(
    ("sqlstate", "values", "table"),
    [
        ("53100", {}, "ticks"),
        ("53200", {"catch_up": "all"}, "ticks"),
        ("XX000", {"overlap": "skip"}, "ticks"),
        ("42P01", {}, "unfinished_jobs"),
        ("42501", {"overlap": "skip"}, "unfinished_jobs"),
    ],
)
def test_an_error_of_the_server_is_no_failure_of_the_schedule(
    running: Running, sql: Sql, sqlstate: str, values: dict[str, str], table: str
) -> None:
    """It is postponed, however it is launched; the others are launched meanwhile.

    So it is where a table or a right is missing.
    """
    add(sql, **values)
    with refusing(sql, f"pgbeat.{table}", sqlstate, "NEW.schedule = 's'"):
        add_others(sql)
        running()
        others_go_on(sql)
        assert ticks(sql, "s") == []
    until(lambda: "launched" in ticks(sql, "s"), 20)
    assert ticks(sql, "s")[0] == "launched"
    assert sql("SELECT retry_count FROM pgbeat.schedules WHERE name = 's'") == [(0,)]


def test_a_condition_that_the_server_cannot_evaluate_is_evaluated_again(
    running: Running, sql: Sql
) -> None:
    sql(
        "CREATE FUNCTION ask() RETURNS boolean LANGUAGE plpgsql STABLE AS "
        "'BEGIN RAISE EXCEPTION ''the disk is full'' USING ERRCODE = ''53100''; END'"
    )
    add(sql, condition_sql="SELECT ask()")
    add(sql, "another", condition_sql="SELECT true", every="0.2 seconds")
    running()
    until(lambda: len(ticks(sql, "another")) > 2, 20)
    assert ticks(sql, "s") == []
    sql("CREATE OR REPLACE FUNCTION ask() RETURNS boolean LANGUAGE sql STABLE AS 'SELECT true'")
    until(lambda: ticks(sql, "s") == ["launched"], 20)


def test_a_condition_without_a_connection_is_evaluated_again(
    app: Celery, running: Running, sql: Sql, database: str
) -> None:
    """The server refuses a session: nobody can say what the condition is."""
    role = f"conditions_{uuid4().hex[:8]}"
    sql(f"CREATE ROLE {role} LOGIN PASSWORD 'pass' CONNECTION LIMIT 0")
    sql(f"GRANT USAGE ON SCHEMA pgbeat TO {role}")
    url = postgres_url(database).set(username=role, password="pass")
    app.conf.pgbeat_condition_url = url.render_as_string(hide_password=False)
    try:
        add(sql, condition_sql="SELECT true")
        add(sql, "another", every="0.2 seconds")
        running()
        until(lambda: len(ticks(sql, "another")) > 5, 20)
        assert ticks(sql, "s") == []
        sql(f"ALTER ROLE {role} CONNECTION LIMIT -1")
        until(lambda: ticks(sql, "s") == ["launched"], 20)
    finally:
        sql(f"DROP OWNED BY {role}")
        sql(f"DROP ROLE {role}")
