"""Workers are stopped as the table in docs/how-to/deploy.md says, whose rows these tests read."""

import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import celery
import psutil
import pytest

from tests.support.processes import ROOT, Process, until
from tests.support.recorded_workers import TrackedWorkers
from tests.support.transport_workers import POOLS

APP = "tests.support.apps.journal"
#: The ways of each shutdown: signals, and what the worker's environment has.
WAYS = {
    "warm": ["SIGTERM", "SIGINT"],
    "soft": ["SIGQUIT"],
    "cold": ["SIGQUIT", "SIGINT SIGINT", "SIGTERM SIGQUIT", "REMAP_SIGTERM=SIGQUIT SIGTERM"],
}
#: Pools of greenlets.
GREEN = {"gevent", "eventlet"}
#: Seconds of a soft shutdown.
TIMEOUT = 3
#: Those for which CI has time at each change.
QUICK = {("warm", "prefork", "SIGTERM"), ("soft", "threads", "SIGQUIT")}


def rows() -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yields the shutdown, each pool and the other cells of the table's rows."""
    page = (ROOT / "docs/how-to/deploy.md").read_text()
    lines = page.partition("## Stopping workers")[2].partition("## ")[0].splitlines()
    for line in [line for line in lines if line.startswith("| ")][1:]:
        how, pools, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        yield from ((how, pool, tuple(cells)) for pool in pools.split(", "))


def cases() -> Iterator[Any]:
    """Yields each row with each way."""
    for how, pool, cells in rows():
        for way in WAYS[how]:
            marks = [] if (how, pool, way) in QUICK else [pytest.mark.slow]
            yield pytest.param(how, pool, way, cells, marks=marks, id=f"{how}-{pool}-{way}")


def test_the_table_has_each_shutdown_of_each_pool() -> None:
    expected = {(how, pool) for how in WAYS for pool in POOLS}
    assert Counter((how, pool) for how, pool, _ in rows()) == Counter(expected)


def senders(workers: TrackedWorkers) -> dict[str, Callable[..., str]]:
    """Returns what sends tasks of each kind, which wait at a gate.

    Late jobs may run once, and early ones twice: a shutdown must not count.
    """
    workers.app.conf.pgbeat_task_policies = {"transport.late_job": {"max_attempts": 1}}
    return {
        "early": partial(workers.send, "hold"),
        "late": partial(workers.send, "late"),
        "early job": partial(workers.one, "transport.hold", max_attempts=2, retry_base=3600),
        "late job": partial(workers.one, "transport.late", max_attempts=1),
        "late job by policy": partial(workers.send, "late_job"),
    }


@pytest.mark.parametrize("how, pool, way, cells", [*cases()])
def test_a_worker_is_stopped(
    tracked_workers: TrackedWorkers, how: str, pool: str, way: str, cells: tuple[str, ...]
) -> None:
    """It runs a task of each kind, and has claimed another."""
    if celery.VERSION < (5, 7) and (pool in GREEN or (how, pool) == ("warm", "prefork")):
        pytest.skip("the table says that this needs Celery 5.7")
    workers, (running, goes_back, late, early) = tracked_workers, cells
    send = senders(workers)
    # A solo worker runs one task: there is one for each kind.
    queues = {kind: f"q{number if pool == 'solo' else 0}" for number, kind in enumerate(send)}
    may_end = {"ends": set(send), "may end within the timeout": {"early", "late job"}}
    ending = may_end.get(running, set())
    gates = {kind: f"ends-{kind in ending}" for kind in send} | {
        "late": f"first-{'late' in ending}"
    }
    begun = {kind: send[kind](gates[kind], queue=queues[kind]) for kind in send}
    unstarted = {kind: send[kind]("unstarted", queue=queues[kind]) for kind in send}
    ids = [*begun.values(), *unstarted.values()]
    stopped = start(workers, how, pool, way, queues)
    workers.await_started([*begun.values()])
    for kind in send:
        if "job" in kind:
            workers.runs(begun[kind])
    claimed = [*unstarted.values(), *(begun[kind] for kind in send if "late" in kind)]
    until(lambda: messages(workers, ids) == dict.fromkeys(claimed, (False, 1)))

    for worker in stopped:
        stop(worker, way)
    is_back = dict.fromkeys(unstarted.values(), (True, 0))
    if how != "cold" and goes_back == "at once":
        until(
            lambda: is_back.items() <= messages(workers, ids).items(),
            20 if how == "warm" else TIMEOUT,
        )
        assert all(worker.poll() is None for worker in stopped)
    elif how != "cold":
        assert not is_back.items() & messages(workers, ids).items()
    workers.open("first-True")
    if how == "warm" and pool != "solo":
        until(lambda: begun["late"] not in messages(workers, ids), what="it is acknowledged")
        assert stopped[0].poll() is None
    workers.open("ends-True")
    for worker in stopped:
        assert worker.wait(30) in (0, 1), worker.output
        assert "Traceback" not in worker.output
    unfinished = set(send) - ending
    again = {k for k in unfinished if (late if "late" in k else early) == "runs again"}
    assert messages(workers, ids) == is_back | {begun[kind]: (True, 0) for kind in again}
    assert not workers.sql("SELECT 1 FROM pgbeat.consumers")

    workers.start("-P", "threads", "-c", "10", "-Q", ",".join({*queues.values()}), app=APP)
    workers.open("ends-False", "first-False", "unstarted")
    for kind in send:
        if "job" in kind:
            assert_ended(workers, begun[kind], kind in unfinished, kind in unfinished - again)
            assert_ended(workers, unstarted[kind])
    until(lambda: not messages(workers, ids))
    starts = Counter(entry.id for entry in workers.journal())
    assert starts == Counter([*ids, *(begun[kind] for kind in again)])
    assert {entry.failed_before for entry in workers.journal()} == {0}
    of_unstarted = [entry for entry in workers.journal() if entry.id in unstarted.values()]
    assert all(entry.redelivered for entry in of_unstarted)


def start(
    workers: TrackedWorkers, how: str, pool: str, way: str, queues: dict[str, str]
) -> list[Process]:
    """Starts a worker for each queue, with room for all tasks that are sent there."""
    env = dict(word.split("=") for word in way.split() if "=" in word)
    settings = {"worker_soft_shutdown_timeout": TIMEOUT if how == "soft" else 0}
    count = Counter(queues.values())
    options = {"app": APP, "settings": settings, **env}
    started = [
        workers.begin("-P", pool, "-c", str(count[queue]), "-Q", queue, **options)  # type: ignore[arg-type]
        for queue in count
    ]
    workers.await_ready(*started)
    return started


def stop(worker: Process, way: str) -> None:
    """Sends a worker the signals of a way."""
    for number, name in enumerate(word for word in way.split() if "=" not in word):
        if number:
            worker.says("worker: Warm shutdown")
        worker.send_signal(signal.Signals[name])


def messages(workers: TrackedWorkers, ids: list[str]) -> dict[str, tuple[bool, int]]:
    """Returns of the tasks' messages whether workers may have them, and how often they had."""
    rows = workers.sql(
        "SELECT payload::json -> 'headers' ->> 'id', visible AND claimed_by IS NULL, deliveries "
        "FROM kombu_message"
    )
    return {task: (is_visible, count) for task, is_visible, count in rows if task in ids}


def assert_ended(
    workers: TrackedWorkers, job_id: str, was_stopped: bool = False, is_lost: bool = False
) -> None:
    """Waits for the end of a job, whose first execution a shutdown may have ended."""
    [(job, runs)] = workers.ended(job_id)
    lost = [("failed", True)] if was_stopped else []
    done = [] if is_lost else [("completed", False)]
    assert [(run.state, run.lost) for run in runs] == [*lost, *done]
    assert (job.attempt, job.state) == (1, "failed" if is_lost else "completed")
    if is_lost:
        assert job.retried_by is not None


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["stop", "stopwait", "restart"])
def test_celery_multi(tracked_workers: TrackedWorkers, verb: str) -> None:
    """It shuts down warmly: `stopwait` and `restart` wait for the running task."""
    workers = tracked_workers

    def multi(verb: str) -> Process:
        files = [f"--{kind}file={workers.folder}/%n.{kind}" for kind in ("pid", "log")]
        node = ("w0@tests", "-A", APP, "-P", "prefork", "-c", "1", "-l", "INFO", *files)
        return workers.run(sys.executable, "-m", "celery", "multi", verb, *node)

    def node() -> psutil.Process:
        file = workers.folder / "w0.pid"
        until(lambda: file.exists() and file.read_text().strip())
        return psutil.Process(int(file.read_text()))

    running, unstarted = (workers.one("transport.late", gate) for gate in ("a", "b"))
    assert multi("start").wait(30) == 0
    worker = node()
    try:
        workers.await_started([running])
        until(lambda: workers.claimed() == 2)
        stopping = multi(verb)
        until(lambda: messages(workers, [running, unstarted])[unstarted] == (True, 0))
        assert worker.is_running()
        if verb != "stop":
            assert stopping.poll() is None
        workers.open("a", "b")
        assert stopping.wait(30) == 0
        psutil.wait_procs([worker], timeout=30)
        assert not worker.is_running()
        if verb == "restart":
            worker = node()
            assert_ended(workers, unstarted)
        assert_ended(workers, running)
        assert workers.waiting() == (0 if verb == "restart" else 1)
    finally:
        for process in [*worker.children(), worker] if worker.is_running() else []:
            process.kill()
