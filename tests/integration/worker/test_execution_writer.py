"""What a recorder has to write, while other transactions hold locks."""

import time
from collections.abc import Iterator
from functools import partial
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from sqlalchemy import text

from pgbeat.database import connections
from pgbeat.database.prepared import PreparedConnection
from pgbeat.jobs.running import executions
from pgbeat.jobs.running.executions import ExecutionRecord
from pgbeat.jobs.running.job_reports import JobReport
from pgbeat.jobs.running.task_exceptions import Snooze
from pgbeat.jobs.states import endings
from pgbeat.storable import escaped
from pgbeat.worker.finishing import attempt_ends
from pgbeat.worker.finishing.endings import RecordedEnd
from pgbeat.worker.recording import attempts, execution_batches, process_recorder
from pgbeat.worker.recording.attempts import Attempt
from pgbeat.worker.recording.recorder import Recorder
from pgbeat.worker.recording.shared_notes import SharedNotes
from tests.support.databases import end_sessions
from tests.support.processes import until
from tests.support.refusals import refusing
from tests.support.rows import make_lane, make_schedule, make_webhook
from tests.support.simulated_workers import FakeWorkers
from tests.support.threads import waiting


@pytest.fixture
def other(database: str) -> Iterator[psycopg.Connection]:
    """A transaction that is left open."""
    with psycopg.connect(database) as connection:
        yield connection


def run(recorder: Recorder, job_id: str, ends: str = "completed") -> Attempt:
    attempt = Attempt(job_id, "w1", 0, False, None)
    recorder.record(attempt)
    attempt.end("completed" if ends == "completed" else "failed", ends)
    recorder.record(attempt)
    return attempt


def test_locked_rows_are_written_later_and_delay_nothing_else(
    fake_workers: FakeWorkers, recorder: Recorder, other: psycopg.Connection
) -> None:
    locked, free = [fake_workers.job() for _ in range(20)], [fake_workers.job() for _ in range(40)]
    other.execute("UPDATE pgbeat.jobs SET tags = '{held}' WHERE id = ANY (%s::uuid[])", [locked])
    for index, job_id in enumerate(free):
        if index % 2:
            run(recorder, locked[index // 2])
        run(recorder, job_id)
    until(lambda: all(fake_workers.state(job_id) == "completed" for job_id in free), 20)
    assert {fake_workers.state(job_id) for job_id in locked} == {"pending"}
    other.rollback()
    until(lambda: all(fake_workers.state(job_id) == "completed" for job_id in locked), 20)
    assert {len(fake_workers.of(job_id)) for job_id in locked + free} == {1}


def test_records_of_a_locked_job_are_written_in_order(
    fake_workers: FakeWorkers, recorder: Recorder, other: psycopg.Connection
) -> None:
    """Celery's own retry, and the attempt after it: the row is locked from the first on."""
    job_id, free = fake_workers.job(), fake_workers.job()
    other.execute("SELECT FROM pgbeat.jobs WHERE id = %s FOR UPDATE", [job_id])
    run(recorder, job_id, ends="scheduled")
    run(recorder, free)
    until(lambda: fake_workers.state(free) == "completed")
    run(recorder, job_id)
    other.rollback()
    until(lambda: fake_workers.state(job_id) == "completed")
    assert fake_workers.sql(
        "SELECT state FROM pgbeat.executions WHERE job_id = %s ORDER BY number", job_id
    ) == [("failed",), ("completed",)]


@pytest.mark.slow
def test_a_report_waits_for_what_is_known_of_the_same_job(
    fake_workers: FakeWorkers, recorder: Recorder, other: psycopg.Connection
) -> None:
    """Celery says that the process died; the process had noted that the task was done."""
    job_id = fake_workers.job()
    other.execute("SELECT FROM pgbeat.jobs WHERE id = %s FOR UPDATE", [job_id])
    run(recorder, job_id)
    recorder.outbox.add_report(JobReport(job_id, "failed", "died", "failed", lost=True))
    held = recorder._writer._locked  # a report is tried again sooner
    until(lambda: (held.retry_at or 0.0) > time.monotonic() + 1)
    other.rollback()
    until(lambda: fake_workers.state(job_id) != "pending" and not recorder.outbox.reports)
    assert fake_workers.state(job_id) == "completed"
    assert fake_workers.of(job_id) == [("completed", False, None)]


def test_a_retry_that_just_began_is_not_undone(
    fake_workers: FakeWorkers, recorder: Recorder
) -> None:
    """Another process begins it while this one records that it asked for it."""
    job_id = fake_workers.job()
    attempt = Attempt(job_id, "w1", 0, False, None)
    recorder.record(attempt)
    assert recorder.record_now(attempt, 10)
    waiting = "SELECT 1 FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'"
    with fake_workers.engine.connect() as other, connections.transaction(other):
        executions.record(other, [ExecutionRecord(str(uuid4()), job_id, True, retry_attempt=1)])
        attempt.end("failed", "scheduled")
        recorder.record(attempt)
        until(lambda: fake_workers.sql(waiting))
    until(lambda: ("failed", False, None) in fake_workers.of(job_id))
    assert fake_workers.state(job_id) == "running"


def test_a_retry_of_a_job_that_was_cancelled_before_it_was_seen_to_begin_is_withdrawn(
    fake_workers: FakeWorkers, recorder: Recorder
) -> None:
    """Celery has sent it, and a worker that starts later knows nothing of a revocation."""
    job_id, other = fake_workers.job(), fake_workers.job()
    with connections.transaction(fake_workers.connection):
        assert endings.end(fake_workers.connection, [job_id], "cancelled", "no")
    run(recorder, job_id, "scheduled")
    run(recorder, other, "scheduled")
    until(lambda: fake_workers.of(job_id) and fake_workers.of(other))
    assert fake_workers.sql("SELECT job_id::text FROM kombu_message") == [(other,)]


def test_the_last_execution_decides_though_its_transaction_began_long_before(
    fake_workers: FakeWorkers,
) -> None:
    """As it does that waits for the job's lock: its times count from the statement on."""
    job_id = fake_workers.job()
    snoozed: dict[str, Any] = {"state": "snoozed", "job_state": "scheduled", "runs_in": 0.01}
    fake_workers.run(job_id, 1, began=0.0, ended=0.0, **snoozed)
    fake_workers.sql(
        "UPDATE pgbeat.jobs SET state = 'pending', dispatched_at = now() WHERE id = %s", job_id
    )
    with fake_workers.engine.connect() as other, connections.transaction(other):
        other.execute(text("SELECT pg_sleep(0.15)"))
        again = ExecutionRecord(str(uuid4()), job_id, True, began=0.15, ended=0.15, **snoozed)
        executions.record(other, [again])
    assert fake_workers.state(job_id) == "scheduled"


def test_a_snooze_that_only_its_process_knew_counts_as_killed(
    fake_workers: FakeWorkers, recorder: Recorder
) -> None:
    """Its worker has neither the job's time nor its message: it would wait for ever."""
    notes, attempt = SharedNotes(), Attempt(fake_workers.job(), "w1", 0, True, None)
    notes.use()
    notes.begin(attempt)
    attempt.runs_in, attempt.message = 60.0, {"queue": "celery"}
    attempt_ends.conclude(attempt, Snooze(60), "RETRY")
    notes.end(attempt)
    [left] = notes.read("w1")
    assert recorder.record_now(left, 10)
    assert fake_workers.now(left.job_id) == ("running", [("running", False, None)])
    notes.forget([attempt])
    assert attempt.is_fully_noted and not notes.read("w1")


@pytest.mark.parametrize("after", ["first", "second\nfirst"])
def test_the_schedule_that_waits_for_jobs_may_be_locked(
    fake_workers: FakeWorkers, recorder: Recorder, other: psycopg.Connection, after: str
) -> None:
    for name in ("second", "first"):
        first = make_schedule(fake_workers.sql, name, task="x", args="[]")
    make_schedule(fake_workers.sql, "then", task="x", args="[]", after=after)
    locked = [fake_workers.job(schedule_id=first) for _ in range(40)]
    free = [fake_workers.job() for _ in locked]
    other.execute("UPDATE pgbeat.schedules SET updated_at = now() WHERE name = 'then'")
    with process_recorder.busy:  # so that they are in one batch
        for pair in zip(locked, free, strict=True):
            for job_id in pair:
                run(recorder, job_id)
    until(lambda: all(fake_workers.state(job_id) == "completed" for job_id in free), 10)
    assert {fake_workers.state(job_id) for job_id in locked} <= {"pending", "running"}
    other.rollback()
    until(lambda: all(fake_workers.state(job_id) == "completed" for job_id in locked), 10)


def test_a_webhook_that_is_told_of_failures_may_be_locked(
    fake_workers: FakeWorkers, recorder: Recorder, other: psycopg.Connection
) -> None:
    """As by somebody who deletes it."""
    make_webhook(fake_workers.sql)
    failing, free = ([fake_workers.job() for _ in range(40)] for _ in range(2))
    other.execute("SELECT FROM pgbeat.webhooks FOR UPDATE")
    with process_recorder.busy:  # so that they are in one batch
        for failed, completed in zip(failing, free, strict=True):
            run(recorder, failed, "failed")
            run(recorder, completed)
    until(lambda: all(fake_workers.state(job_id) == "completed" for job_id in free), 10)
    other.rollback()
    until(lambda: all(fake_workers.state(job_id) == "failed" for job_id in failing), 20)


def test_what_the_main_process_says_of_a_locked_job_is_not_lost(
    fake_workers: FakeWorkers, recorder: Recorder, other: psycopg.Connection
) -> None:
    """The job was revoked while another session had locked its row."""
    job_id, free = fake_workers.job(), fake_workers.job()
    other.execute("SELECT FROM pgbeat.jobs WHERE id = %s FOR UPDATE", [job_id])
    for each in (job_id, free):
        recorder.outbox.add_report(
            JobReport(each, "cancelled", "revoked", "cancelled", lost=False, began=False)
        )
    until(lambda: fake_workers.state(free) == "cancelled", 10)
    assert fake_workers.state(job_id) == "pending"
    other.rollback()
    until(lambda: fake_workers.state(job_id) == "cancelled", 10)
    assert fake_workers.get(job_id).error == "revoked"


def test_what_no_database_takes_does_not_cost_the_rest(
    fake_workers: FakeWorkers, recorder: Recorder
) -> None:
    """A task reports text with NUL or half a surrogate pair."""
    job_id = fake_workers.job()
    attempt = Attempt(job_id, "w1", 0, False, None)
    odd = ["half \ud800 of it", "nul\0", "whole \U0001f600", {"\udfff": "\ud83d"}]
    attempt.checkpoint, attempt.has_checkpoint = attempts.as_json(odd), True
    attempt.metadata = {escaped("\ud800"): attempts.as_json(odd)}
    attempt.progress = (1.0, None, attempts.text("\ud800\0", 10))
    recorder.record(attempt)
    assert recorder.record_now(attempt, 10)
    kept = ["half \\ud800 of it", "nul\\0", "whole \U0001f600", {"\\udfff": "\\ud83d"}]
    assert fake_workers.get(job_id).checkpoint == kept
    assert fake_workers.sql("SELECT metadata, progress_message FROM pgbeat.executions") == [
        ({"\\ud800": kept}, "\\ud800\\0")
    ]


def test_a_job_that_cant_be_dispatched_keeps_no_end_from_being_recorded(
    fake_workers: FakeWorkers, recorder: Recorder
) -> None:
    """Its message has a lifetime that no interval has: the statement that writes it fails."""
    make_lane(fake_workers.sql)
    running = fake_workers.job(lane="l")
    waiting = fake_workers.job(
        lane="l", with_message=False, is_dispatched=False, options={"expiration": 10**17}
    )
    run(recorder, running)
    until(lambda: fake_workers.state(running) == "completed", 20)
    assert fake_workers.state(waiting) == "pending"
    fake_workers.sql("UPDATE pgbeat.jobs SET options = '{}' WHERE id = %s", waiting)
    other = fake_workers.job()
    run(recorder, other)
    until(lambda: fake_workers.state(other) == "completed", 20)


def test_the_next_job_of_a_lane_has_its_message_with_the_end(
    fake_workers: FakeWorkers, recorder: Recorder
) -> None:
    make_lane(fake_workers.sql)
    running = fake_workers.job(lane="l")
    waiting = fake_workers.job(lane="l", with_message=False, is_dispatched=False)
    run(recorder, running)
    until(lambda: fake_workers.state(running) == "completed", 20)
    # Not later: the end was recorded in the transaction that wrote the message.
    assert fake_workers.sql(
        "SELECT j.dispatched_at IS NOT NULL, m.visible FROM pgbeat.jobs j "
        "JOIN kombu_message m ON m.job_id = j.id WHERE j.id = %s",
        waiting,
    ) == [(True, True)]


def test_the_recorder_leaves_an_attempt_alone_that_ends_in_its_own_transaction(
    fake_workers: FakeWorkers, recorder: Recorder, other: psycopg.Connection
) -> None:
    """The task ends while the recorder, which has read that it runs, waits for another's lock."""
    process_recorder.use(lambda: recorder)
    ends, blocks = (
        Attempt(fake_workers.job(), "w1", 0, True, None),
        Attempt(fake_workers.job(), "w1", 0, True, None),
    )
    recorder.record(blocks)
    assert recorder.record_now(blocks, 10)
    other.execute("SELECT FROM pgbeat.jobs WHERE id = %s FOR UPDATE", [blocks.job_id])
    blocks.end("failed", "scheduled")
    with process_recorder.busy:  # so that both are in one batch
        recorder.record(ends)
        recorder.record(blocks)
    until(lambda: ends.is_claimed)
    RecordedEnd(ends).succeeded(1)
    assert not ends.is_claimed
    other.rollback()
    until(lambda: ("failed", False, None) in fake_workers.of(blocks.job_id))
    assert (ends.state, fake_workers.state(ends.job_id)) in [
        ("completed", "running"),
        ("completed", "pending"),
    ]
    ends.end("failed", "pending")  # it was rolled back
    recorder.record(ends)
    until(lambda: [state for state, *_ in fake_workers.of(ends.job_id)] == ["failed"])
    process_recorder.use(None)


def test_a_run_whose_message_is_another_s_does_not_fail_its_job(
    fake_workers: FakeWorkers, recorder: Recorder
) -> None:
    """Its session was cut while it ran, and its message is delivered again."""
    consumers = {"another's": 8, "nobody's": None, "a dead one's": 7, "its own": 9}
    consumers |= {"accepted by it": 0, "accepted by another": 0}
    fake_workers.sql("INSERT INTO pgbeat.consumers (id, name) VALUES (7, 'dead'), (9, 'lives')")
    fake_workers.sql("SELECT pg_advisory_lock(1885823587, 9)")
    runs: dict[str, Attempt] = {}
    for message, consumer in consumers.items():
        attempt = runs[message] = Attempt(fake_workers.job(), "w1", 0, True, None)
        attempt.consumer = 9 if message == "its own" else 7
        if consumer == 0:
            attempt.consumer = 2_000_000_000 if message == "accepted by it" else 7
            fake_workers.accept(attempt.job_id, 1)
        elif consumer is not None:
            fake_workers.sql(
                "UPDATE kombu_message SET visible = false, claimed_by = %s WHERE job_id = %s",
                consumer,
                attempt.job_id,
            )
        attempt.end("failed")
        recorder.record(attempt)
    until(lambda: all(fake_workers.of(run.job_id) for run in runs.values()))
    assert {message: fake_workers.state(run.job_id) for message, run in runs.items()} == {
        "another's": "pending",
        "nobody's": "pending",
        "a dead one's": "pending",
        "its own": "failed",
        "accepted by it": "failed",
        "accepted by another": "pending",
    }


def test_a_run_that_fails_while_its_message_is_released_does_not_fail_its_job(
    fake_workers: FakeWorkers, recorder: Recorder, other: psycopg.Connection
) -> None:
    """Each of the two would see what was there before the other."""
    fake_workers.sql("INSERT INTO pgbeat.consumers (id, name) VALUES (9, 'lives')")
    fake_workers.sql("SELECT pg_advisory_lock(1885823587, 9)")
    attempt = Attempt(fake_workers.job(), "w1", 0, True, None)
    attempt.consumer = 9
    recorder.record(attempt)
    until(lambda: fake_workers.state(attempt.job_id) == "running")
    whose = "WHERE job_id = %s"
    fake_workers.sql(
        f"UPDATE kombu_message SET visible = false, claimed_by = 9 {whose}", attempt.job_id
    )
    other.execute(
        f"UPDATE kombu_message SET visible = true, claimed_by = NULL {whose}", [attempt.job_id]
    )
    attempt.end("failed")
    recorder.record(attempt)
    until(lambda: fake_workers.sql("SELECT 1 FROM pg_locks WHERE NOT granted"))
    other.commit()
    until(lambda: [state for state, *_ in fake_workers.of(attempt.job_id)] == ["failed"])
    assert fake_workers.state(attempt.job_id) == "pending"


def test_an_end_that_comes_while_others_are_written_waits_for_the_next_write(
    fake_workers: FakeWorkers, other: psycopg.Connection
) -> None:
    """Its message is another's by now, which this write has not looked at."""
    locked, ends = (Attempt(fake_workers.job(), "w1", 0, True, None) for _ in range(2))
    fake_workers.sql(
        "UPDATE kombu_message SET visible = false, claimed_by = 8 WHERE job_id = %s", ends.job_id
    )
    ends.consumer = 7
    with fake_workers.engine.connect() as own:
        prepared = PreparedConnection(connections.driver(own))

        def write(*batch: Attempt) -> None:
            with connections.transaction(own):
                execution_batches.write(own, prepared, batch, 1)
            for attempt in batch:
                attempt.is_known = True

        write(locked, ends)
        other.execute("SELECT FROM pgbeat.jobs WHERE id = %s FOR UPDATE", [locked.job_id])
        locked.end("failed")
        ends.progress = (1.0, 2.0, "half of it")
        with waiting(fake_workers.sql, partial(write, locked, ends)):
            ends.end("failed")
            other.rollback()
        assert fake_workers.state(locked.job_id) == "failed"
        assert fake_workers.state(ends.job_id) == "running"
        write(ends)
    assert fake_workers.state(ends.job_id) == "pending"


@pytest.mark.parametrize("sqlstate", ["42501", "42P01", "53100", "57014", "58030", "XX000"])
def test_what_the_server_cannot_write_is_written_later(
    fake_workers: FakeWorkers, recorder: Recorder, sqlstate: str
) -> None:
    """However often it is refused; the ends of other jobs are recorded meanwhile."""
    refused, reported = fake_workers.job(), fake_workers.job()
    only = f"NEW.job_id IN ('{refused}', '{reported}')"
    with refusing(fake_workers.sql, "pgbeat.ended_executions", sqlstate, only):
        attempt = run(recorder, refused)
        recorder.outbox.add_report(JobReport(reported, "failed", "died", "failed", lost=True))
        for _ in range(3):
            free = fake_workers.job()
            run(recorder, free)
            until(partial(lambda job_id: fake_workers.state(job_id) == "completed", free), 20)
        until(lambda: attempt in recorder._writer._locked)
        assert {fake_workers.state(refused), fake_workers.state(reported)} == {"pending"}
    until(lambda: fake_workers.state(refused) == "completed", 20)
    until(lambda: fake_workers.state(reported) == "failed", 20)
    assert len(fake_workers.of(refused)) == 1


def test_a_server_that_only_reads_is_left_for_another(
    fake_workers: FakeWorkers, recorder: Recorder
) -> None:
    """The recorder connects anew, until it may write."""
    run(recorder, fake_workers.job())
    database = fake_workers.engine.url.database
    fake_workers.sql(f"ALTER DATABASE {database} SET default_transaction_read_only = on")
    end_sessions(fake_workers.sql, "pgbeat worker%")
    job_id = fake_workers.job()
    run(recorder, job_id)
    until(lambda: recorder._session.retry_at > 0)
    assert fake_workers.state(job_id) == "pending"
    fake_workers.sql(f"ALTER DATABASE {database} RESET default_transaction_read_only")
    until(lambda: fake_workers.state(job_id) == "completed", 20)
