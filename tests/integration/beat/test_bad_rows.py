"""Rows that can't be read, or not be computed with, as only SQL writes them: each fails alone.

Beat launches what else is due, in the same passes.
"""

from uuid import UUID

import psycopg
import pytest
from celery import Celery
from sqlalchemy import Connection

import pgbeat
from pgbeat.jobs.rows import model as jobs
from pgbeat.jobs.rows.filters import Filter
from pgbeat.schedules import model as schedules
from pgbeat.storable import TooDeep
from pgbeat.views.jobs import job as view
from tests.support.rows import Sql, make_calendar, make_job, make_lane, make_schedule, make_template
from tests.support.schedulers import Beat


def launches(beat: Beat, app: Celery, sql: Sql) -> bool:
    """Returns whether a schedule that is due is launched by the first of a few ticks."""
    app.conf.pgbeat_loop_interval = 0.1
    make_schedule(sql, "other", due="-1 second", in_turn=True)
    scheduler = beat()
    for _ in range(5):
        scheduler.tick()
    return sql("SELECT outcome FROM pgbeat.ticks WHERE schedule = 'other'") == [("launched",)]


@pytest.mark.parametrize("resources", ['{"tokens": null}', '{"tokens": "1200 t"}'])
def test_an_amount_that_is_none(beat: Beat, app: Celery, sql: Sql, resources: str) -> None:
    make_lane(sql, "llm", None, rate_limit=10, rate_period="1 minute", rate_unit="tokens")
    waiting = [make_job(sql, task="tests.add", lane="llm", resources=resources) for _ in range(2)]
    assert launches(beat, app, sql)
    sent = sql("SELECT id FROM pgbeat.jobs WHERE lane = 'llm' AND dispatched_at IS NOT NULL")
    assert {row[0] for row in sent} == set(map(UUID, waiting))


def test_a_job_that_waits_for_ever(beat: Beat, app: Celery, sql: Sql) -> None:
    """Nothing else is due for maintenance: Postgres 16 can't subtract such a time."""
    job = make_job(sql, "scheduled", task="tests.add", run_at="infinity")
    assert launches(beat, app, sql)
    assert sql("SELECT state FROM pgbeat.jobs WHERE id = %s", job) == [("scheduled",)]


@pytest.mark.parametrize(
    "times", [{"run_at": "-infinity"}, {"run_at": "now", "due_at": "10000-01-01"}]
)
def test_a_job_that_is_due_and_has_such_a_time(
    beat: Beat,
    app: Celery,
    sql: Sql,
    connection: Connection,
    caplog: pytest.LogCaptureFixture,
    times: dict[str, str],
) -> None:
    bad = make_job(sql, "scheduled", task="tests.add", max_attempts=3, **times)
    good = make_job(sql, "scheduled", task="tests.add", run_at="now")
    assert launches(beat, app, sql)
    assert jobs.get(connection, good).is_dispatched
    failed = jobs.get(connection, bad)
    assert (failed.state, failed.retried_by) == ("failed", None)
    assert failed.error is not None and "1 to 9999" in failed.error
    assert caplog.text.count(f"Job {bad} failed: its row") == 1
    assert jobs.listing(connection, Filter("default"))  # each can be read again


def test_a_job_in_a_lane_that_has_such_a_time(
    beat: Beat, app: Celery, sql: Sql, connection: Connection
) -> None:
    """The next in line gets the slot. Who submitted that one heard nothing of the other."""
    make_lane(sql, "l")
    bad = make_job(sql, task="tests.add", lane="l", due_at="infinity")
    good = pgbeat.submit("tests.add", lane="l", app=app)
    assert launches(beat, app, sql)
    assert jobs.get(connection, bad).state == "failed"
    assert jobs.get(connection, good.id).is_dispatched


@pytest.mark.parametrize(
    ("table", "column"),
    [
        ("schedules", "failures_from"),
        ("calendars", "created_at"),
        ("lanes", "paused_at"),
        ("templates", "updated_at"),
    ],
)
def test_such_a_time_is_refused(sql: Sql, table: str, column: str) -> None:
    make_schedule(sql)
    make_calendar(sql, weekdays=["sat"])
    make_lane(sql)
    make_template(sql)
    for time in ("infinity", "-infinity", "9999-12-31T23:59:59Z"):
        with pytest.raises(psycopg.errors.CheckViolation):
            sql(f"UPDATE pgbeat.{table} SET {column} = %s", time)


def nested(depth: int) -> dict[str, str]:
    """Returns values of columns of JSON that is nested so deeply."""
    deep = "[" * depth + "]" * depth
    of_objects = dict.fromkeys(("kwargs", "options", "metadata"), f'{{"x": {deep}}}')
    return of_objects | {"args": deep, "cursor": deep, "job_policy": f'{{"tags": {deep}}}'}


@pytest.mark.parametrize("column", ["args", "kwargs", "options", "metadata"])
def test_a_job_that_is_nested_too_deeply(
    beat: Beat, app: Celery, sql: Sql, connection: Connection, column: str
) -> None:
    of_column = {column: nested(2000)[column]}
    bad = make_job(sql, "scheduled", task="tests.add", run_at="now", **of_column)
    good = make_job(sql, "scheduled", task="tests.add", run_at="now")
    assert launches(beat, app, sql)
    assert jobs.get(connection, good).is_dispatched
    job = jobs.get(connection, bad)
    is_used = column != "metadata"
    if is_used and isinstance(getattr(job, column), TooDeep):  # by Python's version
        assert job.state == "failed"
        assert job.error is not None and "nested too deeply" in job.error
    assert view(job)[column] in (None, {})


@pytest.mark.parametrize("depth", [500, 2000])
@pytest.mark.parametrize("column", nested(1))
def test_a_schedule_that_is_nested_too_deeply(
    beat: Beat, app: Celery, sql: Sql, connection: Connection, column: str, depth: int
) -> None:
    of_column = {column: nested(depth)[column]}
    make_schedule(sql, "bad", due="-1 second", in_turn=True, **of_column)
    assert launches(beat, app, sql)
    row = schedules.get(connection, "bad")
    [(outcome, error)] = sql("SELECT outcome, error FROM pgbeat.ticks WHERE schedule = 'bad'")
    if column in ("metadata", "cursor"):
        assert outcome == "launched"
    elif isinstance(getattr(row, column), TooDeep):
        assert outcome == "failed" and "nested too deeply" in error


def test_a_next_time_that_is_out_of_range(beat: Beat, app: Celery, sql: Sql) -> None:
    last = "9999-12-29T23:59:59Z"
    make_schedule(sql, "bad", every="1 day", starts_at=last, jitter="1 day")
    assert launches(beat, app, sql)
