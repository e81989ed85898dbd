"""Deadlines: a job that misses one is marked once, in the transaction in which that is seen."""

import json
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any

import pytest
from celery import Celery
from sqlalchemy import Connection

import pgbeat
from pgbeat.database import connections
from pgbeat.jobs.rows.filters import Filter
from pgbeat.jobs.rows.model import Job, listing
from pgbeat.jobs.states.deadlines import mark_late
from pgbeat.jobs.verbs import changes, control
from pgbeat.monitoring.metrics import counters
from pgbeat.storable import EARLIEST, LATEST
from tests.support.command_line import run
from tests.support.jobs import JobControl
from tests.support.rows import Sql, make_schedule, make_webhook
from tests.support.scrapes import scraped, value
from tests.support.threads import together

HOUR = timedelta(hours=1)


@pytest.fixture
def job_control(make_job_control: Callable[[], JobControl], sql: Sql) -> JobControl:
    make_webhook(sql, events=["job.late"])
    return make_job_control()


def events(sql: Sql) -> list[tuple[str, str]]:
    """Returns the deadline and the state of each event, the oldest first."""
    rows = sql("SELECT payload -> 'data' FROM pgbeat.deliveries ORDER BY payload ->> 'timestamp'")
    return [(data["deadline"], data["state"]) for (data,) in rows]


def look(job_control: JobControl) -> None:
    mark_late(job_control.connection, "default")


def pass_by(sql: Sql, seconds: float = 100) -> None:
    """Has all that happened to jobs have happened so long ago."""
    names = ["must_start_by", "must_end_by", "next_deadline", "started_at", "late_at"]
    changed = ", ".join(f"{each} = {each} - interval '{seconds} s'" for each in names)
    sql(f"UPDATE pgbeat.unfinished_jobs SET {changed}")


def ends(job_control: JobControl, job: Job, state: str = "completed", run: str = "") -> None:
    """Ends the job's execution, which begins now unless it is given."""
    job_control.tells(run or job_control.begins(job.id), job.id, state, ended=0)


def test_a_job_that_does_not_start_and_end_in_time_is_marked_once_for_each(
    job_control: JobControl, sql: Sql
) -> None:
    job = job_control.make(1, must_start_within=60, must_end_within=150)
    assert job.must_start_by == job.created_at + timedelta(seconds=60)
    assert job.must_end_by == job.created_at + timedelta(seconds=150)
    look(job_control)
    assert job_control.job(job) == job and events(sql) == []
    pass_by(sql)
    look(job_control)
    look(job_control)
    marked = job_control.job(job)
    assert (marked.state, marked.missed_deadlines) == ("pending", ["start"])
    assert marked.late_at is not None
    run = job_control.begins(job.id)  # a late job goes on
    pass_by(sql)
    look(job_control)
    look(job_control)
    assert job_control.job(job).missed_deadlines == ["start", "end"]
    ends(job_control, job, run=run)
    assert job_control.job(job).state == "completed"
    assert events(sql) == [("start", "pending"), ("end", "running")]
    assert sql("SELECT count(*) FROM pgbeat.unfinished_jobs WHERE next_deadline <= now()") == [(0,)]


def test_one_that_starts_and_ends_late_between_two_looks_is_marked_as_it_ends(
    job_control: JobControl, sql: Sql
) -> None:
    job = job_control.make(1, must_start_within=60, must_end_within=90)
    pass_by(sql)
    ends(job_control, job)
    found = job_control.job(job)
    assert (found.state, found.missed_deadlines) == ("completed", ["start", "end"])
    assert found.late_at is not None
    assert events(sql) == [("start", "completed"), ("end", "completed")]
    look(job_control)
    assert len(events(sql)) == 2


def test_one_that_is_in_time_is_not_marked(job_control: JobControl, sql: Sql) -> None:
    job = job_control.make(1, must_start_within=60, must_end_within=150)
    run = job_control.begins(job.id)
    pass_by(sql)
    look(job_control)  # past the first deadline, which it met
    assert job_control.job(job).late_at is None
    ends(job_control, job, run=run)
    found = job_control.job(job)
    assert (found.late_at, found.missed_deadlines) == (None, [])
    assert events(sql) == []


def test_a_retry_must_end_by_then_too_and_is_late_with_its_job(
    job_control: JobControl, sql: Sql
) -> None:
    first = job_control.make(
        1, must_start_within=60, must_end_within=90, max_attempts=3, retry_base=0
    )
    ends(job_control, first, "failed")
    second = job_control.job(first)._replace(id=job_control.job(first).retried_by)  # type: ignore[arg-type]
    found = job_control.job(second)
    assert (found.must_start_by, found.must_end_by) == (None, first.must_end_by)
    pass_by(sql)
    look(job_control)
    assert events(sql) == [("end", "scheduled")]
    ends(job_control, second, "failed")
    third = job_control.job(second._replace(id=job_control.job(second).retried_by))  # type: ignore[arg-type]
    assert third.missed_deadlines == ["end"]
    look(job_control)
    assert len(events(sql)) == 1
    ends(job_control, third, "failed")
    assert len(events(sql)) == 1
    again = job_control.do(
        control.retry, third, job_source="user_cli"
    )  # by hand it has time as any other
    assert (again.must_end_by, again.late_at) == (None, None)


def test_a_program_submits_jobs_with_deadlines(job_control: JobControl, app: Celery) -> None:
    for given in ({"must_start_within": 60}, {"must_end_within": "1 minute"}):
        job = pgbeat.submit("jobs.add", 1, app=app, **given)
        by = job.must_start_by or job.must_end_by
        assert by == job.created_at + timedelta(minutes=1)
        assert job_control.job(job) == job


def test_they_count_from_the_time_that_a_job_may_run(job_control: JobControl, sql: Sql) -> None:
    job = job_control.make(1, countdown=HOUR, must_start_within=60, must_end_within=90)
    assert job.run_at is not None
    assert job.must_start_by == job.run_at + timedelta(seconds=60)
    later = job_control.do(changes.update, job, values={"run_at": job.run_at + HOUR})
    assert later.must_start_by == job.must_start_by + HOUR
    assert sql("SELECT next_deadline = must_start_by FROM pgbeat.unfinished_jobs") == [(True,)]
    soon = job_control.do(changes.update, later, values={"run_at": None})
    assert soon.must_end_by == soon.created_at + timedelta(seconds=90)


def test_all_times_of_a_job_can_be_read(job_control: JobControl) -> None:
    """Beat fails a job of which one can't, as SQL may write it."""
    late = job_control.make(1, run_at=LATEST, must_start_within="1 day", must_end_within="1 day")
    assert (late.must_start_by, late.must_end_by) == (LATEST, LATEST)
    job = job_control.make(1, countdown=timedelta(days=1), must_end_within="36500 days")
    moved = job_control.do(changes.update, job, values={"run_at": LATEST})
    assert (moved.run_at, moved.must_end_by) == (LATEST, LATEST)
    early = datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14)))
    assert job_control.do(changes.update, job, values={"run_at": early}).run_at == EARLIEST


def test_a_row_that_is_locked_is_left_for_later(
    make_job_control: Callable[[], JobControl], job_control: JobControl, sql: Sql
) -> None:
    job = job_control.make(1, must_start_within=60)
    pass_by(sql)
    other = make_job_control()
    with connections.transaction(other.connection):
        other.connection.exec_driver_sql("SELECT FROM pgbeat.unfinished_jobs FOR UPDATE")
        look(job_control)
    assert job_control.job(job).late_at is None
    look(job_control)
    assert job_control.job(job).late_at is not None


def test_two_that_look_at_once_mark_once(
    make_job_control: Callable[[], JobControl], job_control: JobControl, sql: Sql
) -> None:
    for number in range(50):
        job_control.make(number, must_start_within=60)
    pass_by(sql)
    job_controls = [make_job_control(), make_job_control(), make_job_control()]
    together([partial(look, each) for each in job_controls])
    assert events(sql) == [("start", "pending")] * 50


def test_a_beat_that_takes_over_late_marks_what_waited_for_it(beat: Any, sql: Sql) -> None:
    policy = {"must_start_within": 60}
    key = make_schedule(sql, "s", task="jobs.add", args="[1]", every="1 day", job_policy=policy)
    sql("UPDATE pgbeat.schedules SET next_run = now() - interval '1 hour' WHERE id = %s", key)
    scheduler = beat()
    assert scheduler.run_due() == 1
    scheduler.run_due()
    [(late, missed)] = sql("SELECT late_at - due_at > '1 hour', missed_deadlines FROM pgbeat.jobs")
    assert late and missed == ["start"]


def test_lists_and_metrics_tell_of_them(
    job_control: JobControl, database: str, sql: Sql, connection: Connection
) -> None:
    job, other = job_control.make(1, must_start_within=60), job_control.make(2)
    pass_by(sql)
    look(job_control)
    assert [each.id for each in listing(connection, Filter(late=True))] == [job.id]
    assert [each.id for each in listing(connection, Filter(late=False))] == [other.id]
    listed = run(database, "jobs", "list", "--late", "--admin")
    assert "pending (late)" in listed.stdout and str(other.id) not in listed.stdout
    shown = run(database, "jobs", "show", str(job.id), "--admin").stdout
    assert "not started in time" in shown
    found = json.loads(run(database, "jobs", "list", "--late", "--admin", "--json").stdout)
    assert [each["missed_deadlines"] for each in found] == [["start"]]
    settings = job_control.settings
    scraped(connection, settings)
    sql(
        f"UPDATE pgbeat.jobs SET late_at = late_at - interval '{counters.LAG} s', "
        "created_at = created_at - interval '1 hour' "
        "WHERE late_at IS NOT NULL"
    )
    assert value(scraped(connection, settings), "pgbeat_jobs_late_total", deadline="start") == 1
    found = scraped(connection, settings)  # once
    assert value(found, "pgbeat_jobs_late_total", deadline="start") == 1
    assert value(found, "pgbeat_jobs_late_total", deadline="end") == 0
