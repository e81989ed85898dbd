"""Policies, each in the words of docs/reference/policies.md, on a clock that the tests set."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from celery import Celery
from sqlalchemy import Connection

from pgbeat import JobRequest, Skip
from pgbeat.beat.verbs.missed import find
from pgbeat.schedules import model as schedules
from pgbeat.schedules.forecast import of_schedule
from tests.support.command_line import run_with
from tests.support.launchers import register
from tests.support.rows import Sql, make_calendar
from tests.support.schedulers import HOUR, START, At, add, down, hours, row


def test_launches_are_never_closer_than_the_minimum_interval(sql: Sql, at: At) -> None:
    add(sql, every="1 minute", min_interval="10 minutes")
    scheduler = at()
    ticks = scheduler.run_until(START + HOUR)
    launched = [tick.due_at for tick in ticks if tick.outcome == "launched"]
    assert [(t - START) / timedelta(minutes=1) for t in launched] == [1, 11, 21, 31, 41, 51]
    assert ticks[1].reason == "launched 1 min ago, and min_interval is 10 min"


def test_retries_come_after_base_times_factor_to_the_n(sql: Sql, at: At) -> None:
    add(
        sql,
        task="tests.gone",
        every="100 days",
        retry_base="1 minute",
        retry_factor=3,
        retry_cap="20 minutes",
        max_retries=4,
        next_run=START,
    )
    scheduler = at()
    scheduler.run_until(START + 24 * HOUR)
    minutes = [(tick.due_at - START) / timedelta(minutes=1) for tick in scheduler.ticks]
    assert minutes == [0, 3, 12, 32]
    enabled, reason = row(sql, "enabled, disabled_reason")
    assert not enabled
    assert reason.startswith("failed 4 times in a row; last: task 'tests.gone' is not registered")


@pytest.mark.parametrize(
    ("catch_up", "due", "missed"),
    [
        ("latest", [1, 1.5, 2.5, 4.5, 5], [0, 0, 1, 2, 0]),
        ("all", [1, 1.5, 2.5, 4.5, 2, 3, 4, 5], [0] * 8),
    ],
)
def test_what_falls_due_while_it_is_in_retry(
    sql: Sql, at: At, connection: Connection, catch_up: str, due: list[float], missed: list[int]
) -> None:
    sql("CREATE TABLE divisor AS SELECT 0 AS n")
    add(
        sql,
        condition_sql="SELECT 1 / n FROM divisor",
        catch_up=catch_up,
        max_retries=9,
        retry_base="15 minutes",
        retry_cap="1 day",
    )
    scheduler = at()
    scheduler.run_until(START + 4 * HOUR)
    sql("UPDATE divisor SET n = 1")
    scheduler.run_until(START + 5 * HOUR)
    assert hours(scheduler.ticks) == due
    assert [tick.missed for tick in scheduler.ticks] == missed
    # The retry is for the time that failed; a backfill leaves out what was launched.
    ends = sql("SELECT coalesce(interval_end, due_at) FROM pgbeat.jobs ORDER BY 1")
    assert (START + HOUR,) in ends
    left = find(connection, schedules.get(connection, "s"), START + HOUR, START + 5 * HOUR).times
    assert sorted([*left, *(end for (end,) in ends)]) == [START + n * HOUR for n in range(1, 6)]


@pytest.mark.parametrize("catch_up", ["latest", "all"])
def test_a_retry_still_comes_after_a_launch_by_hand(
    sql: Sql, at: At, app: Celery, catch_up: str
) -> None:
    sql("CREATE TABLE divisor AS SELECT 0 AS n")
    condition = "SELECT 1 / n FROM divisor"
    add(sql, cron="0 * * * *", condition_sql=condition, catch_up=catch_up)
    scheduler = at()
    scheduler.run_until(START + HOUR)
    sql("UPDATE divisor SET n = 1")
    assert run_with(app, "trigger", "s").exit_code == 0
    assert row(sql, "retry_count") == (1,)
    scheduler.run_until(START + 2 * HOUR)
    assert [(tick.trigger, tick.outcome) for tick in scheduler.ticks] == [
        ("timetable", "failed"),
        ("retry", "launched"),
        ("timetable", "launched"),
    ]
    assert sql("SELECT due_at FROM pgbeat.jobs WHERE trigger = 'retry'") == [(START + HOUR,)]
    assert row(sql, "retry_count, run_count") == (0, 2)


FAILING = {"condition_sql": "SELECT 1 / 0", "catch_up": "all"}


@pytest.mark.parametrize(
    "changes",
    [["paused_at = now()", "paused_at = NULL"], ["every = NULL, cron = '0 * * * *'"]],
    ids=["resumed", "another timetable"],
)
def test_what_is_computed_afresh_is_no_retry(sql: Sql, at: At, changes: list[str]) -> None:
    add(sql, **FAILING)
    scheduler = at()
    scheduler.run_until(START + HOUR)
    for change in ["condition_sql = NULL", *changes]:
        sql(f"UPDATE pgbeat.schedules SET {change}")
    assert hours(down(scheduler, "4h 30m")) == [2, 3, 4, 5]


@pytest.mark.parametrize("also", ["", ", condition_sql = NULL"])
def test_a_retry_that_somebody_moves_is_of_the_same_due_time(sql: Sql, at: At, also: str) -> None:
    add(sql, **FAILING, retry_base="5 hours", retry_cap="1 day")
    scheduler = at()
    scheduler.run_until(START + HOUR)
    scheduler.advance("2h 30m")
    if not also:
        sql("UPDATE pgbeat.schedules SET condition_sql = NULL")
    sql(f"UPDATE pgbeat.schedules SET next_run = %s{also}", scheduler.now)
    scheduler.run_due()
    assert hours(scheduler.ticks) == [1, 3.5, 2, 3]
    assert sql("SELECT trigger FROM pgbeat.jobs WHERE due_at = %s", START + HOUR) == [("retry",)]


def test_a_disabled_schedule_is_probed(sql: Sql, at: At) -> None:
    add(
        sql,
        condition_sql="SELECT 1 / n FROM divisor",
        max_retries=2,
        retry_base="0",
        retry_cap="0",
        probe_after="3 hours",
        next_run=START,
    )
    sql("CREATE TABLE divisor AS SELECT 0 AS n")
    scheduler = at()
    scheduler.run_due()
    assert row(sql, "enabled, probe_at") == (False, START + 3 * HOUR)
    # One more failure disables it again.
    scheduler.run_until(START + 4 * HOUR)
    assert row(sql, "enabled, probe_at, retry_count") == (False, START + 6 * HOUR, 2)
    sql("UPDATE divisor SET n = 1")
    scheduler.run_until(START + 6 * HOUR)
    assert row(sql, "enabled, probe_at, retry_count, next_run") == (True, None, 0, START + 7 * HOUR)
    assert [tick.outcome for tick in scheduler.ticks] == ["failed"] * 3 + ["launched"]
    assert sql("SELECT due_at FROM pgbeat.jobs") == [(START,)]


def test_what_a_person_disables_is_not_probed(sql: Sql, at: At) -> None:
    add(sql, probe_after="1 hour")
    sql("UPDATE pgbeat.schedules SET enabled = false")
    assert at().run_until(START + 24 * HOUR) == []


@pytest.mark.parametrize(
    ("values", "due"),
    [
        ({"starts_at": START + 3 * HOUR, "ends_at": START + 5 * HOUR}, [3, 4, 5]),
        ({"once_at": START + 2 * HOUR, "starts_at": None}, [2]),
        ({"once_at": START + 2 * HOUR, "ends_at": START + HOUR}, [0]),  # skipped
    ],
)
def test_it_is_due_within_its_window_and_then_complete(
    sql: Sql, at: At, values: dict[str, Any], due: list[int]
) -> None:
    add(sql, **values)
    scheduler = at()
    scheduler.run_until(START + 24 * HOUR)
    assert hours(scheduler.ticks) == due
    completed = (False, True, "its timetable has no time left")
    assert row(sql, "enabled, completed_at IS NOT NULL, disabled_reason") == completed


def test_it_is_complete_after_so_many_launches(sql: Sql, at: At) -> None:
    add(sql, max_runs=3)
    scheduler = at()
    scheduler.run_until(START + 24 * HOUR)
    assert hours(scheduler.ticks) == [1, 2, 3]
    assert row(sql, "enabled, completed_at IS NOT NULL, disabled_reason, run_count") == (
        False,
        True,
        "launched 3 times (max_runs)",
        3,
    )
    sql("UPDATE pgbeat.schedules SET enabled = true")
    assert row(sql, "completed_at, disabled_reason") == (None, None)
    scheduler.run_until(START + 48 * HOUR)
    assert hours(scheduler.ticks) == [1, 2, 3, 25, 26, 27]


def test_a_limit_that_is_lowered_holds_at_once(sql: Sql, at: At) -> None:
    add(sql, max_runs=5)
    scheduler = at()
    scheduler.run_until(START + 3 * HOUR)
    sql("UPDATE pgbeat.schedules SET max_runs = 2")
    scheduler.run_until(START + 24 * HOUR)
    assert [tick.outcome for tick in scheduler.ticks] == ["launched"] * 3 + ["skipped"]
    said = "launched 3 times (max_runs)"
    assert scheduler.ticks[-1].reason == said
    assert row(sql, "completed_at IS NOT NULL, disabled_reason") == (True, said)


def test_a_launcher_snoozes_no_longer_than_its_window(sql: Sql, at: At) -> None:
    register("tests.snoozes", lambda ctx: Skip("not now", snooze=timedelta(minutes=25)))
    add(sql, launcher="tests.snoozes", task=None, ends_at=START + 2 * HOUR)
    scheduler = at()
    scheduler.run_until(START + 24 * HOUR)
    assert [round(60 * hour) for hour in hours(scheduler.ticks)] == [60, 85, 110]
    assert row(sql, "completed_at IS NOT NULL") == (True,)


def test_a_time_that_has_passed_already_is_late(sql: Sql, at: At) -> None:
    add(sql, "kept", once_at=START - HOUR, starts_at=None)
    add(sql, "late", once_at=START - HOUR, starts_at=None, catch_up="none")
    scheduler = at()
    scheduler.run_due()
    assert {(tick.schedule, tick.outcome) for tick in scheduler.ticks} == {
        ("kept", "launched"),
        ("late", "skipped"),
    }


def test_a_new_time_that_has_passed_already_is_late_too(sql: Sql, at: At) -> None:
    add(sql, once_at=START + HOUR, starts_at=None)
    scheduler = at()
    scheduler.run_until(START + 2 * HOUR)
    sql("UPDATE pgbeat.schedules SET once_at = %s, enabled = true", START + 5 * HOUR)
    scheduler.advance("4 hours")
    scheduler.run_due()
    assert hours(scheduler.ticks) == [1, 5]
    sql("UPDATE pgbeat.schedules SET enabled = true")
    scheduler.run_due()
    assert [tick.outcome for tick in scheduler.ticks] == ["launched", "launched", "skipped"]
    assert scheduler.ticks[-1].reason == "its timetable has no time left"


def test_jitter_puts_off_and_the_due_time_stays_known(sql: Sql, at: At) -> None:
    for n in range(20):
        add(sql, f"s{n}", jitter="10 minutes")
    scheduler = at()
    scheduler.run_due()
    put_off = sql("SELECT next_run - due_at, due_at FROM pgbeat.schedules")
    assert {due_at for _, due_at in put_off} == {START + HOUR}
    assert len({length for length, _ in put_off}) == 20
    assert all(timedelta(0) <= length <= timedelta(minutes=10) for length, _ in put_off)
    ticks = scheduler.run_until(START + 2 * HOUR + timedelta(minutes=10))
    assert sorted(hours(ticks)) == [1] * 20 + [2] * 20
    assert {tick.missed for tick in ticks} == {0}


def test_jitter_longer_than_the_interval_loses_nothing(sql: Sql, at: At) -> None:
    add(sql, every="1 minute", jitter="10 minutes")
    scheduler = at()
    ticks = scheduler.run_until(START + HOUR)
    assert len({tick.due_at for tick in ticks}) == len(ticks) >= 49
    assert {tick.missed for tick in ticks} == {0}


def test_a_launch_by_hand_while_no_beat_ran_makes_up_for_nothing(
    sql: Sql, at: At, app: Celery
) -> None:
    [(hour,)] = sql("SELECT date_trunc('hour', now())")
    add(sql, jitter="30 minutes", starts_at=hour - 24 * HOUR)
    scheduler = at(hour - 12 * HOUR)
    scheduler.run_until(hour - 9 * HOUR)
    before = len(scheduler.ticks)
    assert run_with(app, "trigger", "s").exit_code == 0
    scheduler.now = hour + timedelta(minutes=59)
    scheduler.run_due()
    [tick] = scheduler.ticks[before:]
    assert (tick.due_at, before + tick.missed + 1) == (hour, 12)


def test_a_persons_next_run_is_the_due_time(sql: Sql, at: At) -> None:
    add(sql, jitter="10 minutes")
    scheduler = at()
    scheduler.run_due()
    sql("UPDATE pgbeat.schedules SET next_run = %s", START)
    scheduler.run_due()
    assert hours(scheduler.ticks) == [0]


def test_what_a_calendar_excludes_is_skipped_with_its_reason(sql: Sql, at: At) -> None:
    make_calendar(sql, timezone="UTC", weekdays=["tue"])
    add(sql, calendar="office")
    scheduler = at(START + 10 * HOUR)
    scheduler.run_until(START + 13 * HOUR)
    assert [(tick.outcome, tick.reason) for tick in scheduler.ticks] == [
        ("launched", None),
        ("skipped", "calendar 'office': Tuesday"),
        ("skipped", "calendar 'office': Tuesday"),
    ]


def test_a_calendar_is_asked_about_the_due_time_that_failed(sql: Sql, at: At) -> None:
    sql("CREATE TABLE divisor AS SELECT 0 AS n")
    make_calendar(sql, timezone="UTC", weekdays=["tue"])
    add(sql, cron="59 23 * * *", calendar="office", condition_sql="SELECT 1 / n FROM divisor")
    scheduler = at()
    scheduler.run_until(START + 12 * HOUR)
    sql("UPDATE divisor SET n = 1")
    with scheduler._conditions.connect() as connection:
        known = schedules.get(connection, "s")
        timetable = scheduler._evaluator.timetable(known)
        expected = next(of_schedule(connection, known, timetable, START + 12 * HOUR, "UTC"))
    [tick] = scheduler.run_until(START + 13 * HOUR)
    assert (tick.trigger, tick.outcome, expected.skip) == ("retry", "launched", None)
    assert expected.at == tick.due_at


def test_a_launcher_snoozes_its_schedule(sql: Sql, at: At) -> None:
    snoozes: dict[str, tuple[Any, datetime]] = {
        "a while": (timedelta(minutes=7), START + timedelta(hours=1, minutes=7)),
        "until": (START + 3 * HOUR, START + 3 * HOUR),
        "at once": (timedelta(0), START + HOUR + timedelta(seconds=1)),
        "too long": (timedelta(days=400), START + HOUR + timedelta(days=1)),
        "not": (None, START + 2 * HOUR),
    }

    def check(ctx: Any) -> bool | Skip:
        snooze, _ = snoozes[ctx.schedule.name]
        return True if ctx.schedule.owner == "launches" else Skip("not now", snooze=snooze)

    def prepare(ctx: Any) -> JobRequest:
        return JobRequest(snooze=snoozes[ctx.schedule.name][0])

    register("tests.snoozes", check, prepare, task=None)
    for owner in ("launches", "skips"):
        for name in snoozes:
            add(sql, name, launcher="tests.snoozes", owner=owner)
        scheduler = at()
        scheduler.run_until(START + HOUR)
        assert dict(sql("SELECT name, next_run FROM pgbeat.schedules")) == {
            name: next_run for name, (_, next_run) in snoozes.items()
        }, owner
        scheduler.close()
        sql("DELETE FROM pgbeat.schedules")


def test_another_zone_of_the_app_computes_next_times_anew_and_floods_nothing(
    sql: Sql, at: At, app: Celery
) -> None:
    add(sql, "app's", cron="0 9 * * *")
    add(sql, "own", cron="0 9 * * *", timezone="Asia/Tokyo")
    add(sql, "elapsed", every="5 hours")
    first = at()
    first.run_due()
    before: dict[str, datetime] = dict(sql("SELECT name, next_run FROM pgbeat.schedules"))
    assert before["app's"] == START + 21 * HOUR
    first.close()
    app.conf.timezone = "America/New_York"
    del app.timezone
    scheduler = at()
    scheduler.run_due()
    assert scheduler.ticks == []
    after: dict[str, datetime] = dict(sql("SELECT name, next_run FROM pgbeat.schedules"))
    assert after == {**before, "app's": START + 2 * HOUR}


def test_apps_with_a_namespace_each_share_a_database(sql: Sql, at: At, app: Celery) -> None:
    add(sql)
    add(sql, namespace="other", kwargs='{"x": 5}')
    one = at()
    app.conf.pgbeat_namespace = "other"
    other = at()
    # Each is its own's leader.
    one.run_until(START + HOUR)
    other.run_until(START + 2 * HOUR)
    assert hours(one.ticks) == [1]
    assert hours(other.ticks) == [1, 2]
    launched = sql("SELECT due_at, kwargs FROM pgbeat.jobs ORDER BY due_at, kwargs::text")
    assert launched == [(START + HOUR, {"x": 5}), (START + HOUR, {}), (START + 2 * HOUR, {"x": 5})]
