"""The interval of a run: out of turn, the last that is complete, whatever says when it is due."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any

import pytest
from celery import Celery

from pgbeat import Context, JobRequest, Skip
from pgbeat.schedules import launchers
from pgbeat.schedules.ticks import Tick
from pgbeat.testing import Scheduler
from tests.support.command_line import run_with
from tests.support.launchers import register
from tests.support.rows import Sql, make_schedule
from tests.support.schedulers import At, end, row

#: When somebody wants a run: late in the afternoon of a Monday.
NOW = datetime(2030, 1, 7, 16, 18, tzinfo=UTC)
DAILY = {"cron": "0 2 * * *", "timezone": "UTC"}

#: A timetable, when somebody wants a run (UTC), the interval that it is for, and the next due time.
OUT_OF_TURN = {
    "cron": (DAILY, "01-07 16:18", "01-06 02:00", "01-07 02:00", "01-08 02:00"),
    "jitter": (DAILY | {"jitter": "1 hour"}, "01-07 16:18", "01-06 02:00", "01-07 02:00",
               "01-08 02:00"),
    "clocks go forward": ({"cron": "30 2 * * *", "timezone": "Europe/Oslo"}, "03-31 10:00",
                          "03-30 01:30", "03-31 01:00", "04-01 00:30"),
    "clocks go back": ({"cron": "30 2 * * *", "timezone": "Europe/Oslo"}, "10-27 01:45",
                       "10-26 00:30", "10-27 00:30", "10-28 01:30"),
    "every": ({"every": "6 hours", "starts_at": "2030-01-01Z"}, "01-07 16:18", "01-07 06:00",
              "01-07 12:00", "01-07 18:00"),
    "every other day": ({"every": "2 days", "starts_at": "2030-01-01 02:00 Europe/Oslo",
                         "timezone": "Europe/Oslo"}, "04-02 12:00", "03-30 01:00", "04-01 00:00",
                        "04-03 00:00"),
    "rrule": ({"rrule": "FREQ=WEEKLY;BYDAY=FR;BYHOUR=9;BYMINUTE=0;BYSECOND=0", "timezone": "UTC",
               "starts_at": "2029-01-01Z"}, "01-07 16:18", "2029-12-28 09:00", "01-04 09:00",
              "01-11 09:00"),
    "solar": ({"solar": "solar_noon 0 0"}, "01-07 16:18", "01-06 12:05:52", "01-07 12:06:18",
              "01-08 12:06:43"),
    "once": ({"once_at": "2030-01-07 02:00Z"}, "01-07 16:18", None, "01-07 02:00", None),
    "not due yet": (DAILY | {"starts_at": "2030-01-08Z"}, "01-07 16:18", None, "01-07 16:18",
                    "01-08 02:00"),
}  # fmt: skip
#: How somebody sets `next_run`.
IS_NEW = pytest.mark.parametrize("is_new", [False, True], ids=["UPDATE", "INSERT"])


def time(text: str | None) -> datetime | None:
    """Returns a time of 2030, unless it names a year."""
    if text is None:
        return None
    return datetime.fromisoformat(f"{text if text[4] == '-' else f'2030-{text}'}+00:00")


def ask(sql: Sql, moment: datetime | None = NOW) -> None:
    """Has the schedule run at a time that its timetable doesn't name."""
    sql("UPDATE pgbeat.schedules SET next_run = %s WHERE name = 's'", moment)


def decide(scheduler: Scheduler) -> list[Tick]:
    """Returns what is decided now."""
    del scheduler.ticks[:]
    scheduler.run_due()
    return list(scheduler.ticks)


def sent(sql: Sql) -> dict[str, Any]:
    """Returns the headers of the newest message."""
    [(payload,)] = sql("SELECT payload FROM kombu_message ORDER BY id DESC LIMIT 1")
    headers: dict[str, Any] = json.loads(payload)["headers"]
    return headers


def interval(headers: dict[str, Any]) -> Sequence[datetime | None]:
    """Returns the beginning and the end of the interval that a message names."""
    start = headers.get("pgbeat_interval_start")
    until = headers.get("pgbeat_interval_end") or headers["pgbeat_due_at"]
    return start and datetime.fromisoformat(start), datetime.fromisoformat(until)


def test_a_run_out_of_turn_is_for_the_last_complete_interval(sql: Sql, at: At) -> None:
    scheduler = at()
    for (case, values), is_new in product(OUT_OF_TURN.items(), (False, True)):
        timetable, asked, start, until, following = values
        moment = scheduler.now = time(asked)
        make_schedule(sql, next_run=moment if is_new else "9999-01-01Z", **timetable)
        if not is_new:
            ask(sql, moment)
        [tick] = decide(scheduler)
        assert (tick.trigger, tick.outcome, tick.due_at) == ("manual", "launched", moment), case
        assert interval(sent(sql)) == (time(start), time(until)), case
        [kept] = sql(
            "SELECT interval_start, coalesce(interval_end, due_at), trigger FROM pgbeat.jobs"
        )
        assert kept == (time(start), time(until), "manual"), case
        due = row(sql, "coalesce(due_at, next_run)")
        assert due == (time(following),), case
        if following is not None:  # what follows begins where it ended
            scheduler.run_until(row(sql, "next_run")[0])
            headers = sent(sql)
            begin = None if case == "not due yet" else time(until)
            assert (headers["pgbeat_trigger"], *interval(headers)) == ("timetable", begin, due[0])
        sql("DELETE FROM pgbeat.jobs")
        sql("DELETE FROM pgbeat.schedules")


def test_a_new_interval_may_begin_with_its_row(sql: Sql, at: At) -> None:
    """Intervals count from when the row was added, which is the first of them."""
    make_schedule(sql, due="0", in_turn=True)
    [(due_at,)] = sql("SELECT next_run FROM pgbeat.schedules")
    assert [(t.trigger, t.due_at) for t in decide(at(due_at))] == [("timetable", due_at)]


def test_a_trigger_is_for_the_last_complete_interval_and_so_are_its_retries(
    app: Celery, sql: Sql
) -> None:
    make_schedule(sql, cron="0 0 * * *", timezone="UTC", args="[1]")
    assert run_with(app, "trigger", "s").exit_code == 0
    headers = sent(sql)
    [(today,)] = sql("SELECT date_trunc('day', now(), 'UTC')")
    assert headers["pgbeat_trigger"] == "manual"
    assert interval(headers) == (today - timedelta(days=1), today)
    sql("UPDATE pgbeat.jobs SET state = 'failed', finished_at = now()")
    [(job,)] = sql("SELECT id FROM pgbeat.jobs")
    assert run_with(app, "jobs", "retry", str(job), "--admin").exit_code == 0
    again = sent(sql)
    assert again["id"] != headers["id"]
    assert interval(again) == interval(headers)


@IS_NEW
def test_the_time_of_the_timetable_itself_is_in_turn(sql: Sql, at: At, is_new: bool) -> None:
    """As to repeat one after a restored backup; and times that beat was down for."""
    make_schedule(sql, **DAILY, next_run=time("01-07 02:00") if is_new else None)
    if not is_new:
        ask(sql, time("01-07 02:00"))
    scheduler = at(NOW)
    assert [(t.trigger, t.due_at) for t in decide(scheduler)] == [
        ("timetable", time("01-07 02:00"))
    ]
    ask(sql)
    scheduler.now = NOW + timedelta(hours=12)
    [tick] = decide(scheduler)
    assert (tick.trigger, tick.due_at, tick.missed) == ("timetable", time("01-08 02:00"), 1)


def test_catch_up_all_runs_it_and_then_each_time_that_was_missed(sql: Sql, at: At) -> None:
    make_schedule(sql, **DAILY, catch_up="all")
    ask(sql)
    decided = decide(at(NOW + timedelta(days=2)))
    days = ["01-07 02:00", "01-08 02:00", "01-09 02:00"]
    assert [(tick.trigger, tick.due_at) for tick in decided] == [
        ("manual", NOW),
        *(("timetable", time(day)) for day in days[1:]),
    ]
    ends = sql("SELECT coalesce(interval_end, due_at) FROM pgbeat.jobs ORDER BY due_at")
    assert ends == [(time(day),) for day in days]


@pytest.mark.parametrize("overlap", ["queue_one", "buffer_all"])
def test_it_is_still_out_of_turn_after_it_waited(sql: Sql, at: At, overlap: str) -> None:
    make_schedule(sql, **DAILY, overlap=overlap)
    ask(sql, time("01-07 02:00"))
    scheduler = at(NOW)
    decide(scheduler)
    ask(sql)
    assert decide(scheduler) == []
    end(sql)
    [tick] = decide(scheduler)
    assert (tick.trigger, tick.due_at) == ("manual", NOW)
    assert interval(sent(sql)) == (time("01-06 02:00"), time("01-07 02:00"))
    assert row(sql, "next_run, out_of_turn") == (time("01-08 02:00"), False)


def test_the_retry_of_one_that_failed_is_for_the_same_interval(sql: Sql, at: At) -> None:
    make_schedule(sql, **DAILY, condition_sql="SELECT true FROM gone")
    ask(sql)
    scheduler = at(NOW)
    scheduler.run_until(NOW)
    assert [(tick.trigger, tick.outcome) for tick in scheduler.ticks] == [("manual", "failed")]
    sql("CREATE TABLE gone AS SELECT 1")
    scheduler.run_until(NOW + timedelta(minutes=10))
    assert [(t.trigger, t.outcome) for t in scheduler.ticks[1:]] == [("retry", "launched")]
    assert interval(sent(sql)) == (time("01-06 02:00"), time("01-07 02:00"))


def test_a_schedule_after_another_says_manual(sql: Sql, at: At) -> None:
    make_schedule(sql, "first", every="1 hour", next_run="9999-01-01Z")
    make_schedule(sql, after="first")
    scheduler = at(NOW)
    ask(sql)
    assert [tick.trigger for tick in decide(scheduler)] == ["manual"]
    make_schedule(sql, "again", every="1 hour", next_run=NOW)
    sql("UPDATE pgbeat.schedules SET after = 'again' WHERE name = 's'")
    decide(scheduler)
    end(sql)
    assert [tick.trigger for tick in decide(scheduler)] == ["after"]


def test_a_launcher_that_snoozed_is_in_turn_and_its_cursor_goes_on(
    sql: Sql, at: At, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launchers, "_registry", dict(launchers._registry))
    seen: list[Any] = []

    def check(ctx: Context) -> bool | Skip:
        seen.append((ctx.trigger, ctx.interval_start, ctx.interval_end, ctx.cursor))
        is_early = ctx.cursor is None
        ctx.cursor = (ctx.cursor or 0) + 1
        return Skip("not yet", snooze=timedelta(minutes=10)) if is_early else True

    register("Late", check, lambda ctx: JobRequest(args=[1]))
    make_schedule(sql, **DAILY, launcher="Late", task=None, next_run="2030-01-07 02:00Z")
    scheduler = at(time("01-07 02:00"))
    scheduler.run_until(NOW)
    ask(sql)
    scheduler.run_until(NOW)
    complete = (time("01-06 02:00"), time("01-07 02:00"))
    assert seen == [
        ("timetable", *complete, None),
        ("timetable", *complete, 1),
        ("manual", *complete, 2),
    ]
