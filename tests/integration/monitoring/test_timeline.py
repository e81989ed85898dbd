"""The timeline: which schedules it shows, what they did, and what is due next."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Connection

from pgbeat.errors import InvalidInput
from pgbeat.monitoring import timeline as timelines
from pgbeat.monitoring.timeline import ScheduleTimeline, Timeline
from tests.support import rows
from tests.support.rows import Sql, make_calendar, make_job, make_run, make_tick

PATIENCE = timedelta(seconds=30)
Draw = Callable[..., Timeline]
#: Adds a schedule of each hour, that nothing launches.
make_schedule = partial(rows.make_schedule, task="jobs.add")


@pytest.fixture
def ago(sql: Sql) -> Callable[[float], datetime]:
    """Returns the time so many minutes ago."""
    [(now,)] = sql("SELECT now()")
    return lambda minutes: now.astimezone(UTC) - timedelta(minutes=minutes)


@pytest.fixture
def draw(connection: Connection) -> Draw:
    """Draws the timeline of the test's database."""
    return partial(timelines.timeline, connection, "default", "UTC", PATIENCE)


def only(found: Timeline) -> ScheduleTimeline:
    [row] = found.rows
    return row


def decide(sql: Sql, key: int, at: datetime, outcome: str, said: str) -> None:
    """Writes a tick that is due and decided at that time."""
    why = {"reason" if outcome == "skipped" else "error": said}
    make_tick(sql, key, outcome, due_at=at, decided_at=at, **why)


def test_runs_skips_and_failures_are_pieces(draw: Draw, sql: Sql, ago: Any) -> None:
    key = make_schedule(sql)
    run = make_run(sql, key, ago(30), ago(29))
    make_run(sql, key, ago(20), ago(19), "failed", error="ValueError: no\nmore")
    going = make_run(sql, key, ago(5))
    decide(sql, key, ago(15), "skipped", "no work")
    decide(sql, key, ago(10), "failed", "no table")
    row = only(draw())
    found = {each.kind: each for each in row.pieces}
    assert set(found) == {"completed", "failed", "running", "skipped", "not_launched"}
    assert [str(found[kind].job_id) for kind in ("completed", "running")] == [run, going]
    assert found["completed"].end == ago(29)
    assert found["running"].end is None
    assert (found["skipped"].said, found["not_launched"].said) == ("no work", "no table")
    assert found["skipped"].end == ago(15)
    assert found["failed"].said == "ValueError: no\nmore"


def test_a_run_from_before_the_span_is_there_if_it_reaches_into_it(
    draw: Draw, sql: Sql, ago: Any
) -> None:
    key = make_schedule(sql)
    make_run(sql, key, ago(120), ago(100))
    into = make_run(sql, key, ago(90), ago(30))
    still = make_run(sql, key, ago(80))
    found = only(draw()).pieces
    assert {str(each.job_id) for each in found} == {into, still}


def test_jobs_that_wait_and_jobs_that_never_began(draw: Draw, sql: Sql, ago: Any) -> None:
    key = make_schedule(sql)
    waits = make_job(sql, "pending", schedule_id=key, created_at=ago(3))
    ended = make_job(
        sql, "failed", schedule_id=key, created_at=ago(9), finished_at=ago(8), error="expired"
    )
    found = {each.kind: each for each in only(draw()).pieces}
    assert (str(found["waiting"].job_id), found["waiting"].end) == (waits, None)
    assert (str(found["failed"].job_id), found["failed"].begin) == (ended, ago(8))


def test_what_is_alike_and_close_together_is_one_piece(draw: Draw, sql: Sql, ago: Any) -> None:
    key = make_schedule(sql)
    for minutes in (30, 29.99, 20):
        make_run(sql, key, ago(minutes), ago(minutes - 0.005))
    found = [each.number for each in only(draw(span="1w")).pieces]
    assert found == [3]
    assert sum(each.number for each in only(draw()).pieces) == 3


def test_of_a_long_history_the_newest_and_all_failures(
    draw: Draw, sql: Sql, ago: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timelines, "MOST", 3)
    key = make_schedule(sql)
    make_run(sql, key, ago(40), ago(39), "failed")
    for minutes in (35, 30, 20, 10):
        make_run(sql, key, ago(minutes), ago(minutes - 1))
    row = only(draw())
    assert row.complete_since == ago(30)
    assert [(each.kind, each.number) for each in row.pieces if each.kind == "failed"] == [
        ("failed", 1)
    ]
    assert sum(each.number for each in row.pieces if each.kind == "completed") == 3


def test_what_is_due_is_certain_or_not_or_known_to_be_skipped(draw: Draw, sql: Sql) -> None:
    make_calendar(sql, "never", weekdays=["mon-sun"])
    every = {"cron": None, "every": "4 minutes"}
    make_schedule(sql, "a", **every)
    make_schedule(sql, "b", **every, condition_sql="SELECT true")
    make_schedule(sql, "c", **every, calendar="never")
    make_schedule(sql, "d", **every, paused_at="now")
    found = {row.schedule.name: row.coming for row in draw().rows}
    assert [each.is_certain for each in found["a"]] == [True] * len(found["a"])
    assert 3 <= len(found["a"]) <= 4
    assert not any(each.is_certain for each in found["b"])
    assert all("calendar 'never'" in str(each.skip) for each in found["c"])
    assert found["c"]
    assert found["d"] == []


def test_more_is_due_than_is_listed(draw: Draw, sql: Sql) -> None:
    make_schedule(sql, "s", cron=None, every="1 second")
    row = only(draw())
    assert (len(row.coming), row.has_more_coming) == (timelines.MOST_COMING, True)


def test_a_timetable_that_bypassed_the_checks_spoils_only_its_row(draw: Draw, sql: Sql) -> None:
    sql("ALTER TABLE pgbeat.schedules DISABLE TRIGGER USER")
    make_schedule(sql, "bad", timezone="Mars/Base")
    make_schedule(sql, "good", cron="* * * * *")
    bad, good = draw().rows
    assert (bad.coming, "Mars/Base" in str(bad.trouble)) == ([], True)
    assert good.coming


def test_those_that_fail_or_are_late_come_first_then_those_that_run(
    draw: Draw, sql: Sql, ago: Any
) -> None:
    for number in range(6):
        make_schedule(sql, f"a{number}")
    running = make_schedule(sql, "x-running")
    failing = make_schedule(sql, "y-failing")
    make_schedule(sql, "z-late", next_run=ago(10))
    make_run(sql, running, ago(1))
    make_run(sql, failing, ago(5), ago(4), "failed")
    found = draw(limit=4)
    names = [row.schedule.name for row in found.rows]
    assert names[:3] == ["y-failing", "z-late", "x-running"]
    assert (len(names), found.has_more) == (4, True)
    assert [row.health.code for row in found.rows[:2]] == ["failing", "late"]


def test_a_stale_one_comes_before_others(draw: Draw, sql: Sql) -> None:
    for number in range(3):
        make_schedule(sql, f"a{number}")
    make_schedule(sql, "y-stale", fresh_within="1 hour", stale_since="now")
    assert only(draw(limit=1)).health.code == "stale"


def test_a_failing_one_is_found_behind_those_that_recovered(draw: Draw, sql: Sql, ago: Any) -> None:
    for number in range(3):
        recovered = make_schedule(sql, f"a{number}")
        make_run(sql, recovered, ago(5), ago(4), "failed")
        make_run(sql, recovered, ago(3), ago(2))
    failing = make_schedule(sql, "y-failing", next_run=ago(-10))
    make_run(sql, failing, ago(130), ago(129), "failed")
    assert only(draw(limit=1)).schedule.name == "y-failing"
    for number in range(3):
        make_schedule(sql, f"z-late{number}", next_run=ago(10))
    assert only(draw(limit=1)).health.code == "late"


def test_a_schedule_that_gave_up_is_failing(draw: Draw, sql: Sql) -> None:
    failed: Any = {"retry_count": 5, "max_retries": 5, "last_error": "no table"}
    make_schedule(sql, enabled=False, disabled_reason="failed 5 times", **failed)
    row = only(draw())
    assert (row.health.code, row.health.severity) == ("launch_failing", "fail")


def test_others_are_found_by_their_names(draw: Draw, sql: Sql) -> None:
    for name in ("one", "two", "three"):
        make_schedule(sql, name)
    make_schedule(sql, "other-one", namespace="elsewhere")
    found = draw(search="ONE")
    assert [row.schedule.name for row in found.rows] == ["one"]
    assert draw(search="nothing").rows == []


def test_an_unknown_span_is_refused(draw: Draw) -> None:
    with pytest.raises(InvalidInput) as refused:
        draw(span="2h")
    assert refused.value.problems[0].field == "span"
