"""`pgbeat.finish` with real workers: rows, result, messages and acknowledgement are one."""

import json
from functools import partial
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from celery import chain, chord, group

import pgbeat
from pgbeat.config import postgres_url
from pgbeat.database import connections
from pgbeat.errors import CannotFinish, ConfigError
from pgbeat.jobs.running import executions
from pgbeat.jobs.running.executions import ExecutionRecord
from tests.acceptance.results.conftest import Client, Finishers
from tests.support.apps.finishing import STEPS
from tests.support.processes import Process, until
from tests.support.transport_workers import POOLS


@pytest.mark.parametrize(
    ("pool", "is_async"),
    [
        ("prefork", ""),
        ("threads", "1"),
        *(pytest.param(p, "", marks=pytest.mark.slow) for p in POOLS if p != "prefork"),
        pytest.param("prefork", "1", marks=pytest.mark.slow),
    ],
)
def test_what_a_task_writes_commits_with_its_end(
    finishers: Finishers, pool: str, is_async: str
) -> None:
    finishers.start("-P", pool, "-c", "2", TESTS_ASYNC=is_async)
    sign = finishers.sign
    assert chain(sign("book", 1), sign("confirm"))().get(timeout=30) == 1
    assert chord([sign("book", n) for n in (2, 3)], sign("collect"))().get(timeout=30) == 2
    assert sign("retry", 4).delay().get(timeout=30) == 4
    assert sign("replace", 5).delay().get(timeout=30) == 5
    with pytest.raises(ValueError, match="it fails"):
        sign("fail", 6).delay().get(timeout=30)
    until(finishers.is_quiet)
    assert finishers.rows() == [
        ("attempt 2", 4),
        ("booked", 1),
        ("booked", 2),
        ("booked", 3),
        ("booked", 5),
        ("collected", 2),
        ("confirmed", 1),
    ]


@pytest.mark.slow
def test_all_tasks_end_in_one_transaction_if_asked_to(finishers: Finishers) -> None:
    """Also those that write nothing: alone, in a chain, in a chord, and failing."""
    finishers.start("-P", "prefork", "-c", "2", TESTS_SETTINGS=json.dumps({"pgbeat_finish": True}))
    plain = finishers.sign("plain")
    assert plain.clone((1,)).delay().get(timeout=30) == 1
    assert chain(plain.clone((2,)), plain, plain)().get(timeout=30) == 2
    assert chord([plain.clone((n,)) for n in range(3)], plain)().get(timeout=30) == [0, 1, 2]
    with pytest.raises(ValueError, match="it fails"):
        finishers.sign("fail", 3).delay().get(timeout=30)
    assert finishers.is_quiet()


@pytest.mark.parametrize("is_async", ["", "1"])
@pytest.mark.slow
def test_a_run_that_lost_its_message_leaves_nothing(finishers: Finishers, is_async: str) -> None:
    """As when the claim was taken for dead: the run that comes after it is the only one.

    Nor is the size of the chord there that would have followed.
    """
    worker = finishers.start("-P", "prefork", "-c", "1", TESTS_ASYNC=is_async)
    plain = finishers.sign("plain")
    result = chain(finishers.sign("wait", 1), group(plain, plain), plain).delay()
    until((finishers.folder / "waiting").exists)
    finishers.sql("UPDATE kombu_message SET claimed_by = NULL, visible = true")
    finishers.sql("DELETE FROM kombu_message")
    (finishers.folder / "go").touch()
    worker.says("Nothing of task", 30)
    assert finishers.rows() == []
    assert finishers.sql("SELECT * FROM pgbeat.chords") == []
    assert result.state == "PENDING"


@pytest.mark.parametrize("state", ["failed", "completed"])
def test_a_run_whose_job_has_ended_leaves_nothing(
    finishers: Finishers, database: str, state: Any
) -> None:
    """A worker whose process died with it reported that, and was killed with the message.

    Or another run of it has completed: what that one wrote is there once.
    """
    job = submitted(finishers.client, "wait", 1)
    worker = finishers.start("-P", "prefork", "-c", "1")
    until((finishers.folder / "waiting").exists)
    died = ExecutionRecord(
        str(uuid4()), job, True, state=state, job_state=state, lost=state == "failed"
    )
    with connections.engine(postgres_url(database), "tests").begin() as connection:
        executions.record(connection, [died])
    (finishers.folder / "go").touch()
    worker.says("Nothing of task", 30)
    until(finishers.is_quiet)
    assert finishers.rows() == []
    assert finishers.sql("SELECT state FROM pgbeat.jobs") == [(state,)]


@pytest.mark.parametrize(
    ("pool", "is_async", "has_more"),
    [
        pytest.param("prefork", "", False, marks=pytest.mark.slow),
        ("prefork", "1", False),
        *(
            pytest.param(pool, "", True, marks=[pytest.mark.slow] * (pool == "gevent"))
            for pool in ("prefork", "threads", "gevent", "solo")
        ),
    ],
)
def test_a_connection_cut_at_the_end_has_the_task_run_again(
    finishers: Finishers, pool: str, is_async: str, has_more: bool
) -> None:
    """Also if Celery has called what follows in its chain."""
    worker = finishers.start("-P", pool, "-c", "1", TESTS_ASYNC=is_async)
    sign = finishers.sign
    result = (chain(sign("wait", 1), sign("confirm")) if has_more else sign("wait", 1)).delay()
    until((finishers.folder / "waiting").exists)
    finishers.sql(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE state = 'idle in transaction' AND query LIKE 'INSERT INTO written%%'"
    )
    (finishers.folder / "go").touch()
    worker.says("A task runs again", 30)
    assert result.get(timeout=30) == 1
    until(finishers.is_quiet)
    assert finishers.rows() == [("confirmed", 1)] * has_more + [("waited", 1)]


def test_a_commit_that_the_database_refuses_is_a_failure(finishers: Finishers) -> None:
    """Of a task alone, of one in a chain, and of a job."""
    finishers.sql("ALTER TABLE written ADD UNIQUE (what) DEFERRABLE INITIALLY DEFERRED")
    finishers.sql("INSERT INTO written VALUES ('booked', 0)")
    finishers.start("-P", "threads", "-c", "2")
    sign = finishers.sign
    alone, job = sign("book", 1).delay(), submitted(finishers.client, "book", 2)
    chained = chain(sign("book", 3), sign("confirm")).delay()
    for result in (alone, finishers.client.app.AsyncResult(job), chained.parent):
        assert isinstance(result.get(timeout=30, propagate=False), Exception)
    until(finishers.is_quiet)
    assert finishers.rows() == [("booked", 0)]
    assert finishers.sql("SELECT state FROM pgbeat.executions") == [("failed",)]


@pytest.mark.parametrize(
    ("task", "error", "why", "kept"),
    [
        ("early", CannotFinish, "acknowledged before it runs", []),
        ("twice", CannotFinish, "block already", []),
        ("commit", CannotFinish, "before the task ended", [("committed", 1)]),
        ("elsewhere", ConfigError, "in another database", []),
    ],
)
@pytest.mark.slow
def test_where_it_cannot_hold_the_task_fails(
    finishers: Finishers, task: str, error: type[Exception], why: str, kept: list[Any]
) -> None:
    """Rather than commit by itself."""
    finishers.start("-c", "1")
    with pytest.raises(error, match=why):
        finishers.sign(task, 1).delay().get(timeout=30)
    assert finishers.rows() == kept


@pytest.mark.slow
def test_an_option_that_cannot_hold_ends_the_worker_at_its_start(finishers: Finishers) -> None:
    settings = {"task_acks_late": False, "pgbeat_finish": True}
    annotations = {"finishing.plain": {"pgbeat_finish": True}}
    worker = finishers.worker(
        app=finishers.app, TESTS_SETTINGS=json.dumps({**settings, "task_annotations": annotations})
    )
    assert worker.wait(30) != 0
    assert "pgbeat: task 'finishing.plain' can't end in one transaction: its message" in (
        worker.output
    )


def test_a_job_ends_with_its_execution(finishers: Finishers) -> None:
    finishers.start("-c", "1", TESTS_SETTINGS=json.dumps({"pgbeat_finish": True}))

    @finishers.client.app.task(name="finishing.book", shared=False)
    def book(n: int) -> int:
        return n

    job = pgbeat.submit(book, 1, app=finishers.client.app)
    assert finishers.client.app.AsyncResult(str(job.id)).get(timeout=30) == 1
    # Not later: what the result is read from has the rest.
    assert finishers.sql("SELECT state FROM pgbeat.jobs") == [("completed",)]
    assert finishers.sql("SELECT state, result, number FROM pgbeat.executions") == [
        ("completed", "1", 1)
    ]
    assert finishers.is_quiet()
    assert finishers.rows() == [("booked", 1)]


def test_what_its_class_does_around_its_run(finishers: Finishers) -> None:
    """Handles its error, runs it once more, awaits it: task and job end by what comes of it."""
    finishers.start("-P", "threads", "-c", "2", TESTS_SETTINGS=json.dumps({"pgbeat_finish": True}))
    finishers.client.app.conf.pgbeat_task_policies = {"finishing.*": {}}
    calls = [finishers.sign("stubborn", n).delay() for n in range(3)]
    calls.append(finishers.sign("awaited", 0).delay())
    assert [call.get(timeout=30) for call in calls] == [-1, 1, 2, 0]
    states = "SELECT state, count(*) FROM pgbeat.jobs GROUP BY 1"
    until(lambda: finishers.sql(states) == [("completed", 4)], 30, "all are recorded")
    with pytest.raises(CannotFinish, match="is awaited"):
        finishers.sign("awaited", 1).delay().get(timeout=30)
    assert finishers.rows() == [("awaited", 0), ("tried", 1), ("tried", 2)]


def test_a_task_whose_results_are_elsewhere(finishers: Finishers) -> None:
    """It is retried as Celery does it, and its block is refused."""
    worker = finishers.start("-P", "threads", "-c", "1")
    finishers.sign("aside", 1).delay()
    worker.says("can't end in one transaction: the result backend is not pgbeat's", 30)
    until(finishers.is_quiet)
    assert finishers.rows() == []


def submitted(client: Client, task: str, *arguments: Any) -> str:
    """Submits a job of the workers' task, and returns its id."""

    @client.app.task(name=f"finishing.{task}", shared=False)
    def known(*args: int) -> None:
        """Is the workers'."""

    return str(pgbeat.submit(known, *arguments, app=client.app, max_attempts=1).id)


def test_an_end_that_is_not_committed_is_recorded_by_nobody(
    finishers: Finishers, database: str
) -> None:
    """Though the recorder tries again to write that its task began, while the task ends."""
    waits, other = submitted(finishers.client, "wait", 1), submitted(finishers.client, "plain", 2)
    state = partial(finishers.sql, "SELECT state FROM pgbeat.jobs WHERE id = %s")
    with psycopg.connect(database) as jobs, psycopg.connect(database) as messages:
        jobs.execute("SELECT FROM pgbeat.unfinished_jobs FOR UPDATE")
        worker = finishers.start("-P", "threads", "-c", "2")
        until((finishers.folder / "waiting").exists)
        until(lambda: finishers.sql("SELECT count(*) FROM kombu_message") == [(1,)])
        messages.execute("SELECT FROM kombu_message FOR UPDATE")
        (finishers.folder / "go").touch()
        blocked = "FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        ends = f"{blocked} AND query LIKE '%DELETE FROM kombu_message%'"
        until(
            lambda: finishers.sql(f"SELECT pid {blocked} AND query LIKE 'WITH r AS MATERIALIZED%'")
        )
        jobs.rollback()
        until(lambda: finishers.sql(f"SELECT pid {ends}"))
        # The job is locked before its message and its result, as by whoever else ends it.
        with pytest.raises(psycopg.errors.LockNotAvailable):
            jobs.execute(
                "SELECT FROM pgbeat.unfinished_jobs WHERE id = %s FOR UPDATE NOWAIT", [waits]
            )
        jobs.rollback()
        until(lambda: state(other) == [("completed",)])
        assert state(waits) in ([("pending",)], [("running",)])
        finishers.sql(f"SELECT pg_terminate_backend(pid) {ends}")
        worker.says("A task runs again", 30)
    assert finishers.client.app.AsyncResult(waits).get(timeout=30) == 1
    assert finishers.rows() == [("waited", 1)]
    assert state(waits) == [("completed",)]
    recorded = partial(
        finishers.sql, "SELECT state FROM pgbeat.executions WHERE job_id = %s", waits
    )
    until(lambda: sorted(recorded()) == [("completed",), ("failed",)])


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("step", "is_async"), [*((step, "") for step in STEPS), (STEPS[3], "1"), (STEPS[4], "1")]
)
def test_a_process_killed_at_each_step(finishers: Finishers, step: str, is_async: str) -> None:
    """Twenty times, during 2,000 chains of two tasks: every row is there once."""
    finishers.start("-P", "prefork", "-c", "2", TESTS_DIE_AT=step, TESTS_ASYNC=is_async)
    sign = finishers.sign
    for n in range(1000):
        chain(sign("retry", n, 1), sign("confirm"))()
        chain(sign("book", n), sign("confirm"))()
    until(finishers.is_quiet, 300)
    assert finishers.deaths() == 20
    for what, times in (("booked", 1), ("attempt 1", 1), ("confirmed", 2)):
        found = finishers.sql("SELECT n FROM written WHERE what = %s ORDER BY n", what)
        assert [n for (n,) in found] == [n for n in range(1000) for _ in range(times)]


def has_ended_or_is_done(finishers: Finishers, worker: Process) -> bool:
    """Returns whether the worker has died, or there is nothing left to do."""
    return worker.poll() is not None or finishers.is_quiet()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("step", STEPS)
def test_a_worker_killed_at_each_step(finishers: Finishers, step: str) -> None:
    """All its processes at once; another worker goes on."""
    settings = {"TESTS_DIE_AT": step, "TESTS_DEATHS": "20", "TESTS_DIE_TOGETHER": "yes"}
    sign = finishers.sign
    for n in range(500):
        chain(sign("book", n), sign("confirm"))()
    while not finishers.is_quiet():
        worker = finishers.start("-P", "prefork", "-c", "2", **settings)
        until(partial(has_ended_or_is_done, finishers, worker), 120)
    assert finishers.deaths() >= 10
    for what in ("booked", "confirmed"):
        found = finishers.sql("SELECT n FROM written WHERE what = %s ORDER BY n", what)
        assert [n for (n,) in found] == list(range(500))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_chord_of_jobs_outlives_twelve_kills(finishers: Finishers) -> None:
    """Of 1,500 jobs every row is there once, for each job that completed, and the body ran."""
    policies = {"pgbeat_task_policies": {"finishing.book": {"max_attempts": 1}}}
    finishers.client.app.conf.update(policies)
    start = partial(
        finishers.start, "-P", "prefork", "-c", "4", TESTS_SETTINGS=json.dumps(policies)
    )
    sign = finishers.sign
    result = chord([sign("book", n) for n in range(1500)], sign("collect")).delay()

    def has_written(count: int) -> bool:
        return bool(finishers.sql("SELECT count(*) FROM written")[0][0] >= count)

    for death in range(12):
        worker = start()
        until(partial(has_written, (death + 1) * 110), 120)
        worker.kill_group()
    start()
    assert result.get(timeout=300) == 1500
    until(finishers.is_quiet, 60)
    assert [n for _, n in finishers.rows()] == [*range(1500), 1500]
    until(lambda: finishers.sql("SELECT DISTINCT state FROM pgbeat.jobs") == [("completed",)], 60)
    assert finishers.sql("SELECT count(*) FROM pgbeat.jobs") == [(1500,)]
