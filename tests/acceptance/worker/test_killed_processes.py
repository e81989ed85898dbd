"""Pool processes that are gone before they recorded what their tasks did; their worker lives on."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import psycopg
import pytest

from tests.support.processes import Process, until
from tests.support.recorded_workers import TrackedWorkers
from tests.support.rows import make_lane

APP = "tests.support.apps.killed"


@contextmanager
def locked(tracked_workers: TrackedWorkers, job_id: str) -> Iterator[None]:
    """Keeps everybody from recording anything of the job."""
    with psycopg.connect(tracked_workers.database) as held:
        held.execute("SELECT FROM pgbeat.unfinished_jobs WHERE id = %s FOR UPDATE", [job_id])
        yield


def in_lane(tracked_workers: TrackedWorkers, task: str, *args: Any) -> tuple[str, str]:
    """Makes a job of the task, which has the only slot of a lane, and the next in line."""
    make_lane(tracked_workers.sql, "one")
    return (
        tracked_workers.one(task, *args, lane="one", max_attempts=1),
        tracked_workers.one("add", lane="one", is_dispatched=False),
    )


def child(worker: Process) -> psutil.Process:
    """Returns the process of a pool of one."""
    found: psutil.Process = until(lambda: next(iter(psutil.Process(worker.pid).children()), None))
    return found


def say(tracked_workers: TrackedWorkers, word: str) -> str:
    """Has a job note a word, and returns when it ran: one process has ended those before it."""
    job_id = tracked_workers.one("say", word)
    until(lambda: runs_of(tracked_workers, word))
    return job_id


def runs_of(tracked_workers: TrackedWorkers, word: str) -> int:
    """Returns how many times tasks have noted a word."""
    path = tracked_workers.folder / "journal"
    return path.read_text().split().count(word) if path.exists() else 0


@pytest.mark.parametrize(
    ("call", "state", "runs"),
    [
        (("add",), "completed", [("completed", "3", None)]),
        pytest.param(
            ("fail", 0, "!" * 900),
            "failed",
            [("failed", None, "ValueError: no such thing!!!")],
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ("retry",),
            "completed",
            [("failed", None, "OSError: not yet"), ("completed", None, None)],
            marks=pytest.mark.slow,
        ),
    ],
    ids=["completed", "failed", "retried by Celery"],
)
def test_killed_between_a_tasks_return_and_its_record(
    tracked_workers: TrackedWorkers,
    call: tuple[Any, ...],
    state: str,
    runs: list[tuple[str, str | None, str | None]],
) -> None:
    """Celery has acknowledged the message and knows the end: only the process could record it."""
    first, second = in_lane(tracked_workers, *call)
    with locked(tracked_workers, first):
        worker = tracked_workers.start("-c", "1")
        if call[0] == "retry":
            worker.says("second")
        last = say(tracked_workers, "last")
        tracked_workers.ended(last)  # so that the process has nothing to do any more
        victim = child(worker)
        victim.kill()
        until(lambda: not victim.is_running())
    seen, *others = tracked_workers.ended(first, second, last, seconds=10)
    assert seen.job.state == state
    assert [(run.state, run.result, run.error and run.error[:28]) for run in seen.runs] == runs
    assert [(run.lost, run.pid) for run in seen.runs] == [(False, victim.pid)] * len(runs)
    assert [(each.job.state, len(each.runs)) for each in others] == [("completed", 1)] * 2
    assert tracked_workers.released() == 0
    assert worker.poll() is None


@pytest.mark.slow
def test_recycled_while_its_record_is_locked(tracked_workers: TrackedWorkers) -> None:
    """A process that ends waits three seconds for the lock; then its worker waits in its place."""
    first, second = in_lane(tracked_workers, "add")
    with locked(tracked_workers, first):
        worker = tracked_workers.start("-c", "1", "--max-tasks-per-child", "1")
        victim = child(worker)
        until(lambda: not victim.is_running())
    seen, other = tracked_workers.ended(first, second, seconds=10)
    assert [(run.state, run.lost, run.pid) for run in seen.runs] == [
        ("completed", False, victim.pid)
    ]
    assert other.job.state == "completed"


@pytest.mark.slow
def test_recycled_while_its_snooze_is_locked(tracked_workers: TrackedWorkers) -> None:
    """The message is requeued, not acknowledged; the main process records no time for it."""
    first, second = in_lane(tracked_workers, "snooze_once")
    with locked(tracked_workers, first):
        worker = tracked_workers.start("-c", "1", "--max-tasks-per-child", "1", app=APP)
        victim = child(worker)
        until(lambda: not victim.is_running())
    seen, other = tracked_workers.ended(first, second, seconds=30)
    assert [run.state for run in seen.runs] == ["failed", "completed"]
    assert [seen.job.state, other.job.state] == ["completed", "completed"]
    assert worker.poll() is None


@pytest.mark.slow
def test_killed_before_celery_knew_of_the_end(tracked_workers: TrackedWorkers) -> None:
    """The message is delivered again, and the job ends once, with both executions."""
    first, second = in_lane(tracked_workers, "end_and_die")
    with locked(tracked_workers, first):
        worker = tracked_workers.start("-c", "1", app=APP)
        until(lambda: runs_of(tracked_workers, "ran") == 2)
        say(tracked_workers, "last")
    seen, other = tracked_workers.ended(first, second, seconds=10)
    ends = "SELECT state, retried_by FROM pgbeat.ended_jobs WHERE id = %s"
    runs = until(lambda: found if len(found := tracked_workers.runs(first)) == 2 else None)
    assert tracked_workers.sql(ends, first) == [("completed", None)]
    assert [(run.state, run.lost) for run in runs] == [("completed", False)] * 2
    assert [seen.job.retried_by, other.job.state] == [None, "completed"]
    assert tracked_workers.sql("SELECT count(*) FROM pgbeat.running_executions") == [(0,)]
    assert worker.poll() is None


@pytest.mark.slow
def test_killed_when_celery_had_only_stored_the_result(tracked_workers: TrackedWorkers) -> None:
    """Celery reports no failure then. The job is not left pending: its result says how it ended."""
    first, second = in_lane(tracked_workers, "store_and_die")
    settings = {"worker_lost_wait": 0.5, "result_backend": "pgbeat://"}
    with locked(tracked_workers, first):
        worker = tracked_workers.start("-c", "1", app=APP, settings=settings)
        worker.says("succeeded before the worker was lost")
    seen, other = tracked_workers.ended(first, second, seconds=20)
    assert (seen.job.state, [run.lost for run in seen.runs]) == ("completed", [False])
    assert other.job.state == "completed"
    assert worker.poll() is None


@pytest.mark.slow
def test_processes_that_are_recycled_leave_nothing_behind(tracked_workers: TrackedWorkers) -> None:
    """The worker keeps shared memory for as many processes as it has, and no files."""
    worker = tracked_workers.start("-c", "2", "--max-tasks-per-child", "1")

    def shared() -> int:
        maps = psutil.Process(worker.pid).memory_maps(grouped=False)
        return sum(each.size for each in maps if each.path.startswith("/dev/zero"))

    before, files = shared(), len(psutil.Process(worker.pid).open_files())
    assert before > 1 << 20
    tracked_workers.ended(*tracked_workers.launch("add", count=20))
    assert len(tracked_workers.sql("SELECT DISTINCT pid FROM pgbeat.executions")) == 20
    until(lambda: shared() <= before, 20, "the memory of recycled processes is returned")
    assert len(psutil.Process(worker.pid).open_files()) <= files
