"""The phases of a job: every shape of what rows tell of it."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from pgbeat.jobs.explaining.trace import Hold, Trace, TracedAttempt, TracedRun, trace
from pgbeat.jobs.rows.model import Job
from pgbeat.jobs.running.steps import ShownStep

START = datetime(2026, 11, 23, 12, tzinfo=UTC)
ID = uuid4()


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def job(**given: Any) -> Job:
    """A job that was created, and sent, at the start. Times are seconds after it."""
    values: dict[str, Any] = {"id": ID, "created_at": 0, "dispatched_at": 0, "queue": "celery"}
    values |= given
    for name in ("created_at", "dispatched_at", "finished_at", "run_at", "approved_at"):
        if values.get(name) is not None:
            values[name] = at(values[name])
    return Job(namespace="default", task="t", job_source="system", created_by="me", **values)


def ended(finished_at: float, state: str = "completed", **given: Any) -> Job:
    return job(state=state, finished_at=finished_at, **given)


def run(
    begin: float,
    end: float | None,
    state: str = "completed",
    number: int = 1,
    retry: int = 0,
    job_id: UUID = ID,
) -> TracedRun:
    lost, state = state == "lost", "failed" if state == "lost" else state
    finished = None if end is None else at(end)
    return TracedRun(job_id, number, state, lost, retry, "w1", at(begin), finished)


def lines(found: Trace) -> list[tuple[Any, ...]]:
    """Returns the phases as `(kind, begin, end)`, of executions and ends also with the state."""

    def seconds(moment: datetime) -> float:
        return (moment - START).total_seconds()

    return [
        (each.kind, seconds(each.begin), each.end and seconds(each.end))
        + ((each.state,) if each.state else ())
        for each in found.phases
    ]


def step(kind: Any, begin: float, until: float | None, end: float | None) -> ShownStep:
    """A sleep or a wait; one that has ended without an event timed out."""
    due, over = (None if each is None else at(each) for each in (until, end))
    state = "sleeping" if end is None else "timed_out" if end == until else "done"
    return ShownStep(kind, kind, state, at(begin), due, over, None)


def shape(each: TracedAttempt, *steps: ShownStep, now: float = 100) -> str:
    """Returns the phases between `created` and `ended`, as `kind begin–end state`."""
    found = lines(trace([each], at(now), steps=steps))
    found = [line for line in found if line[0] not in ("created", "ended")]
    return ", ".join(
        f"{kind} {begin:g}–{'' if end is None else f'{end:g}'} {' '.join(state)}".rstrip()
        for kind, begin, end, *state in found
    )


def test_a_plain_job() -> None:
    found = trace([TracedAttempt(ended(5), [run(2, 5)])], at(100))
    assert lines(found) == [
        ("created", 0, 0),
        ("queue", 0, 2),
        ("running", 2, 5, "completed"),
        ("ended", 5, 5, "completed"),
    ]
    assert (found.since, found.until, found.is_whole) == (at(0), at(5), True)
    assert [each.words for each in found.phases] == [
        "created",
        "in queue celery",
        "running on w1",
        "completed",
    ]
    assert found.phases[1].lasts(at(100)) == timedelta(seconds=2)


def test_a_lane_and_then_the_queue() -> None:
    each = TracedAttempt(ended(9, lane="gpu", dispatched_at=4), [run(5, 9)])
    assert shape(each) == "lane 0–4, queue 4–5, running 5–9 completed"


def test_what_lasts_has_no_end() -> None:
    assert shape(TracedAttempt(job())) == "queue 0–"
    assert shape(TracedAttempt(job(lane="gpu", dispatched_at=None))) == "lane 0–"
    assert (
        shape(TracedAttempt(job(state="running"), [run(3, None, "running")]))
        == "queue 0–3, running 3–"
    )
    assert trace([TracedAttempt(job())], at(100)).until == at(100)


def test_never_dispatched() -> None:
    assert shape(TracedAttempt(ended(8, "cancelled", lane="gpu", dispatched_at=None))) == "lane 0–8"
    assert shape(TracedAttempt(ended(8, "cancelled", dispatched_at=None))) == "unsent 0–8"
    assert shape(TracedAttempt(job(dispatched_at=None))) == "unsent 0–"


def test_not_due_yet() -> None:
    due = job(state="scheduled", run_at=200)
    assert shape(TracedAttempt(due, run_at=at(200))) == "scheduled 0–"
    assert (
        shape(TracedAttempt(ended(12), [run(11, 12)], run_at=at(10)))
        == "scheduled 0–10, queue 10–11, running 11–12 completed"
    )


def test_an_approval_then_a_dependency_then_its_lane() -> None:
    each = TracedAttempt(
        ended(9, requires_approval=True, approved_at=2, lane="gpu", dispatched_at=7),
        [run(8, 9)],
        blocked_until=at(5),
    )
    assert shape(each) == "approval 0–2, blocked 2–5, lane 5–7, queue 7–8, running 8–9 completed"
    waits = job(state="paused", requires_approval=True, awaits_approval=True, dispatched_at=None)
    assert shape(TracedAttempt(waits)) == "approval 0–"


def test_a_dependency_that_has_not_ended_or_ended_badly() -> None:
    assert shape(TracedAttempt(job(is_blocked=True, dispatched_at=None))) == "blocked 0–"
    skipped = ended(6, "skipped", is_blocked=True, dispatched_at=None)
    assert shape(TracedAttempt(skipped, blocked_until=at(6))) == "blocked 0–6"


def test_pauses() -> None:
    each = TracedAttempt(
        ended(12, lane="gpu", dispatched_at=10), [run(11, 12)], holds=[Hold(at(3), at(6))]
    )
    assert shape(each) == "lane 0–3, paused 3–6, lane 6–10, queue 10–11, running 11–12 completed"
    held = job(state="paused", lane="gpu", dispatched_at=None)
    assert shape(TracedAttempt(held, holds=[Hold(at(3), None)])) == "lane 0–3, paused 3–"
    many = held._replace(paused_at=at(3))  # with many others: the log doesn't name it
    assert shape(TracedAttempt(many)) == "lane 0–3, paused 3–"


def test_snoozes() -> None:
    runs = [run(1, 2, "snoozed", 1), run(8, 9, "snoozed", 2), run(15, 16, "completed", 3)]
    assert shape(TracedAttempt(ended(16, dispatched_at=14), runs)) == (
        "queue 0–1, running 1–2 snoozed, snoozed 2–8, "
        "running 8–9 snoozed, snoozed 9–14, queue 14–15, running 15–16 completed"
    )
    again = job(state="scheduled", run_at=200, dispatched_at=None)
    assert shape(TracedAttempt(again, runs[:1])).endswith(", snoozed 2–")
    in_lane = job(run_at=50, lane="gpu", dispatched_at=None)
    assert shape(TracedAttempt(in_lane, runs[:1])).endswith(" snoozed, snoozed 2–50, lane 50–")


def test_the_first_wait_of_a_snoozed_job_in_a_lane_is_one_phase() -> None:
    runs = [run(5, 6, "snoozed", 1), run(10, 11, "completed", 2)]
    assert shape(TracedAttempt(ended(11, lane="gpu", dispatched_at=9), runs)) == (
        "lane_or_queue 0–5, running 5–6 snoozed, snoozed 6–9, queue 9–10, running 10–11 completed"
    )


def test_sleeps_and_waits_take_the_place_of_snoozes() -> None:
    asleep = TracedAttempt(
        job(state="scheduled", run_at=200, dispatched_at=None), [run(1, 2, "snoozed")]
    )
    assert shape(asleep, step("sleep", 2, 200, None)).endswith("running 1–2 snoozed, sleep 2–")
    waits = asleep._replace(job=asleep.job._replace(run_at=at(9), lane="gpu"))
    assert shape(waits, step("wait", 2, None, 9)).endswith(", wait 2–9, lane 9–")
    assert shape(waits, step("wait", 2, 9, 9)).endswith(", wait 2–9 timed_out, lane 9–")
    runs = [run(1, 2, "snoozed", 1), run(8, 9, "snoozed", 2), run(15, 16, "completed", 3)]
    whole = TracedAttempt(ended(16, lane="gpu", dispatched_at=14), runs)
    steps = step("wait", 1.5, 50, 1.5), step("sleep", 2, 6, 8), step("sleep", 9, 12, 15)
    assert shape(whole, *steps) == (
        "lane_or_queue 0–1, running 1–2 snoozed, wait 1.5–1.5, sleep 2–6, lane_or_queue 6–8, "
        "running 8–9 snoozed, sleep 9–12, lane 12–14, queue 14–15, running 15–16 completed"
    )


def test_a_sleep_that_outlasts_a_lost_execution() -> None:
    """The next execution finds it, and is snoozed for it again."""
    runs = [run(1, 3, "lost", 1), run(4, 5, "snoozed", 2), run(11, 12, "completed", 3)]
    each = TracedAttempt(ended(12, dispatched_at=10), runs)
    assert shape(each, step("sleep", 2, 10, 11)) == (
        "queue 0–1, running 1–3 lost, queue 3–4, running 4–5 snoozed, sleep 5–10, queue 10–11, "
        "running 11–12 completed"
    )


def test_a_pause_in_a_sleep() -> None:
    each = TracedAttempt(
        job(state="scheduled", run_at=200, dispatched_at=None),
        [run(1, 2, "snoozed")],
        holds=[Hold(at(5), at(7))],
    )
    assert shape(each, step("sleep", 2, 200, None)).endswith(", sleep 2–5, paused 5–7, sleep 7–")


def test_celerys_retries() -> None:
    runs = [run(1, 2, "failed", 1), run(5, 6, "failed", 2, retry=1)]
    assert (
        shape(TracedAttempt(job(state="scheduled"), runs))
        == "queue 0–1, running 1–2 failed, backoff 2–5, running 5–6 failed, backoff 6–"
    )
    assert shape(TracedAttempt(ended(9, "cancelled"), runs)).endswith(", queue 6–9")


def test_a_lost_execution_is_delivered_again() -> None:
    runs = [run(1, 4, "lost", 1), run(6, 7, "completed", 2)]
    assert (
        shape(TracedAttempt(ended(7), runs))
        == "queue 0–1, running 1–4 lost, queue 4–6, running 6–7 completed"
    )
    late = [run(1, 8, "lost", 1), run(6, 7, "completed", 2)]  # it was alive after all
    assert re.findall("queue [0-9–]+", shape(TracedAttempt(ended(7), late))) == ["queue 0–1"]


def test_a_chain_of_retries_backs_off() -> None:
    first, second = uuid4(), uuid4()
    found = trace(
        [
            TracedAttempt(
                ended(2, "failed", id=first, retried_by=second), [run(1, 2, "failed", job_id=first)]
            ),
            TracedAttempt(
                ended(64, id=second, created_at=2, dispatched_at=2, attempt=2, retry_of=first),
                [run(63, 64, job_id=second)],
                run_at=at(62),
            ),
        ],
        at(100),
    )
    assert lines(found)[4:] == [
        ("created", 2, 2),
        ("backoff", 2, 62),
        ("queue", 62, 63),
        ("running", 63, 64, "completed"),
        ("ended", 64, 64, "completed"),
    ]
    assert [each.attempt for each in found.phases] == [1] * 4 + [2] * 5


@pytest.mark.parametrize("number", [1, 7])
def test_executions_that_are_left_out_leave_no_wait_behind(number: int) -> None:
    each = TracedAttempt(ended(9), [run(8, 9, number=number)], is_whole=number == 1)
    found = trace([each], at(100))
    assert found.is_whole is (number == 1)
    assert found.since == (at(0) if found.is_whole else at(8))
