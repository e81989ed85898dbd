"""The timeline: which schedules it shows, what they did, and what is due next."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Connection

from pgbeat.errors import InvalidInput
from pgbeat.monitoring import timeline as timelines
from pgbeat.monitoring.timeline import ScheduleTimeline, Timeline
from tests.support.rows import (
    Sql,
    make_calendar,
    make_execution,
    make_job,
    make_schedule,
    make_tick,
)

PATIENCE = timedelta(seconds=30)
HOUR = timedelta(hours=1)


@pytest.fixture
def ago(sql: Sql) -> Callable[[float], datetime]:
    """Returns the time so many minutes ago."""
    [(now,)] = sql("SELECT now()")
    return lambda minutes: now.astimezone(UTC) - timedelta(minutes=minutes)


def draw(connection: Connection, **options: Any) -> Timeline:
    return timelines.timeline(connection, "default", "UTC", PATIENCE, **options)


def only(found: Timeline) -> ScheduleTimeline:
    [row] = found.rows
    return row


def make_run(
    sql: Sql,
    key: int,
    begin: datetime,
    end: datetime | None = None,
    state: str = "completed",
    **values: Any,
) -> UUID:
    """An execution of a job of the schedule."""
    job = make_job(
        sql,
        state if end else "running",
        schedule_id=key,
        created_at=begin,
        started_at=begin,
        finished_at=end,
    )
    given = {"schedule_id": key, "started_at": begin, "finished_at": end, **values}
    make_execution(sql, job, state if end else "running", **given)
    return UUID(job)


def decide(sql: Sql, key: int, at: datetime, outcome: str, said: str) -> None:
    """Writes a tick that is due and decided at that time."""
    why = {"reason" if outcome == "skipped" else "error": said}
    make_tick(sql, key, outcome, due_at=at, decided_at=at, **why)


# -- the past


def test_runs_skips_and_failures_are_pieces(connection: Connection, sql: Sql, ago: Any) -> None:
    key = make_schedule(sql, task="jobs.add")
    run = make_run(sql, key, ago(30), ago(29))
    make_run(sql, key, ago(20), ago(19), "failed", error="ValueError: no\nmore")
    going = make_run(sql, key, ago(5))
    decide(sql, key, ago(15), "skipped", "no work")
    decide(sql, key, ago(10), "failed", "no table")
    row = only(draw(connection))
    found = {each.kind: each for each in row.pieces}
    assert set(found) == {"completed", "failed", "running", "skipped", "not_launched"}
    assert (found["completed"].job_id, found["running"].job_id) == (run, going)
    assert found["completed"].end == ago(29)
    assert found["running"].end is None
    assert (found["skipped"].said, found["not_launched"].said) == ("no work", "no table")
    assert found["skipped"].end == ago(15)
    assert found["failed"].said == "ValueError: no\nmore"


def test_a_run_from_before_the_span_is_there_if_it_reaches_into_it(
    connection: Connection, sql: Sql, ago: Any
) -> None:
    key = make_schedule(sql, task="jobs.add")
    make_run(sql, key, ago(120), ago(100))
    into = make_run(sql, key, ago(90), ago(30))
    still = make_run(sql, key, ago(80))
    found = only(draw(connection)).pieces
    assert {each.job_id for each in found} == {into, still}


def test_jobs_that_wait_and_jobs_that_never_began(
    connection: Connection, sql: Sql, ago: Any
) -> None:
    key = make_schedule(sql, task="jobs.add")
    waits = make_job(sql, "pending", schedule_id=key, created_at=ago(3))
    ended = make_job(
        sql, "failed", schedule_id=key, created_at=ago(9), finished_at=ago(8), error="expired"
    )
    found = {each.kind: each for each in only(draw(connection)).pieces}
    assert (str(found["waiting"].job_id), found["waiting"].end) == (waits, None)
    assert (str(found["failed"].job_id), found["failed"].begin) == (ended, ago(8))


def test_what_is_alike_and_close_together_is_one_piece(
    connection: Connection, sql: Sql, ago: Any
) -> None:
    key = make_schedule(sql, task="jobs.add")
    for minutes in (30, 29.99, 20):
        make_run(sql, key, ago(minutes), ago(minutes - 0.005))
    found = [each.number for each in only(draw(connection, span="1w")).pieces]
    assert found == [3]
    assert sum(each.number for each in only(draw(connection)).pieces) == 3


def test_of_a_long_history_the_newest_and_all_failures(
    connection: Connection, sql: Sql, ago: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timelines, "MOST", 3)
    key = make_schedule(sql, task="jobs.add")
    make_run(sql, key, ago(40), ago(39), "failed")
    for minutes in (35, 30, 20, 10):
        make_run(sql, key, ago(minutes), ago(minutes - 1))
    row = only(draw(connection))
    assert row.complete_since == ago(30)
    assert [(each.kind, each.number) for each in row.pieces if each.kind == "failed"] == [
        ("failed", 1)
    ]
    assert sum(each.number for each in row.pieces if each.kind == "completed") == 3


# -- the future


def test_what_is_due_is_certain_or_not_or_known_to_be_skipped(
    connection: Connection, sql: Sql
) -> None:
    make_calendar(sql, "never", weekdays=["mon-sun"])
    every = {"cron": None, "every": "4 minutes", "task": "jobs.add"}
    make_schedule(sql, "a", **every)
    make_schedule(sql, "b", **every, condition_sql="SELECT true")
    make_schedule(sql, "c", **every, calendar="never")
    make_schedule(sql, "d", **every, paused_at="now")
    found = {row.schedule.name: row.coming for row in draw(connection).rows}
    assert [each.is_certain for each in found["a"]] == [True] * len(found["a"])
    assert 3 <= len(found["a"]) <= 4
    assert not any(each.is_certain for each in found["b"])
    assert all("calendar 'never'" in str(each.skip) for each in found["c"])
    assert found["c"]
    assert found["d"] == []


def test_more_is_due_than_is_listed(connection: Connection, sql: Sql) -> None:
    make_schedule(sql, "s", cron=None, every="1 second", task="jobs.add")
    row = only(draw(connection))
    assert (len(row.coming), row.has_more_coming) == (timelines.MOST_COMING, True)


def test_a_timetable_that_bypassed_the_checks_spoils_only_its_row(
    connection: Connection, sql: Sql
) -> None:
    sql("ALTER TABLE pgbeat.schedules DISABLE TRIGGER USER")
    make_schedule(sql, "bad", task="jobs.add", timezone="Mars/Base")
    make_schedule(sql, "good", task="jobs.add", cron="* * * * *")
    bad, good = draw(connection).rows
    assert (bad.coming, "Mars/Base" in str(bad.trouble)) == ([], True)
    assert good.coming


# -- which schedules


def test_those_that_fail_or_are_late_come_first_then_those_that_run(
    connection: Connection, sql: Sql, ago: Any
) -> None:
    for number in range(6):
        make_schedule(sql, f"a{number}", task="jobs.add")
    running = make_schedule(sql, "x-running", task="jobs.add")
    failing = make_schedule(sql, "y-failing", task="jobs.add")
    make_schedule(sql, "z-late", task="jobs.add", next_run=ago(10))
    make_run(sql, running, ago(1))
    make_run(sql, failing, ago(5), ago(4), "failed")
    found = draw(connection, limit=4)
    names = [row.schedule.name for row in found.rows]
    assert names[:3] == ["y-failing", "z-late", "x-running"]
    assert (len(names), found.has_more) == (4, True)
    assert [row.health.code for row in found.rows[:2]] == ["failing", "late"]


def test_a_stale_one_comes_before_others(connection: Connection, sql: Sql) -> None:
    for number in range(3):
        make_schedule(sql, f"a{number}", task="jobs.add")
    make_schedule(sql, "y-stale", task="jobs.add", fresh_within="1 hour", stale_since="now")
    assert only(draw(connection, limit=1)).health.code == "stale"


def test_a_failing_one_is_found_behind_those_that_recovered(
    connection: Connection, sql: Sql, ago: Any
) -> None:
    for number in range(3):
        recovered = make_schedule(sql, f"a{number}", task="jobs.add")
        make_run(sql, recovered, ago(5), ago(4), "failed")
        make_run(sql, recovered, ago(3), ago(2))
    failing = make_schedule(sql, "y-failing", task="jobs.add", next_run=ago(-10))
    make_run(sql, failing, ago(130), ago(129), "failed")
    assert only(draw(connection, limit=1)).schedule.name == "y-failing"
    for number in range(3):
        make_schedule(sql, f"z-late{number}", task="jobs.add", next_run=ago(10))
    assert only(draw(connection, limit=1)).health.code == "late"


def test_a_schedule_that_gave_up_is_failing(connection: Connection, sql: Sql) -> None:
    make_schedule(
        sql,
        "s",
        task="jobs.add",
        enabled=False,
        retry_count=5,
        max_retries=5,
        last_error="no table",
        disabled_reason="failed 5 times",
    )
    row = only(draw(connection))
    assert (row.health.code, row.health.severity) == ("launch_failing", "fail")


def test_others_are_found_by_their_names(connection: Connection, sql: Sql) -> None:
    for name in ("one", "two", "three"):
        make_schedule(sql, name, task="jobs.add")
    make_schedule(sql, "other-one", task="jobs.add", namespace="elsewhere")
    found = draw(connection, search="ONE")
    assert [row.schedule.name for row in found.rows] == ["one"]
    assert draw(connection, search="nothing").rows == []


def test_an_unknown_span_is_refused(connection: Connection) -> None:
    with pytest.raises(InvalidInput) as refused:
        draw(connection, span="2h")
    assert refused.value.problems[0].field == "span"
