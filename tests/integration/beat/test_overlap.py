"""Schedules that wait for jobs: overlap, and one schedule after another."""

import threading
from datetime import UTC, datetime

import psycopg
import pytest
from celery import Celery

from pgbeat.beat import scheduler as beat_scheduler
from pgbeat.testing import Scheduler
from tests.support.jobs import messages
from tests.support.processes import until
from tests.support.rows import Sql
from tests.support.schedulers import HOUR, START, At, Beat, add, end, hours, row, said


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
    sql: Sql, beat: Beat, database: str
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


def end_all(sql: Sql, scheduler: Scheduler) -> None:
    """Ends one job after the other, the scheduler looking after each."""
    for _ in range(50):
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


@pytest.mark.parametrize(
    ("column", "why", "is_over"), [("starts_at", "begins", False), ("ends_at", "ended", True)]
)
def test_after_keeps_to_its_window(
    sql: Sql, beat: Beat, column: str, why: str, is_over: bool
) -> None:
    moment = datetime(2000 if is_over else 3000, 1, 1, tzinfo=UTC)
    add(sql, "extract", next_run=datetime.now(UTC))
    values = {"starts_at": None} | {column: moment}
    add(sql, "load", after="extract", every=None, **values)
    scheduler = beat()
    scheduler.run_due()
    end(sql)
    scheduler.run_due()
    [(outcome, reason)] = sql("SELECT outcome, reason FROM pgbeat.ticks WHERE schedule = 'load'")
    assert (outcome, reason.startswith(f"its window {why}")) == ("skipped", True)
    assert row(sql, "completed_at IS NOT NULL", "load") == (is_over,)


def test_after_accounts_for_each_job_that_ended(sql: Sql, at: At) -> None:
    add(sql, "first")
    add(sql, "second", after="first")
    scheduler = at()
    scheduler.run_until(START + 3 * HOUR)
    end(sql)
    scheduler.run_due()
    [tick] = scheduler.ticks[3:]
    assert (tick.missed, tick.note) == (2, "2 more jobs of 'first' ended meanwhile")


def test_after_does_not_count_the_end_of_the_own_job_that_it_waited_for(sql: Sql, at: At) -> None:
    add(sql, "first")
    add(sql, "second", after="first", overlap="queue_one")
    scheduler = at()
    scheduler.run_until(START + HOUR)
    end(sql)
    scheduler.run_due()
    scheduler.run_until(START + 2 * HOUR)
    for name in ("first", "second"):
        sql(
            "UPDATE pgbeat.jobs SET state = 'completed', finished_at = now()"
            " WHERE schedule = %s AND finished_at IS NULL",
            name,
        )
        scheduler.run_due()
    ticks = [tick for tick in scheduler.ticks if tick.schedule == "second"]
    assert [(tick.outcome, tick.missed, tick.note) for tick in ticks] == [("launched", 0, None)] * 2


def test_after_is_skipped_where_the_other_ended_otherwise(sql: Sql, at: At) -> None:
    launched = {
        ("completed", "completed"): True,
        ("completed", "failed"): False,
        ("failed", "failed"): True,
        ("failed", "completed"): False,
        ("finished", "failed"): True,
        ("finished", "completed"): True,
        ("finished", "cancelled"): False,
    }
    for outcome, state in launched:
        add(sql, f"first {outcome} {state}")
        add(sql, f"{outcome} {state}", after=f"first {outcome} {state}", after_outcome=outcome)
    scheduler = at()
    jobs = {tick.schedule: tick.job_id for tick in scheduler.run_until(START + HOUR)}
    for name, job_id in jobs.items():
        end(sql, name.split()[-1], job_id)
    scheduler.run_due()
    ticks: dict[str, str | None] = dict(
        sql("SELECT schedule, reason FROM pgbeat.ticks WHERE trigger = 'after'")
    )
    assert len(ticks) == len(launched)
    for (outcome, state), is_launched in launched.items():
        ended = state if state in ("completed", "failed") else f"was {state}"
        reason = (
            f"after first {outcome} {state}: its job {jobs[f'first {outcome} {state}']} {ended}"
        )
        assert ticks[f"{outcome} {state}"] == (None if is_launched else reason)


def test_after_may_not_go_in_a_circle(sql: Sql) -> None:
    add(sql, "a", after="b")
    add(sql, "b", after="c")
    with pytest.raises(psycopg.errors.CheckViolation, match="circle: c after a after b after c"):
        add(sql, "c", after="a")
