"""Backfill: which due times of the past were not launched, and what becomes of them."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from uuid import uuid4

import pytest
from celery import Celery
from sqlalchemy import Connection

from pgbeat import Context, JobRequest, Launcher, Skip, launcher
from pgbeat.access.actors import Actor
from pgbeat.beat.verbs import control, missed
from pgbeat.beat.verbs.control import BackfillRun
from pgbeat.beat.verbs.missed import Missed
from pgbeat.broker.publishing.unit_of_work import UnitOfWork
from pgbeat.config import Settings
from pgbeat.errors import InvalidSchedule, NotFound
from pgbeat.schedules import model as schedules
from tests.support.rows import Sql, make_calendar, make_schedule, make_tick
from tests.support.schedulers import Beat

#: A Thursday.
START = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


#: Adds a schedule of each hour since `START`, due next in a while.
add = partial(make_schedule, starts_at=START, next_run="9999-01-01Z")


def tick(sql: Sql, hour: float, outcome: str, trigger: str = "timetable") -> None:
    """A decision that was made on a due time."""
    [(key,)] = sql("SELECT id FROM pgbeat.schedules")
    given = {"job_id": uuid4()} if outcome == "launched" else {}
    make_tick(sql, key, outcome, trigger=trigger, due_at=START + hour * HOUR, **given)


def found(connection: Connection, start: float = 0, end: float = 5) -> Missed:
    """What is missing from an hour to another."""
    row = schedules.get(connection, "s")
    return missed.find(connection, row, START + start * HOUR, START + end * HOUR)


def missing(connection: Connection, start: float = 0, end: float = 5) -> list[float]:
    """The same, in hours."""
    return [(moment - START) / HOUR for moment in found(connection, start, end).times]


def test_both_ends_of_the_period_belong_to_it(connection: Connection, sql: Sql) -> None:
    add(sql)
    assert missing(connection) == [0, 1, 2, 3, 4, 5]
    assert missing(connection, 0.5, 2.5) == [1, 2]
    assert missing(connection, -10, 0) == [0]


def test_what_was_launched_is_not_missing(connection: Connection, sql: Sql) -> None:
    add(sql)
    tick(sql, 1, "launched")
    tick(sql, 2, "launched", "backfill")
    tick(sql, 3, "skipped")
    tick(sql, 4, "failed")
    assert missing(connection) == [0, 3, 4, 5]
    assert found(connection).launched == 2


def test_a_launch_by_hand_makes_up_for_no_due_time(connection: Connection, sql: Sql) -> None:
    add(sql)
    tick(sql, 2, "launched", "manual")
    assert missing(connection, 1, 3) == [1, 2, 3]


def test_a_retry_launches_for_the_due_time_that_failed(connection: Connection, sql: Sql) -> None:
    add(sql)
    tick(sql, 1, "failed")
    tick(sql, 1.2, "failed", "retry")
    tick(sql, 1.6, "launched", "retry")
    tick(sql, 3, "failed")
    tick(sql, 3.2, "skipped", "retry")
    tick(sql, 4, "failed")
    tick(sql, 5, "launched")
    assert missing(connection) == [0, 2, 3, 4]


def test_what_is_to_be_retried_is_left_to_the_retry(connection: Connection, sql: Sql) -> None:
    add(sql, retry_count=2)
    tick(sql, 1, "failed")
    tick(sql, 1.2, "failed", "retry")
    assert missing(connection) == [0, 2, 3, 4, 5]
    assert found(connection).pending == 1
    sql("UPDATE pgbeat.schedules SET paused_at = now()")
    assert missing(connection) == [0, 1, 2, 3, 4, 5]


def test_what_is_due_and_not_decided_is_left_to_beat(connection: Connection, sql: Sql) -> None:
    add(sql, next_run=START + 3 * HOUR)
    assert missing(connection) == [0, 1, 2]
    assert found(connection).pending == 3
    sql(
        "UPDATE pgbeat.schedules SET next_run = %s, due_at = %s", START + 9 * HOUR, START + 2 * HOUR
    )
    assert missing(connection) == [0, 1]
    sql("UPDATE pgbeat.schedules SET enabled = false")
    assert missing(connection) == [0, 1, 2, 3, 4, 5]


def test_one_time_that_beat_has_not_seen_yet_is_left_to_it(
    connection: Connection, sql: Sql
) -> None:
    add(sql, every=None, once_at=START + HOUR, next_run=None)
    for last_run in (None, START):
        sql("UPDATE pgbeat.schedules SET last_run = %s", last_run)
        assert missing(connection) == []
    sql("UPDATE pgbeat.schedules SET last_run = now()")
    assert missing(connection) == [1]


def test_a_calendar_leaves_times_out(connection: Connection, sql: Sql) -> None:
    make_calendar(sql, "nights", windows=[{"from": "22:00", "to": "03:00"}])
    add(sql, calendar="nights")
    assert missing(connection) == [3, 4, 5]
    assert found(connection).excluded == 3


def test_a_window(connection: Connection, sql: Sql) -> None:
    add(sql, ends_at=START + 2 * HOUR)
    assert missing(connection, -5, 5) == [0, 1, 2]


def test_too_many_to_look_at(connection: Connection, sql: Sql) -> None:
    add(sql, every="1 second")
    with pytest.raises(InvalidSchedule, match="was due 1,036,801 times then, more than the 1,000,"):
        found(connection, 0, 12 * 24)


def fill(
    connection: Connection,
    app: Celery,
    times: list[datetime],
    is_over: Callable[[BackfillRun], bool] = lambda done: False,
) -> BackfillRun:
    unit = UnitOfWork(connection, Settings.load(app.conf), Actor("user:me"), app=lambda: app)
    return control.backfill(unit, "s", times, job_source="user_cli", is_over=is_over)


def outcomes(connection: Connection, app: Celery, end: float = 5) -> list[str]:
    """Launches what is missing; the outcomes."""
    return [tick.outcome for tick in fill(connection, app, found(connection, 0, end).times).ticks]


STATE = (
    "next_run, due_at, last_run, last_success, last_failure, retry_count, run_count, cursor, "
    "last_error, enabled, updated_at"
)


def test_launched_oldest_first_and_only_once(connection: Connection, app: Celery, sql: Sql) -> None:
    add(sql, kwargs='{"x": 40}', max_runs=1, min_interval="1 day", overlap="skip")
    tick(sql, 2, "launched")
    before = sql(f"SELECT {STATE} FROM pgbeat.schedules")
    assert outcomes(connection, app) == ["launched"] * 5
    row = schedules.get(connection, "s")
    wanted = [START + n * HOUR for n in (0, 1, 3, 4, 5)]
    assert sql(
        "SELECT due_at, job_id::text FROM pgbeat.ticks WHERE trigger = 'backfill' ORDER BY id"
    ) == [(due_at, row.job_id(due_at)) for due_at in wanted]
    assert sql(
        "SELECT due_at, job_source, created_by, kwargs FROM pgbeat.jobs ORDER BY due_at"
    ) == [(due_at, "user_cli", "user:me", {"x": 40}) for due_at in wanted]
    assert sql("SELECT count(*) FROM kombu_message") == [(5,)]
    assert sql(f"SELECT {STATE} FROM pgbeat.schedules") == before
    assert found(connection) == Missed([], 6, 0, 0)


def test_nothing_is_launched_once_it_is_over(connection: Connection, app: Celery, sql: Sql) -> None:
    add(sql)
    done = fill(connection, app, found(connection).times, lambda done: len(done.ticks) == 2)
    assert [tick.due_at for tick in done.ticks] == [START, START + HOUR]
    assert done.remaining == 4
    assert sql("SELECT count(*) FROM pgbeat.ticks") == [(2,)]
    assert missing(connection) == [2, 3, 4, 5]


def test_what_was_launched_meanwhile_is_left_alone(
    connection: Connection, app: Celery, sql: Sql
) -> None:
    add(sql)
    times = found(connection).times
    assert outcomes(connection, app, end=3) == ["launched"] * 4
    assert [tick.due_at for tick in fill(connection, app, times).ticks] == times[4:]


class Even(Launcher):
    """Launches for even hours, with the due time; fails once for the third."""

    task = "tests.note"
    is_broken = True

    def check_conditions(self, ctx: Context) -> bool | Skip:
        if ctx.due_at.hour == 3 and type(self).is_broken:
            raise RuntimeError("third")
        return ctx.due_at.hour % 2 == 0 or Skip("odd")

    def prepare_job_data(self, ctx: Context) -> JobRequest:
        ctx.cursor = "moved"
        return JobRequest(
            kwargs={"text": f"{ctx.due_at.astimezone(UTC):%H} {ctx.now > ctx.due_at}"}
        )


def test_a_launcher_is_asked_with_the_due_time_of_then(
    connection: Connection, app: Celery, sql: Sql
) -> None:
    launcher("even")(Even)
    add(sql, task=None, launcher="even", cursor='"as it was"', max_retries=2)
    Even.is_broken = True
    wanted = ["launched", "skipped", "launched", "failed", "launched", "skipped"]
    assert outcomes(connection, app) == wanted
    assert sql("SELECT kwargs->>'text' FROM pgbeat.jobs ORDER BY due_at") == [
        ("00 True",),
        ("02 True",),
        ("04 True",),
    ]
    assert sql("SELECT cursor, enabled, retry_count, last_error FROM pgbeat.schedules") == [
        ("as it was", True, 0, None)
    ]


def test_what_was_not_launched_is_decided_anew(
    connection: Connection, app: Celery, sql: Sql
) -> None:
    launcher("even")(Even)
    add(sql, task=None, launcher="even")
    Even.is_broken = True
    assert outcomes(connection, app).count("failed") == 1
    Even.is_broken = False
    assert missing(connection) == [1, 3, 5]
    assert outcomes(connection, app) == ["skipped"] * 3
    assert sql("SELECT outcome, count(*) FROM pgbeat.ticks GROUP BY 1 ORDER BY 1") == [
        ("launched", 3),
        ("skipped", 3),
    ]


def test_a_task_that_is_not_there_fails(connection: Connection, app: Celery, sql: Sql) -> None:
    add(sql, task="tests.ad")
    [tick] = fill(connection, app, [START]).ticks
    assert tick.outcome == "failed"
    assert "did you mean 'tests.add'?" in str(tick.error)


def test_a_schedule_that_is_removed_meanwhile(
    connection: Connection, app: Celery, sql: Sql
) -> None:
    add(sql)
    times = found(connection).times
    with pytest.raises(NotFound, match="there is no schedule 's'"):
        fill(connection, app, times, lambda done: bool(sql("DELETE FROM pgbeat.schedules")))


def test_beat_launches_none_of_it_again(
    connection: Connection, app: Celery, beat: Beat, sql: Sql
) -> None:
    add(sql, next_run=START + 3 * HOUR, ends_at=START + 5 * HOUR)
    assert outcomes(connection, app) == ["launched"] * 3
    assert beat().run_due() >= 1
    assert sql(
        "SELECT trigger, due_at, missed FROM pgbeat.ticks WHERE outcome = 'launched' ORDER BY id"
    ) == [
        *(("backfill", START + n * HOUR, 0) for n in range(3)),
        ("timetable", START + 5 * HOUR, 2),
    ]
    # What beat made up for with one launch may be launched after all.
    assert missing(connection) == [3, 4]
