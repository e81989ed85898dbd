"""Policies, each in the words of docs/reference/policies.md, on a clock that the tests set."""

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import psycopg
import pytest
from celery import Celery

from pgbeat import JobRequest, Launcher, Skip, launcher
from pgbeat.beat import scheduler as beat_scheduler
from pgbeat.database import connections
from pgbeat.schedules import model as domain
from pgbeat.schedules.ticks import Tick
from pgbeat.testing import Scheduler
from pgbeat.testing.fixtures import MakeScheduler
from pgbeat.timetables import Timetable
from tests.support.jobs import messages
from tests.support.processes import until
from tests.support.rows import make_schedule

Sql = Callable[..., list[tuple[Any, ...]]]
At = Callable[..., Scheduler]

#: A Monday.
START = datetime(2030, 1, 7, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.fixture
def at(app: Celery, pgbeat_scheduler: MakeScheduler) -> At:
    """Makes schedulers at a time; `START` unless told otherwise."""
    return lambda now=START: pgbeat_scheduler(app, now)


#: Adds a schedule of each hour, on the hour, unless told otherwise.
add = partial(make_schedule, starts_at=START - 24 * HOUR)


def row(sql: Sql, columns: str, name: str = "s") -> tuple[Any, ...]:
    [found] = sql(f"SELECT {columns} FROM pgbeat.schedules WHERE name = %s", name)
    return found


def end(sql: Sql, state: str = "completed", job: Any = None) -> None:
    """Ends a job, or all, as a worker tells of it."""
    sql(
        "UPDATE pgbeat.jobs SET state = %s, finished_at = now() WHERE id = coalesce(%s, id) "
        "AND state IN ('pending', 'running')",
        state,
        job,
    )


def hours(ticks: list[Tick]) -> list[float]:
    """Due times of ticks, as hours after the start."""
    return [(tick.due_at - START) / HOUR for tick in ticks]


def said(ticks: list[Tick]) -> list[tuple[str, int]]:
    return [(tick.outcome, tick.missed) for tick in ticks]


def down(scheduler: Scheduler, length: str) -> list[Tick]:
    """What the scheduler decides that was down for so long."""
    scheduler.run_due()
    del scheduler.ticks[:]
    scheduler.advance(length)
    scheduler.run_due()
    return scheduler.ticks


# -- catching up --------------------------------------------------------------------------------


def test_latest_launches_once_and_tells_how_many_were_missed(sql: Sql, at: At) -> None:
    add(sql)
    [tick] = down(at(), "5h 30m")
    assert (tick.outcome, tick.missed, hours([tick])) == ("launched", 4, [5])
    assert tick.note == (
        "4 due times before it, since 2030-01-07 13:00:00+0000, missed (catch_up latest)"
    )
    assert row(sql, "next_run") == (START + 6 * HOUR,)


def test_latest_is_skipped_when_even_the_last_is_later_than_its_grace(sql: Sql, at: At) -> None:
    add(sql, grace="10 minutes")
    scheduler = at()
    [tick] = down(scheduler, "5h 30m")
    assert (tick.outcome, tick.missed, hours([tick])) == ("skipped", 4, [5])
    assert tick.reason == "30 min late, more than its grace of 10 min"
    assert said(down(scheduler, "40 minutes")) == [("launched", 0)]


def test_none_makes_up_for_nothing_older_than_a_minute(sql: Sql, at: At) -> None:
    add(sql, catch_up="none")
    scheduler = at()
    assert said(down(scheduler, "5h 2m")) == [("skipped", 4)]
    assert said(down(scheduler, "58m 30s")) == [("launched", 0)]


def test_all_launches_each_missed_time_oldest_first(sql: Sql, at: At) -> None:
    add(sql, catch_up="all")
    ticks = down(at(), "5h 30m")
    assert hours(ticks) == [1, 2, 3, 4, 5]
    assert said(ticks) == [("launched", 0)] * 5
    assert len({tick.job_id for tick in ticks}) == 5


def test_all_leaves_out_those_beyond_its_limit_in_one_tick(sql: Sql, at: At) -> None:
    add(sql, catch_up="all", catch_up_limit=3)
    ticks = down(at(), "10h 30m")
    assert said(ticks) == [("skipped", 6), *[("launched", 0)] * 3]
    assert hours(ticks) == [7, 8, 9, 10]
    assert ticks[0].reason == "more than 3 times are missed (catch_up all)"


def test_all_leaves_out_those_older_than_its_grace_in_one_tick(sql: Sql, at: At) -> None:
    add(sql, catch_up="all", grace="2 hours")
    ticks = down(at(), "5h 30m")
    assert said(ticks) == [("skipped", 2), *[("launched", 0)] * 2]
    assert hours(ticks) == [3, 4, 5]


@pytest.mark.parametrize("catch_up", ["latest", "none", "all"])
@pytest.mark.parametrize("grace", [None, "0", "90 minutes", "100 days"])
def test_every_missed_time_is_accounted_for(
    sql: Sql, at: At, catch_up: str, grace: str | None
) -> None:
    add(sql, catch_up=catch_up, grace=grace, every="10 minutes")
    scheduler = at()
    ticks = down(scheduler, "1 day 5 minutes")
    assert sum(1 + tick.missed for tick in ticks) == 24 * 6
    assert len({tick.due_at for tick in ticks}) == len(ticks)


def test_a_year_of_seconds_is_counted_at_once(sql: Sql, at: At) -> None:
    add(sql, cron="* * * * * *", starts_at=None)
    [tick] = down(at(), "365 days")
    assert tick.missed == 365 * 86_400 - 1


# -- clocks that step ---------------------------------------------------------------------------


def test_a_clock_that_goes_back_launches_nothing_twice(sql: Sql, at: At) -> None:
    add(sql)
    scheduler = at()
    scheduler.run_until(START + 3 * HOUR)
    scheduler.now = START
    assert scheduler.run_until(START + 4 * HOUR)[-1].due_at == START + 4 * HOUR
    assert hours(scheduler.ticks) == [1, 2, 3, 4]


def test_a_clock_that_leaps_forward_is_a_beat_that_was_down(sql: Sql, at: At) -> None:
    add(sql)
    scheduler = at()
    assert said(down(scheduler, "1000 days")) == [("launched", 23_999)]


# -- overlap ------------------------------------------------------------------------------------


def test_overlap_allow_launches_whatever_runs(sql: Sql, at: At) -> None:
    add(sql)
    assert said(at().run_until(START + 3 * HOUR)) == [("launched", 0)] * 3


def test_overlap_skip_skips_while_the_job_before_is_unfinished(sql: Sql, at: At) -> None:
    add(sql, overlap="skip")
    scheduler = at()
    [first, second] = scheduler.run_until(START + 2 * HOUR)
    assert (first.outcome, second.outcome) == ("launched", "skipped")
    assert second.reason == f"the job before it, {first.job_id}, is still pending"
    end(sql, "failed")
    [third] = scheduler.run_until(START + 3 * HOUR)
    assert third.outcome == "launched"


def test_overlap_queue_one_waits_for_the_job_before_and_launches_once(sql: Sql, at: At) -> None:
    add(sql, overlap="queue_one")
    scheduler = at()
    [first] = scheduler.run_until(START + HOUR)
    assert scheduler.run_until(START + 3 * HOUR + HOUR / 2) == []
    assert row(sql, "waiting_for::text, due_at") == (first.job_id, START + 2 * HOUR)
    end(sql)
    scheduler.run_due()
    [_, second] = scheduler.ticks
    # What fell due while it waited is accounted for in the launch that waited.
    assert (second.outcome, second.missed, hours([second])) == ("launched", 1, [3])
    assert row(sql, "waiting_for, due_at, next_run") == (None, None, START + 4 * HOUR)


def is_woken(sql: Sql) -> bool:
    """Whether the schedule is due, rather than to be looked at again in a minute."""
    [(soon,)] = sql("SELECT next_run <= now() FROM pgbeat.schedules")
    return bool(soon)


def test_overlap_queue_one_is_woken_by_an_end_that_commits_after_the_look(
    sql: Sql, beat: Callable[..., beat_scheduler.Scheduler], database: str
) -> None:
    """The worker's end is written, not committed, while beat finds that the job is unfinished."""
    add(sql, overlap="queue_one", next_run=datetime.now(UTC))
    scheduler = beat()
    scheduler.run_due()
    sql("UPDATE pgbeat.schedules SET next_run = now()")
    with psycopg.connect(database) as worker:
        worker.execute("UPDATE pgbeat.jobs SET state = 'completed', finished_at = now()")
        scheduler.run_due()
        worker.commit()
    assert is_woken(sql)
    launched = "SELECT count(*) FROM pgbeat.ticks WHERE outcome = 'launched'"
    until(lambda: [scheduler.run_due(), sql(launched) == [(2,)]][1], 10)


def test_overlap_queue_one_is_woken_by_an_end_that_comes_before_the_commit(
    app: Celery, sql: Sql, database: str
) -> None:
    """The worker writes the end while beat writes that the schedule waits for it."""
    ends: list[threading.Thread] = []

    def end_it() -> None:
        with psycopg.connect(database, autocommit=True) as worker:
            worker.execute("UPDATE pgbeat.jobs SET state = 'completed', finished_at = now()")

    class Interleaved(beat_scheduler.Scheduler):
        def reached(self, step: str) -> None:
            if step == "before commit" and sql("SELECT 1 FROM pgbeat.jobs") and not ends:
                ends.append(threading.Thread(target=end_it))
                ends[0].start()
                waits = "SELECT 1 FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'"
                until(lambda: not ends[0].is_alive() or sql(waits), 10)

    add(sql, overlap="queue_one", next_run=datetime.now(UTC))
    scheduler = Interleaved(app=app)
    scheduler.run_due()
    sql("UPDATE pgbeat.schedules SET next_run = now()")
    scheduler.run_due()
    ends[0].join(10)
    scheduler.run_due()
    assert sql("SELECT outcome FROM pgbeat.ticks") == [("launched",)] * 2
    scheduler.close()


def test_what_waits_is_never_too_late(sql: Sql, at: At) -> None:
    add(sql, overlap="queue_one", grace="1 minute")
    scheduler = at()
    scheduler.run_until(START + 2 * HOUR)
    scheduler.now = START + 2 * HOUR + HOUR / 2
    end(sql)
    scheduler.run_due()
    assert said(scheduler.ticks) == [("launched", 0)] * 2


def end_all(sql: Sql, scheduler: Scheduler, most: int = 50) -> None:
    """Ends one job after the other, the scheduler looking after each."""
    for _ in range(most):
        if not sql("SELECT 1 FROM pgbeat.jobs WHERE state = 'pending'"):
            return
        assert sql("SELECT count(*) FROM pgbeat.jobs WHERE state = 'pending'") == [(1,)]
        end(sql)
        scheduler.run_due()


def test_overlap_buffer_all_launches_each_in_its_turn(sql: Sql, at: At) -> None:
    add(sql, overlap="buffer_all", catch_up="none", grace="1 minute")
    scheduler = at()
    [first] = scheduler.run_until(START + HOUR)
    assert scheduler.run_until(START + 4 * HOUR + HOUR / 2) == []
    assert row(sql, "waiting_for::text, due_at") == (first.job_id, START + 2 * HOUR)
    end_all(sql, scheduler)
    assert said(scheduler.ticks) == [("launched", 0)] * 4
    assert hours(scheduler.ticks) == [1, 2, 3, 4]
    assert row(sql, "waiting_for, due_at, next_run") == (None, None, START + 5 * HOUR)


def test_overlap_buffer_all_makes_up_for_what_a_beat_missed(sql: Sql, at: At) -> None:
    add(sql, overlap="buffer_all")
    scheduler = at()
    scheduler.run_due()
    scheduler.advance("3 hours 30 minutes")
    scheduler.run_due()
    end_all(sql, scheduler)
    assert hours(scheduler.ticks) == [1, 2, 3]


def test_overlap_buffer_all_keeps_no_more_waiting_than_its_limit(sql: Sql, at: At) -> None:
    add(sql, overlap="buffer_all", catch_up_limit=3)
    scheduler = at()
    scheduler.run_until(START + HOUR)
    scheduler.now = START + 9 * HOUR + HOUR / 2  # eight are due
    end_all(sql, scheduler)
    assert hours(scheduler.ticks) == [1, 6, 7, 8, 9]
    skipped = scheduler.ticks[1]
    assert (skipped.outcome, skipped.missed) == ("skipped", 4)
    assert skipped.reason == "more than 3 times wait (overlap buffer_all)"


def test_overlap_buffer_all_is_for_timetables(sql: Sql) -> None:
    add(sql, "first")
    with pytest.raises(psycopg.errors.CheckViolation, match="use queue_one"):
        add(sql, after="first", overlap="buffer_all")
    with pytest.raises(psycopg.errors.CheckViolation, match="queue_one, buffer_all or cancel"):
        add(sql, overlap="buffer")


def test_overlap_cancel_previous_ends_the_job_before(sql: Sql, at: At) -> None:
    add(sql, overlap="cancel_previous")
    scheduler = at()
    scheduler.run_until(START + 2 * HOUR)
    assert said(scheduler.ticks) == [("launched", 0)] * 2
    assert sql("SELECT state, error FROM pgbeat.jobs ORDER BY due_at") == [
        ("cancelled", "cancelled: its schedule is due again"),
        ("pending", None),
    ]
    assert messages(sql) == [scheduler.ticks[1].job_id]


# -- minimum spacing ----------------------------------------------------------------------------


def test_launches_are_never_closer_than_the_minimum_interval(sql: Sql, at: At) -> None:
    add(sql, every="1 minute", min_interval="10 minutes")
    scheduler = at()
    ticks = scheduler.run_until(START + HOUR)
    launched = [tick.due_at for tick in ticks if tick.outcome == "launched"]
    assert [(t - START) / timedelta(minutes=1) for t in launched] == [1, 11, 21, 31, 41, 51]
    assert ticks[1].reason == "launched 1 min ago, and min_interval is 10 min"


# -- backoff and probes -------------------------------------------------------------------------


def test_retries_come_after_base_times_factor_to_the_n(sql: Sql, at: At) -> None:
    add(
        sql, task="tests.gone", every="100 days", retry_base="1 minute", retry_factor=3,
        retry_cap="20 minutes", max_retries=4, next_run=START,
    )  # fmt: skip
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
    sql: Sql, at: At, catch_up: str, due: list[float], missed: list[int]
) -> None:
    sql("CREATE TABLE divisor AS SELECT 0 AS n")
    add(
        sql, condition_sql="SELECT 1 / n FROM divisor", catch_up=catch_up, max_retries=9,
        retry_base="15 minutes", retry_cap="1 day",
    )  # fmt: skip
    scheduler = at()
    scheduler.run_until(START + 4 * HOUR)
    sql("UPDATE divisor SET n = 1")
    scheduler.run_until(START + 5 * HOUR)
    assert hours(scheduler.ticks) == due
    assert [tick.missed for tick in scheduler.ticks] == missed


def test_a_disabled_schedule_is_probed(sql: Sql, at: At) -> None:
    add(
        sql, condition_sql="SELECT 1 / n FROM divisor", max_retries=2, retry_base="0",
        retry_cap="0", probe_after="3 hours", next_run=START,
    )  # fmt: skip
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


def test_what_a_person_disables_is_not_probed(sql: Sql, at: At) -> None:
    add(sql, probe_after="1 hour")
    sql("UPDATE pgbeat.schedules SET enabled = false")
    assert at().run_until(START + 24 * HOUR) == []


# -- one schedule after another -----------------------------------------------------------------


def test_after_launches_when_a_job_of_the_other_has_completed(sql: Sql, at: At) -> None:
    add(sql, "first")
    add(sql, "second", after="first")
    scheduler = at()
    scheduler.run_until(START + HOUR)
    assert [tick.schedule for tick in scheduler.ticks] == ["first"]
    end(sql)
    scheduler.run_due()
    assert [(t.schedule, t.trigger, t.outcome) for t in scheduler.ticks[1:]] == [
        ("second", "after", "launched")
    ]
    assert row(sql, "next_run, upstream_ended", "second") == (None, 0)


def test_after_accounts_for_each_job_that_ended(sql: Sql, at: At) -> None:
    add(sql, "first")
    add(sql, "second", after="first")
    scheduler = at()
    scheduler.run_until(START + 3 * HOUR)
    end(sql)
    scheduler.run_due()
    [tick] = scheduler.ticks[3:]
    assert (tick.missed, tick.note) == (2, "2 more jobs of 'first' ended meanwhile")


@pytest.mark.parametrize(
    ("outcome", "state", "launched"),
    [
        ("completed", "completed", True),
        ("completed", "failed", False),
        ("failed", "failed", True),
        ("failed", "completed", False),
        ("finished", "failed", True),
        ("finished", "completed", True),
        ("finished", "cancelled", False),
    ],
)
def test_after_is_skipped_where_the_other_ended_otherwise(
    sql: Sql, at: At, outcome: str, state: str, launched: bool
) -> None:
    add(sql, "first")
    add(sql, "second", after="first", after_outcome=outcome)
    scheduler = at()
    [first] = scheduler.run_until(START + HOUR)
    end(sql, state)
    scheduler.run_due()
    [(found, reason)] = sql(
        "SELECT outcome, reason FROM pgbeat.ticks WHERE schedule = 'second' AND trigger = 'after'"
    )
    assert found == ("launched" if launched else "skipped")
    if not launched:
        ended = state if state in ("completed", "failed") else f"was {state}"
        assert reason == f"after first: its job {first.job_id} {ended}"


def test_after_may_not_go_in_a_circle(sql: Sql) -> None:
    add(sql, "a", after="b")
    add(sql, "b", after="c")
    with pytest.raises(psycopg.errors.CheckViolation, match="circle: c after a after b after c"):
        add(sql, "c", after="a")


# -- windows ------------------------------------------------------------------------------------


def test_it_is_due_within_its_window_and_then_complete(sql: Sql, at: At) -> None:
    add(sql, starts_at=START + 3 * HOUR, ends_at=START + 5 * HOUR)
    scheduler = at()
    scheduler.run_until(START + 24 * HOUR)
    assert hours(scheduler.ticks) == [3, 4, 5]
    assert row(sql, "enabled, completed_at IS NOT NULL, disabled_reason") == (
        False,
        True,
        "its timetable has no time left",
    )


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


def test_once_is_once(sql: Sql, at: At) -> None:
    add(sql, once_at=START + 2 * HOUR, starts_at=None)
    scheduler = at()
    scheduler.run_until(START + 24 * HOUR)
    assert hours(scheduler.ticks) == [2]
    assert row(sql, "enabled") == (False,)


def test_a_time_that_has_passed_already_is_late(sql: Sql, at: At) -> None:
    add(sql, "kept", once_at=START - HOUR, starts_at=None)
    add(sql, "late", once_at=START - HOUR, starts_at=None, catch_up="none")
    scheduler = at()
    scheduler.run_due()
    assert {(tick.schedule, tick.outcome) for tick in scheduler.ticks} == {
        ("kept", "launched"),
        ("late", "skipped"),
    }


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


def test_a_persons_next_run_is_the_due_time(sql: Sql, at: At) -> None:
    add(sql, jitter="10 minutes")
    scheduler = at()
    scheduler.run_due()
    sql("UPDATE pgbeat.schedules SET next_run = %s", START)
    scheduler.run_due()
    assert hours(scheduler.ticks) == [0]


def test_what_a_calendar_excludes_is_skipped_with_its_reason(sql: Sql, at: At) -> None:
    sql(
        "INSERT INTO pgbeat.calendars (name, definition) "
        """VALUES ('office', '{"timezone": "UTC", "weekdays": ["tue"]}')"""
    )
    add(sql, calendar="office")
    scheduler = at(START + 10 * HOUR)
    scheduler.run_until(START + 13 * HOUR)
    assert [(tick.outcome, tick.reason) for tick in scheduler.ticks] == [
        ("launched", None),
        ("skipped", "calendar 'office': Tuesday"),
        ("skipped", "calendar 'office': Tuesday"),
    ]


# -- a launcher that says when ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("snooze", "next_run"),
    [
        (timedelta(minutes=7), START + timedelta(hours=1, minutes=7)),
        (START + 3 * HOUR, START + 3 * HOUR),
        (timedelta(0), START + HOUR + timedelta(seconds=1)),
        (timedelta(days=400), START + HOUR + timedelta(days=1)),
        (None, START + 2 * HOUR),
    ],
)
@pytest.mark.parametrize("launches", [True, False])
def test_a_launcher_snoozes_its_schedule(
    sql: Sql, at: At, snooze: Any, next_run: datetime, launches: bool
) -> None:
    @launcher("tests.snoozes")
    class Snoozes(Launcher):
        def check_conditions(self, ctx: Any) -> bool | Skip:
            return True if launches else Skip("not now", snooze=snooze)

        def prepare_job_data(self, ctx: Any) -> JobRequest:
            return JobRequest(snooze=snooze)

    add(sql, launcher="tests.snoozes")
    at().run_until(START + HOUR)
    assert row(sql, "next_run") == (next_run,)


# -- zones --------------------------------------------------------------------------------------


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


# -- several apps -------------------------------------------------------------------------------


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
    assert launched == [
        (START + HOUR, {"x": 5}),
        (START + HOUR, {}),
        (START + 2 * HOUR, {"x": 5}),
    ]


# -- a simulated year ---------------------------------------------------------------------------

#: Timetables of a year, and how many schedules have each, in hundredths.
MIX = [
    (30, {"cron": "0 6 * * mon"}),
    (20, {"cron": "30 2 1,15 * *", "timezone": "Europe/Oslo"}),
    (10, {"cron": "0 0 L * *", "timezone": "America/New_York"}),
    (10, {"every": "7 days", "timezone": "Europe/Oslo"}),
    (10, {"every": "240 hours"}),
    (10, {"rrule": "FREQ=MONTHLY;BYDAY=-1FR;BYHOUR=6;BYMINUTE=0;BYSECOND=0"}),
    (5, {"cron": "0 6 * * *", "timezone": "Europe/Oslo"}),
    (4, {"cron": "30 2 * * *", "timezone": "America/New_York"}),
    (1, {"cron": "0 */12 * * *"}),
]


@pytest.mark.parametrize(
    ("schedules", "days"),
    [(100, 45), pytest.param(1000, 366, marks=[pytest.mark.slow, pytest.mark.timeout(900)])],
)
def test_a_simulated_year(sql: Sql, at: At, schedules: int, days: int) -> None:
    """Every expected due time once, or accounted for, through restarts and clocks that step."""
    for share, columns in MIX:
        for n in range(share * schedules // 100):
            # Half of them make up for each time that a leaping clock goes past.
            policy = {"catch_up": "all", "catch_up_limit": 1000} if n % 2 else {}
            add(sql, f"{columns} {n}".replace("/", "-"), **columns, **policy)
    begin, end = START, START + timedelta(days=days)
    beat = at(begin)
    ticks: list[Tick] = []
    while beat.now is not None and beat.now < end:
        week = beat.now + timedelta(days=7)
        beat.run_until(min(week, end))
        if week.day % 2:
            beat.now = min(beat.now, end) - 3 * HOUR  # set back …
            beat.run_until(min(week, end))
        elif week < end - timedelta(days=9):
            beat.now = week + timedelta(days=2)  # … or leapt forward
            beat.run_due()
        ticks += beat.ticks
        now = beat.now
        beat.close()
        beat = at(now)
    with connections.engine(beat.settings.url, "tests").connect() as connection:
        rows = {row.name: row for row in domain.listing(connection)}
    assert {tick.outcome for tick in ticks} == {"launched"}
    seen: dict[str, list[Tick]] = {name: [] for name in rows}
    for tick in ticks:
        seen[tick.schedule].append(tick)
    for name, row in rows.items():
        timetable = row.timetable("UTC")
        assert timetable is not None
        due_times = [tick.due_at for tick in seen[name]]
        expected = list(between(timetable, begin, end))
        assert due_times == sorted(set(due_times))
        if row.catch_up == "all":
            assert due_times == expected
        else:
            assert set(due_times) <= set(expected)
            assert sum(1 + tick.missed for tick in seen[name]) == len(expected)


def between(timetable: Timetable, begin: datetime, end: datetime) -> Iterator[datetime]:
    """The due times of a timetable in (begin, end]."""
    moment = timetable.next_after(begin)
    while moment is not None and moment <= end:
        yield moment
        moment = timetable.next_after(moment)
