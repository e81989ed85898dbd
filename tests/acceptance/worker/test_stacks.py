"""What a task is doing: its stack, when somebody asks and when it is out of time, on each pool."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import pgbeat
from pgbeat.errors import InvalidTransition
from tests.support.processes import Process, until
from tests.support.recorded_workers import TrackedWorkers
from tests.support.transport_workers import POOLS

pools = pytest.mark.parametrize(
    "pool", ["prefork", *(pytest.param(p, marks=pytest.mark.slow) for p in POOLS[1:])]
)


def start(tracked_workers: TrackedWorkers, pool: str, **settings: Any) -> Process:
    return tracked_workers.start("-P", pool, "-c", "2", settings=settings)


def calls(stack: str) -> list[str]:
    """Returns the functions of a stack, without those by which gevent and eventlet sleep."""
    names = re.findall(r"^  File \"(.*)\", line \d+, in (\w+)$", stack, re.MULTILINE)
    return [name for file, name in names if "site-packages" not in file]


def kept(tracked_workers: TrackedWorkers, job_id: str) -> dict[str, list[str]]:
    """Returns the calls in the stacks of a job, by their reasons."""
    query = "SELECT reason, stack FROM pgbeat.stacks WHERE job_id = %s AND stack IS NOT NULL"
    return {reason: calls(stack) for reason, stack in tracked_workers.sql(query, job_id)}


@pools
def test_a_running_task_says_where_it_is(tracked_workers: TrackedWorkers, pool: str) -> None:
    start(tracked_workers, pool)
    job_id = tracked_workers.one("hold", "a")
    [run] = tracked_workers.runs(job_id)
    stack = pgbeat.stack(job_id, app=tracked_workers.app)
    assert calls(stack.stack) == ["hold", "wait_for"]
    assert "    wait_for(gate)\n" in stack.stack
    assert (stack.execution_id, stack.number, stack.reason) == (run.id, 1, "asked")
    assert stack.memory_mb is not None and stack.memory_mb > 10
    again = pgbeat.stack(job_id, app=tracked_workers.app)
    assert again.taken_at > stack.taken_at
    tracked_workers.open("a")
    tracked_workers.ended(job_id)
    with pytest.raises(InvalidTransition):
        pgbeat.stack(job_id, app=tracked_workers.app)
    assert kept(tracked_workers, job_id) == {"asked": ["hold", "wait_for"]}


def test_stacks_at_time_limits(tracked_workers: TrackedWorkers) -> None:
    """Of the task's own limits; the worker's are for tasks without any."""
    start(tracked_workers, "prefork", task_time_limit=3)
    clinging, held = tracked_workers.one("cling", "never"), tracked_workers.one("hold", "never")
    for seen in tracked_workers.ended(clinging, held):
        assert str(seen.job.error).startswith("TimeLimitExceeded")
    assert kept(tracked_workers, clinging) == {
        "soft_time_limit": ["cling", "wait_for"],
        "time_limit": ["cling", "clean_up"],
    }
    assert kept(tracked_workers, held) == {"time_limit": ["hold", "wait_for"]}


@pytest.mark.slow
def test_gevents_time_limit(tracked_workers: TrackedWorkers) -> None:
    start(tracked_workers, "gevent")
    job_id = tracked_workers.one("limited")
    tracked_workers.ended(job_id)
    until(lambda: kept(tracked_workers, job_id) == {"time_limit": ["limited"]})


@pytest.mark.parametrize(
    "pool", ["prefork", *(pytest.param(p, marks=pytest.mark.slow) for p in ("gevent", "eventlet"))]
)
def test_a_task_that_is_terminated(tracked_workers: TrackedWorkers, pool: str) -> None:
    start(tracked_workers, pool)
    job_id = tracked_workers.one("hold", "never")
    tracked_workers.runs(job_id)
    tracked_workers.cancel(job_id)
    tracked_workers.ended(job_id)
    terminated = until(lambda: kept(tracked_workers, job_id).get("terminated"))
    assert terminated == ["hold", "wait_for"]


@pools
def test_a_task_that_is_asked_to_end_or_is_late(tracked_workers: TrackedWorkers, pool: str) -> None:
    start(tracked_workers, pool)
    late = datetime.now(UTC) + timedelta(seconds=1)
    job_id = tracked_workers.one("hold", "a", must_end_by=late)
    tracked_workers.runs(job_id)
    until(lambda: kept(tracked_workers, job_id) == {"deadline": ["hold", "wait_for"]})
    tracked_workers.ask_to_end(job_id)
    until(lambda: "cancel" in kept(tracked_workers, job_id))
    tracked_workers.open("a")
    tracked_workers.ended(job_id)
