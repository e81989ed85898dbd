"""Executions as workers record them: on each pool, for each way that a task can end."""

import time
from pathlib import Path
from typing import Any

import pytest

from pgbeat.config import postgres_url
from pgbeat.database.migrations import migrate
from pgbeat.testing.databases import TemporaryServer
from tests.support.processes import Process, until
from tests.support.recorded_workers import TrackedWorkers

POOLS = ("prefork", "solo", "threads", "gevent")
#: The pools in turn; one of them in the default run.
pools = pytest.mark.parametrize(
    "pool", ["prefork", *(pytest.param(p, marks=pytest.mark.slow) for p in POOLS[1:])]
)


def start(tracked_workers: TrackedWorkers, pool: str, **settings: Any) -> Process:
    if pool == "gevent":
        pytest.importorskip("gevent")
    return tracked_workers.start("-P", pool, "-c", "2", settings=settings)


NOT_AWAITED = (
    "TypeError: task 'tests.coroutine' is `async def`, which Celery doesn't await; make it a "
    "function that calls asyncio.run(…)"
)


@pools
def test_each_end_is_recorded(tracked_workers: TrackedWorkers, pool: str) -> None:
    """What an execution ended with, and what that makes of its job."""
    start(tracked_workers, pool)
    expected: dict[tuple[Any, ...], tuple[str, str, str | None, str | None]] = {
        ("add",): ("completed", "completed", None, "3"),
        ("fail",): ("failed", "failed", "ValueError: no such thing", None),
        ("fail", 1): ("failed", "failed", "ValueError: nul\\0 here", None),
        ("fail", 2): ("failed", "failed", "ValueError: half \\ud800 a character", None),
        ("coroutine",): ("failed", "failed", NOT_AWAITED, None),
        ("leave", "skip"): ("skipped", "skipped", "nothing to do", None),
        ("leave", "ignore"): ("completed", "completed", None, "ignored: as you like"),
        ("leave", "reject"): ("failed", "failed", "Reject: ('broken', False)", None),
        ("leave", "cancelled"): ("cancelled", "cancelled", "enough", None),
    }
    made = {tracked_workers.one(*call): ends for call, ends in expected.items()}
    talking = tracked_workers.one("log")
    for seen in tracked_workers.ended(*made):
        state, job_state, error, result = made[str(seen.job.id)]
        [run] = seen.runs
        assert (run.state, seen.job.state, run.error) == (state, job_state, error)
        assert seen.job.error == error
        assert run.result == result
        assert (run.number, run.retry_attempt, run.lost) == (1, 0, False)
        assert run.worker == seen.job.worker == "w0@tests"
        assert run.acks_late is (seen.job.task == "tests.leave")
        assert run.duration_ms is not None
        assert run.finished_at is not None
        assert seen.job.started_at == run.started_at <= run.finished_at == seen.job.finished_at
        assert (run.cpu_time_ms is None) is (pool == "gevent")
        assert run.memory_peak_mb is not None and run.memory_peak_mb > 10
        if seen.job.task == "tests.fail" and error == "ValueError: no such thing":
            assert run.traceback is not None
            assert run.traceback.endswith("ValueError: no such thing\n")
    tracked_workers.ended(talking)
    [(log,)] = tracked_workers.sql("SELECT log FROM pgbeat.executions WHERE job_id = %s", talking)
    *lines, last = [line[1:] for line in log["lines"]]
    assert lines == [
        ["INFO", "shop", "1 of nul\\0"],
        ["WARNING", "shop.tasks", "twice?"],
        ["WARNING", "celery.redirected", "printed"],
        ["INFO", "shop", "inner"],
    ]
    assert last[:2] == ["ERROR", "shop"]
    assert last[2].startswith("It failed\nTraceback") and last[2].endswith("ValueError: caught")
    assert tracked_workers.sql("SELECT count(*) FROM pgbeat.executions WHERE log IS NOT NULL") == [
        (1,)
    ]


@pools
def test_celerys_own_retry_is_another_execution_of_the_same_job(
    tracked_workers: TrackedWorkers, pool: str
) -> None:
    start(tracked_workers, pool)
    job_id = tracked_workers.one("retry")
    tracked_workers.ended(job_id)
    # The first may be recorded after the second, as another process ran it, and so have number 2.
    until(lambda: all(run.state != "running" for run in tracked_workers.see(job_id).runs))
    seen = tracked_workers.see(job_id)
    assert sorted(run.number for run in seen.runs) == [1, 2]
    assert sorted((run.retry_attempt, run.state, run.error) for run in seen.runs) == [
        (0, "failed", "OSError: not yet"),
        (1, "completed", None),
    ]
    assert seen.job.state == "completed"
    assert seen.job.error is None


@pools
def test_progress_and_what_the_task_reports(tracked_workers: TrackedWorkers, pool: str) -> None:
    """While it runs, and at its end."""
    start(tracked_workers, pool)
    told = {"items_crawled": 30, "at": "/x"}
    job_id = tracked_workers.one("talk", "a")
    run = until(
        lambda: next((r for r in tracked_workers.see(job_id).runs if r.metadata == told), None)
    )
    assert (run.progress_done, run.state, run.progress_total, run.progress_message) == (
        3,
        "running",
        5,
        "step 3",
    )
    tracked_workers.open("a")
    [seen] = tracked_workers.ended(job_id)
    made = ["s3://x/1.pdf", "/x/2.csv"]
    assert seen.runs[0].metadata == {**told, "items_indexed": 7, "artifacts": made}
    assert seen.runs[0].artifacts == made
    assert seen.runs[0].progress_done == 3
    result = seen.runs[0].result
    assert result is not None and len(result) <= 200


@pools
def test_a_checkpoint_is_there_for_the_next_attempt(
    tracked_workers: TrackedWorkers, pool: str
) -> None:
    """Celery's retry, and the job that tries again."""
    start(tracked_workers, pool)
    kept = {"page": 3, "seen": ["a\\0b"]}
    retried, failed = (
        tracked_workers.one("remember"),
        tracked_workers.one("remember", True, max_attempts=2, retry_base=0),
    )
    for seen in tracked_workers.ended(retried, failed):
        assert seen.job.checkpoint == kept
        last = tracked_workers.ended(str(seen.job.retried_by))[0] if seen.job.retried_by else seen
        assert last.job.state == "completed"
        assert str(last.runs[-1].result).startswith("{'page': 3, ")
        assert last.job.attempt == (2 if str(seen.job.id) == failed else 1)


@pytest.mark.slow
def test_a_checkpoint_is_durable_before_the_call_returns(tracked_workers: TrackedWorkers) -> None:
    """The process dies in the next line."""
    start(tracked_workers, "prefork")
    job_id = tracked_workers.one("keep_and_die")
    until(lambda: (tracked_workers.folder / "gate-kept").exists())
    assert tracked_workers.see(job_id).job.checkpoint == {"page": 1}


@pools
def test_a_failure_without_a_claim_does_not_fail_the_job(
    tracked_workers: TrackedWorkers, pool: str
) -> None:
    """Its worker's session is cut while it runs, so its message is delivered again."""
    start(tracked_workers, pool)
    job_id = tracked_workers.one("fail_once", "open")
    tracked_workers.runs(job_id)
    tracked_workers.sql(
        "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' "
        "AND classid = 1885823587 AND granted AND database = "
        "(SELECT oid FROM pg_database WHERE datname = current_database())"
    )
    tracked_workers.open("open")
    [seen] = tracked_workers.ended(job_id)
    assert seen.job.state == "completed"
    assert [run.state for run in seen.runs] == ["failed", "completed"]


@pools
def test_a_task_can_be_asked_to_end(tracked_workers: TrackedWorkers, pool: str) -> None:
    """It hears of it in `progress`, or asks; nothing is tried again."""
    start(tracked_workers, pool)
    for task, error in (("obey", "the job is cancelled"), ("strive", "ValueError: in the midst")):
        job_id = tracked_workers.one(task, max_attempts=3, retry_base=0)
        tracked_workers.runs(job_id)
        tracked_workers.ask_to_end(job_id)
        [seen] = tracked_workers.ended(job_id, seconds=20)
        assert seen.job.state == "cancelled"
        assert seen.job.retried_by is None
        assert str(seen.runs[0].error).startswith(error)
        assert seen.runs[0].state == ("cancelled" if task == "obey" else "failed")


@pytest.mark.parametrize("pool", ["prefork", pytest.param("gevent", marks=pytest.mark.slow)])
def test_a_running_job_is_terminated(tracked_workers: TrackedWorkers, pool: str) -> None:
    """By remote control, on pools that can."""
    start(tracked_workers, pool)
    job_id = tracked_workers.one("hold", "never")
    tracked_workers.runs(job_id)
    tracked_workers.cancel(job_id)
    [seen] = tracked_workers.ended(job_id, seconds=20)
    assert seen.job.state == "cancelled"
    assert [run.state for run in seen.runs] == ["cancelled"]
    assert (seen.job.cancel_requested_by, seen.job.cancel_reason) == ("me", "no")
    if pool == "prefork":
        assert seen.job.error == seen.runs[0].error == "no (terminated)"


@pytest.mark.slow
def test_revoked_expired_and_unknown_jobs_end(tracked_workers: TrackedWorkers) -> None:
    """They never began; there is no execution."""
    worker = start(tracked_workers, "prefork", pgbeat_deploy_window=0)
    expired = tracked_workers.one("add", options={"expires": "2020-01-01T00:00:00+00:00"})
    unknown = tracked_workers.one("nobody_knows_it")
    held = tracked_workers.launch("hold", "a", count=2)
    for job_id in held:
        tracked_workers.runs(job_id)
    waiting = tracked_workers.one("add")
    until(lambda: not tracked_workers.sql("SELECT 1 FROM kombu_message WHERE visible"))
    tracked_workers.cancel(waiting)
    until(lambda: f"Terminating {waiting}" in worker.output)  # before its turn comes
    tracked_workers.open("a")
    seen = tracked_workers.ended(expired, unknown, waiting)
    [(name,)] = tracked_workers.sql("SELECT name FROM pgbeat.workers")
    assert [(each.job.state, each.job.error) for each in seen] == [
        ("cancelled", "expired: no worker took its message from queue 'celery' in time"),
        ("failed", f"NotRegistered: worker {name} has not registered task 'tests.nobody_knows_it'"),
        ("cancelled", "no"),
    ]
    assert not any(each.runs for each in seen)


@pytest.mark.slow
def test_a_task_over_its_time_limit(tracked_workers: TrackedWorkers) -> None:
    start(tracked_workers, "prefork")
    [seen] = tracked_workers.ended(tracked_workers.one("limited"))
    assert seen.job.state == "failed"
    assert str(seen.job.error).startswith("TimeLimitExceeded: ")
    assert [(run.state, run.lost) for run in seen.runs] == [("failed", False)]


@pytest.mark.slow
@pools
def test_processor_time_and_memory(tracked_workers: TrackedWorkers, pool: str) -> None:
    """Each execution's own, where its process works on nothing else."""
    if pool == "gevent":
        pytest.skip("greenlets share a thread")
    start(tracked_workers, pool)
    greedy = tracked_workers.one("spend", 0.3, 200)
    [seen] = tracked_workers.ended(greedy)
    run = seen.runs[0]
    assert run.cpu_time_ms is not None and run.duration_ms is not None
    assert 300 <= run.cpu_time_ms <= run.duration_ms * 1.1 + 20
    assert run.memory_peak_mb is not None and run.memory_peak_mb > 200
    if pool != "threads":  # the most that the process ever had
        after = tracked_workers.ended(*tracked_workers.launch("spend", 0.0, 1, count=4))
        peaks = [each.runs[0].memory_peak_mb or 0 for each in after]
        assert max(peaks) < run.memory_peak_mb - 100


@pytest.mark.slow
@pytest.mark.parametrize("pool", POOLS)
def test_a_flood_is_recorded_completely(tracked_workers: TrackedWorkers, pool: str) -> None:
    """Each once, under load; and a process that ends records the rest."""
    start(tracked_workers, pool, worker_max_tasks_per_child=100)
    tracked_workers.launch("add", count=1000)
    until(lambda: tracked_workers.states() == {"completed": 1000}, what="all are completed")
    rows = tracked_workers.sql(
        "SELECT state, number, count(*) FROM pgbeat.executions GROUP BY 1, 2"
    )
    assert rows == [("completed", 1, 1000)]


@pytest.mark.slow
def test_which_tasks_are_recorded(tracked_workers: TrackedWorkers) -> None:
    """`launched`: jobs; `all`: also other tasks, for which jobs are made, but not pgbeat's own."""
    tracked_workers.start("-Q", "some", settings={"pgbeat_track": "launched"})
    tracked_workers.start("-Q", "all", settings={"pgbeat_track": "all"})
    tracked_workers.start("-Q", "none", settings={"pgbeat_track": "off"})
    sent = {
        queue: str(tracked_workers.app.send_task("tests.add", (1,), {"y": 5}, queue=queue).id)
        for queue in ("all", "some", "none")
    }
    tracked_workers.app.send_task("tests.add", task_id="no-uuid", queue="all")
    tracked_workers.app.send_task("tests.fail", (0, "x" * 20_000), queue="all")
    jobs = [tracked_workers.one("add", queue=queue) for queue in ("some", "all", "none")]
    assert [seen.job.state for seen in tracked_workers.ended(*jobs[:2])] == ["completed"] * 2
    [seen] = until(
        lambda: (
            tracked_workers.ended(sent["all"])
            if tracked_workers.states().get("completed") == 3
            else []
        )
    )
    assert seen.job.task == "tests.add"
    assert (seen.job.args, seen.job.kwargs, seen.job.queue) == ([1], {"y": 5}, "all")
    assert (seen.job.job_source, seen.job.is_system_job) == ("system", True)
    assert seen.job.created_by.startswith("celery:gen")
    assert [run.result for run in seen.runs] == ["6"]
    [(failed, args)] = until(
        lambda: tracked_workers.sql("SELECT error, args FROM pgbeat.jobs WHERE state = 'failed'")
    )
    assert len(failed) <= 2_000
    assert args is None
    until(lambda: not tracked_workers.sql("SELECT 1 FROM kombu_message"))
    assert tracked_workers.see(jobs[2]).job.state == "pending"
    assert tracked_workers.states() == {"completed": 3, "failed": 1, "pending": 1}


@pytest.mark.slow
@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_the_database_goes_and_comes_back(
    own_server: TemporaryServer, tmp_path: Path, pool: str
) -> None:
    """While tasks run: they end as usual, and all is recorded afterwards."""
    migrate.upgrade(postgres_url(own_server.dsn))
    tracked_workers = TrackedWorkers(own_server.dsn, tmp_path)
    try:
        _outage(tracked_workers, own_server, pool)
    finally:
        tracked_workers.close()


def _outage(tracked_workers: TrackedWorkers, server: TemporaryServer, pool: str) -> None:
    worker = tracked_workers.start("-P", pool, "-c", "2")
    held = tracked_workers.launch("hold", "a", count=2)
    for job_id in held:
        tracked_workers.runs(job_id)
    server.stop()
    tracked_workers.open("a")
    worker.says("Can't record executions", 20)
    time.sleep(2)  # the outage
    server.start()
    assert [seen.job.state for seen in tracked_workers.ended(*held)] == ["completed"] * 2
    runs = [run for job_id in held for run in tracked_workers.see(job_id).runs]
    assert [(run.state, run.number) for run in runs] == [("completed", 1)] * 2
    # Its main process and its children say it once each.
    assert 1 <= worker.output.count("Can't record executions") <= 3
