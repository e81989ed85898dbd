"""Jobs of workers that are killed: none stays running, and all is done once."""

import os
import random
import signal
from pathlib import Path

import psutil
import pytest

from pgbeat.jobs.running import workers
from tests.integration.jobs.test_rescue import check_all, settled
from tests.support.command_line import read, run
from tests.support.pgbouncer import needs_pgbouncer, pooler
from tests.support.processes import until
from tests.support.recorded_workers import TrackedWorkers
from tests.support.tcp_proxy import Proxy
from tests.support.transport_workers import transport_url

#: By those who look after others, or by the next who got the message.
LOST = ("lost: the worker w0@tests died", "lost: the message was delivered again")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "state", "runs"),
    [
        ("die", "failed", [("failed", True)]),
        ("die_once", "failed", [("failed", True)]),
        ("die_once_rejected", "completed", [("failed", True), ("completed", False)]),
    ],
    ids=["acknowledged early", "late", "late and rejected"],
)
def test_a_killed_prefork_child(
    tracked_workers: TrackedWorkers, task: str, state: str, runs: list[tuple[str, bool]]
) -> None:
    tracked_workers.start("-c", "1")
    job_id = tracked_workers.one(task, *(["died"] if task != "die" else []))
    [seen] = tracked_workers.ended(job_id)
    assert seen.job.state == state
    assert [(run.state, run.lost) for run in seen.runs] == runs
    assert tracked_workers.released() == 1


@pytest.mark.parametrize(
    "pool", ["prefork", *(pytest.param(p, marks=pytest.mark.slow) for p in ("solo", "threads"))]
)
@pytest.mark.slow
def test_a_killed_worker(tracked_workers: TrackedWorkers, pool: str) -> None:
    """What it ran is lost: what was acknowledged is tried again by policy, the rest redelivered."""
    victim = tracked_workers.start("-P", pool, "-c", "2")
    early, late = (
        tracked_workers.one("hold", "a", max_attempts=2, retry_base=0),
        tracked_workers.one("hold_late", "a"),
    )
    running = [early] if pool == "solo" else [early, late]
    for job_id in running:
        tracked_workers.runs(job_id)
    other = tracked_workers.start("-P", "threads", "-c", "3")
    victim.kill_group()
    for job_id in running:
        until(lambda j=job_id: tracked_workers.see(j).runs[0].lost, 30)  # type: ignore[misc]
    tracked_workers.open("a")
    first, second = tracked_workers.ended(early, late)
    assert first.runs[0].error in LOST
    assert second.job.state == "completed"
    assert first.job.state == "failed"
    [again] = tracked_workers.ended(str(first.job.retried_by))
    assert again.job.state == "completed"
    assert tracked_workers.released() == len(running)
    assert other.poll() is None


@pytest.mark.slow
@pytest.mark.parametrize("kills", ["the process", "the group"])
def test_a_killed_worker_that_nobody_notices(tracked_workers: TrackedWorkers, kills: str) -> None:
    """No other worker runs, and no beat: by its lock it is gone at once."""
    worker = tracked_workers.start("-c", "2")
    living = (
        "SELECT FROM pg_locks l JOIN pg_database d ON d.oid = l.database "
        "WHERE datname = current_database() AND classid = %s AND locktype = 'advisory'"
    )
    until(lambda: tracked_workers.sql(living, workers.LIFE))
    metrics = "pgbeat_workers {}.0".format
    assert metrics(1) in run(tracked_workers.database, "metrics").stdout
    checks = {each["check"]: each for each in read(tracked_workers.database, "doctor")["checks"]}
    assert (checks["workers"]["result"], checks["queues"]["result"]) == ("ok", "ok")
    worker.kill() if kills == "the process" else worker.kill_group()
    until(lambda: metrics(0) in run(tracked_workers.database, "metrics").stdout, 5)
    [row] = read(tracked_workers.database, "workers")
    assert row["missing_since"] is not None
    assert "lost" in run(tracked_workers.database, "workers").stdout
    shown = run(tracked_workers.database, "doctor")
    assert shown.exit_code == 1
    assert "0 workers alive; died: w0@tests" in shown.stdout


@pytest.mark.slow
@needs_pgbouncer
def test_a_killed_worker_behind_a_pooler(
    tracked_workers: TrackedWorkers, database: str, tmp_path: Path
) -> None:
    """It lives by its lease, since the pooler would keep a lock for it; renewed while it lives."""
    with pooler(database, tmp_path) as pooled:
        victim = tracked_workers.start(
            "-P",
            "threads",
            "-c",
            "1",
            TESTS_DATABASE=pooled.url,
            TESTS_BROKER=f"pgbeat+{pooled.url}",
        )
        job_id = tracked_workers.one("hold", "a", max_attempts=1)
        tracked_workers.runs(job_id)
        [(lease,)] = tracked_workers.sql("SELECT alive_until FROM pgbeat.workers")
        until(
            lambda: tracked_workers.sql(
                "SELECT id FROM pgbeat.workers WHERE alive_until > %s", lease
            )
        )
        tracked_workers.start("-P", "solo")
        victim.kill_group()
        held = "SELECT objid FROM pg_locks WHERE locktype = 'advisory' AND classid = %s"
        until(lambda: len(tracked_workers.sql(held, workers.LIFE)) == 1)
        tracked_workers.sql(
            "UPDATE pgbeat.workers SET alive_until = now() - interval '1 s'"
            " WHERE alive_until IS NOT NULL"
        )
        [seen] = tracked_workers.ended(job_id)
    assert (seen.job.state, seen.runs[0].lost) == ("failed", True)


@pytest.mark.slow
def test_the_main_process_killed_alone(tracked_workers: TrackedWorkers) -> None:
    """Its children go on for a while; they hold nothing of its session."""
    victim = tracked_workers.start("-c", "2", "--max-tasks-per-child", "1")
    tracked_workers.ended(
        *tracked_workers.launch("add", count=4)
    )  # children that were forked since
    job_id = tracked_workers.one("hold_late", "a")
    tracked_workers.runs(job_id)
    tracked_workers.start("-P", "threads", "-c", "1")
    children = psutil.Process(victim.pid).children(recursive=True)
    os.kill(victim.pid, signal.SIGKILL)
    victim.wait()
    until(lambda: tracked_workers.see(job_id).runs[0].lost, 30)
    tracked_workers.open("a")
    [seen] = tracked_workers.ended(job_id)
    assert seen.job.state == "completed"
    for child in children:
        if child.is_running():
            child.kill()


@pytest.mark.slow
@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_worker_that_is_cut_off_and_comes_back(
    tracked_workers: TrackedWorkers, pool: str
) -> None:
    """It counts as dead, and others do what it had. What it tells later changes nothing of that."""
    proxy = Proxy(tracked_workers.database)
    tracked_workers.start("-P", pool, "-c", "2", TESTS_BROKER=transport_url(proxy.dsn))
    early, late = (
        tracked_workers.one("hold", "a", max_attempts=2, retry_base=0),
        tracked_workers.one("hold_late", "a"),
    )
    for job_id in (early, late):
        tracked_workers.runs(job_id)
    other = tracked_workers.start("-P", "threads", "-c", "3")
    proxy.cut()
    until(lambda: tracked_workers.see(early).runs[0].lost, 60, "it counts as dead")
    again = str(tracked_workers.see(early).job.retried_by)
    assert [
        run.worker for run in (tracked_workers.runs(again)[0], tracked_workers.runs(late, 2)[1])
    ] == ["w1@tests"] * 2
    tracked_workers.open("a")
    ends = [seen.job for seen in tracked_workers.ended(early, late, again)]
    assert [job.state for job in ends] == ["failed", "completed", "completed"]
    proxy.mend()
    for job_id in (early, late):  # it says how they really ended
        until(lambda j=job_id: tracked_workers.see(j).runs[0].state == "completed", 60)  # type: ignore[misc]
    other.terminate()
    other.wait(30)
    [last] = tracked_workers.ended(tracked_workers.one("add"))
    assert last.runs[0].worker == "w0@tests"
    assert [tracked_workers.see(job.id).job for job in ends] == ends
    assert tracked_workers.sql("SELECT count(*) FROM kombu_message WHERE job_id IS NOT NULL") == [
        (0,)
    ]
    proxy.close()


@pytest.mark.slow
def test_a_worker_that_ends_leaves_nothing(tracked_workers: TrackedWorkers) -> None:
    """It finishes what it has, tells all of it, and is no more."""
    worker = tracked_workers.start("-c", "2")
    made = tracked_workers.launch("work", 0.2, count=6)
    until(lambda: tracked_workers.states().get("running") == 2)
    assert tracked_workers.sql(
        "SELECT name, pool, concurrency, missing_since FROM pgbeat.workers"
    ) == [("w0@tests", "prefork", 2, None)]
    worker.terminate()
    worker.wait(30)
    states = tracked_workers.states()
    assert "running" not in states, states
    assert states["completed"] >= 2
    assert tracked_workers.sql("SELECT count(*) FROM pgbeat.workers") == [(0,)]
    assert len(made) == sum(states.values())


@pytest.mark.slow
def test_two_hundred_jobs_while_children_and_workers_are_killed(
    tracked_workers: TrackedWorkers,
) -> None:
    settings = {"worker_lost_wait": 2.0}
    tracked_workers.start("-c", "3", settings=settings)
    victim = tracked_workers.start("-c", "3", settings=settings)
    made = tracked_workers.launch("work", 0.1, count=100, max_attempts=9, retry_base=0)
    made += tracked_workers.launch("work_late", 0.1, count=100, max_attempts=9, retry_base=0)
    until(lambda: tracked_workers.states().get("completed", 0) > 20)
    for process in list(tracked_workers.started):
        child = random.choice(psutil.Process(process.pid).children())  # noqa: S311
        child.kill()
    until(lambda: tracked_workers.states().get("completed", 0) > 80)
    victim.kill_group()
    tracked_workers.start("-c", "3", settings=settings)
    until(lambda: settled(tracked_workers), 120, "all have ended")
    check_all(tracked_workers, made)
    assert tracked_workers.released() >= 1
