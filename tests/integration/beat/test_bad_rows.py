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
from tests.support.rows import (
    Sql,
    make_calendar,
    make_job,
    make_lane,
    make_schedule,
    make_template,
)
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
    """Of what is due, nothing else comes that maintenance must do: Postgres 16 can't subtract it."""
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
