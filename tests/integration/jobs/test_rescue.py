"""Whatever is killed, no job stays running, none waits for nobody, and all is done once."""

import signal
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
from celery import Celery

from pgbeat.broker.publishing.publisher import publisher
from pgbeat.config import Settings, postgres_url
from pgbeat.database import connections, migrate
from pgbeat.jobs import (
    endings,
    executions,
    job_reports,
    lifecycle,
    missing_messages,
    rescue,
    workers,
)
from pgbeat.jobs import model as jobs
from pgbeat.jobs.executions import ExecutionRecord
from pgbeat.jobs.job_reports import JobReport
from pgbeat.jobs.rescue import Rescuer
from pgbeat.testing.databases import TemporaryServer
from pgbeat.worker.attempts import Attempt
from pgbeat.worker.heartbeat import Heartbeat
from pgbeat.worker.recorder import Recorder
from tests.support.processes import until
from tests.support.recorded_workers import TrackedWorkers
from tests.support.rows import make_lane
from tests.support.simulated_workers import Ward

# ----- without processes: the rows of a worker that is no more


def test_what_a_dead_worker_ran_is_lost(ward: Ward) -> None:
    """Its jobs fail, or wait for the message that comes again; those of one who lives go on."""
    ward.worker(1, missing=ward.settings.lock_patience + 1)
    ward.worker(2, lives=True)
    acknowledged, late, living = ward.job(), ward.job(), ward.job()
    ward.run(acknowledged, 1)
    ward.run(late, 1, acks=False, acks_late=True)
    ward.run(living, 2)
    ward.rescue()
    lost = [("failed", True, "lost: the worker w1 died")]
    assert (ward.state(acknowledged), ward.of(acknowledged)) == ("failed", lost)
    assert (ward.state(late), ward.of(late)) == ("pending", lost)
    assert (ward.state(living), ward.of(living)) == ("running", [("running", False, None)])
    assert ward.released() == 2
    ward.rescue()
    assert ward.released() == 2


def test_the_settings_say_how_long_a_worker_may_be_without_its_lock(ward: Ward) -> None:
    ward.worker(1, missing=8)
    job_id = ward.job()
    ward.run(job_id, 1)
    ward.settings = replace(ward.settings, lock_patience=60.0)
    ward.rescue()
    assert ward.state(job_id) == "running"
    ward.settings = replace(ward.settings, lock_patience=6.0)
    ward.rescue()
    assert ward.state(job_id) == "failed"


def test_a_worker_is_missed_for_a_while_first(ward: Ward) -> None:
    ward.worker(1)
    job_id = ward.job()
    ward.run(job_id, 1)
    ward.rescue()
    [(missing,)] = ward.sql("SELECT missing_since IS NOT NULL FROM pgbeat.workers")
    assert missing
    assert ward.state(job_id) == "running"
    ward.sql("SELECT pg_advisory_lock(%s, 1)", workers.LIFE)  # it is back
    ward.rescue()
    assert ward.sql("SELECT missing_since FROM pgbeat.workers") == [(None,)]
    ward.sql("SELECT pg_advisory_unlock(%s, 1)", workers.LIFE)
    ward.rescue()
    ward.sql("UPDATE pgbeat.workers SET missing_since = now() - interval '6 s'")
    ward.rescue()
    assert ward.state(job_id) == "failed"


def test_the_dead_are_looked_for_as_often_after_many_died(ward: Ward) -> None:
    """Who lives takes turns with those who live, not with those who are kept for the record."""
    for worker in range(2, 202):
        ward.worker(worker, missing=60)
    heartbeat = Heartbeat(ward.settings, 1, "w1", "solo", 1)
    heartbeat.connected(ward.connection)

    def is_lost() -> bool:
        heartbeat.beat(ward.connection, ward.publisher)
        return ward.state(job_id) == "failed"

    for worker in (2, 3):
        job_id = ward.job()
        ward.run(job_id, worker)
        until(is_lost, 10)


def test_what_a_worker_left_behind_is_lost(ward: Ward) -> None:
    """It said that it ended, and did not say how this did. What began just now may be of a worker
    that is not known yet.
    """
    old, new = ward.job(), ward.job()
    ward.run(old, 7, began=20.0)
    ward.run(new, 8)
    ward.rescue()
    assert (ward.state(old), ward.state(new)) == ("failed", "running")


def test_a_lost_job_is_tried_again_by_its_policy(ward: Ward) -> None:
    ward.worker(1, missing=10)
    job_id = ward.job(max_attempts=2, retry_base=60)
    ward.run(job_id, 1)
    ward.rescue()
    again = jobs.get(ward.connection, job_id).retried_by
    assert again is not None
    job = jobs.get(ward.connection, again)
    assert (job.state, job.attempt) == ("scheduled", 2)
    assert ward.sql("SELECT count(*) FROM kombu_message WHERE job_id = %s", again) == [(1,)]


def test_a_lost_job_that_was_to_be_cancelled_is(ward: Ward) -> None:
    """And its message does not come again."""
    ward.worker(1, missing=10)
    job_id = ward.job(max_attempts=3)
    ward.run(job_id, 1, acks=False, acks_late=True)
    endings.request_cancel(ward.connection, [job_id], "me")
    ward.rescue()
    assert ward.state(job_id) == "cancelled"
    assert ward.sql("SELECT count(*) FROM kombu_message WHERE job_id IS NOT NULL") == [(0,)]


def test_a_cancelled_job_that_celery_was_to_retry_does_not_come_again(ward: Ward) -> None:
    """Where it ran could not be ended, and it asked for a retry before it knew."""
    job_id = ward.job()
    run = ward.run(job_id, 1)
    endings.request_cancel(ward.connection, [job_id], "me")
    with connections.transaction(ward.connection):  # what `self.retry` publishes
        retry = jobs.find(ward.connection, [job_id])
        lifecycle.publish(ward.connection, ward.publisher, retry)
    end = ExecutionRecord(
        run, job_id, False, state="failed", job_state="scheduled", error="not yet"
    )
    with connections.transaction(ward.connection):
        ended = executions.record(ward.connection, [end])
        lifecycle.follow(ward.connection, ward.publisher, ended)
    assert ward.state(job_id) == "cancelled"
    assert ward.sql("SELECT count(*) FROM kombu_message WHERE job_id IS NOT NULL") == [(0,)]


def test_one_that_was_given_up_and_lived_says_how_it_ended(ward: Ward) -> None:
    """Its job has gone on without it."""
    ward.worker(1, missing=10)
    job_id = ward.job()
    run = ward.run(job_id, 1)
    ward.rescue()
    executions.record(
        ward.connection,
        [ExecutionRecord(run, job_id, False, state="completed", job_state="completed")],
    )
    assert ward.of(job_id) == [("completed", False, None)]
    assert ward.state(job_id) == "failed"


@pytest.mark.parametrize("is_first", [True, False])
def test_one_that_was_delivered_again_and_completes_decides(ward: Ward, is_first: bool) -> None:
    """The other may run a message that it had in memory, and that is no more."""
    make_lane(ward.sql, "one")
    job_id = ward.job(lane="one")
    one, other = ward.run(job_id, 1, acks_late=True), ward.run(job_id, 2, acks_late=True)
    assert ward.of(job_id)[1] == ("failed", True, "lost: the message was delivered again")
    ends = [
        ExecutionRecord(one, job_id, False, state="completed", job_state="completed"),
        ExecutionRecord(other, job_id, False, state="failed", job_state="pending", error="no"),
    ]
    ended = [
        job
        for end in (ends if is_first else reversed(ends))
        for job in executions.record(ward.connection, [end])
    ]
    assert [(str(job.id), job.state, job.lane) for job in ended[-1:]] == [
        (job_id, "completed", "one")
    ]
    assert ward.state(job_id) == "completed"
    assert ward.of(job_id) == [("failed", False, "no"), ("completed", False, None)]


def test_other_namespaces_are_left_alone(ward: Ward) -> None:
    """Their jobs' messages are for an app that this one does not know."""
    ward.worker(1, missing=10)
    job_id = ward.job()
    ward.run(job_id, 1)
    ward.sql("UPDATE pgbeat.jobs SET namespace = 'other'")
    ward.rescue()
    assert ward.state(job_id) == "running"


def test_two_sweepers_do_everything_once(ward: Ward, database: str) -> None:
    ward.worker(1, missing=10)
    made = [ward.job(max_attempts=2, retry_base=0) for _ in range(60)]
    for job_id in made:
        ward.run(job_id, 1)
    wards = [Ward(database) for _ in range(3)]
    start = threading.Barrier(3)

    def sweep(ward: Ward) -> None:
        start.wait()
        for _ in range(5):
            ward.rescue()

    with ThreadPoolExecutor(3) as threads:
        for done in [threads.submit(sweep, each) for each in wards]:
            done.result()
    for each in wards:
        each.close()
    assert ward.released() == 60
    [(count,)] = ward.sql("SELECT count(*) FROM pgbeat.jobs WHERE retry_of IS NOT NULL")
    assert count == 60
    assert ward.sql("SELECT count(*), count(DISTINCT job_id) FROM kombu_message") == [(60, 60)]


def test_the_job_of_a_dead_letter_fails(ward: Ward) -> None:
    dead, runs = ward.job(), ward.job()
    ward.run(runs, 1, acks=False)
    ward.worker(1, lives=True)
    ward.sql(
        "WITH gone AS (DELETE FROM kombu_message WHERE job_id IS NOT NULL RETURNING *) "
        "INSERT INTO kombu_message_dead (id, queue, payload, priority, deliveries, reason, "
        "enqueued_at, job_id) SELECT id, 'celery', payload, priority, 3, 'delivered 3 times', "
        "now(), job_id FROM gone"
    )
    ward.rescue()
    job = jobs.get(ward.connection, dead)
    assert (job.state, job.error) == ("failed", "its message is a dead letter: delivered 3 times")
    assert ward.state(runs) == "running"


def test_a_job_whose_message_is_gone_fails(ward: Ward, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker took it and died before it recorded that. Others wait for their message, their lane
    or their time; or their worker is just about to record them.
    """
    monkeypatch.setattr(rescue, "_MESSAGES_INTERVAL", 0.0)
    monkeypatch.setattr(missing_messages, "_GONE", 0.0)
    ward.worker(1, lives=True)
    waits, gone, expired = ward.job(), ward.job(), ward.job(options={"expires": 1})
    parked = ward.job(with_message=False, is_dispatched=False)
    fresh = ward.job()
    for job_id in (gone, expired, fresh):
        ward.sql("DELETE FROM kombu_message WHERE job_id = %s", job_id)
    ward.sql(
        "UPDATE pgbeat.jobs SET dispatched_at = dispatched_at - interval '11 s' WHERE id <> %s",
        fresh,
    )
    rescuer = Rescuer(ward.publisher, ward.settings)
    rescuer.rescue(ward.connection)
    assert ward.state(gone) == "pending"  # seen once
    rescuer.rescue(ward.connection)
    job = jobs.get(ward.connection, gone)
    assert job.state == "failed"
    assert job.error == (
        "lost: its message is gone, and no worker has recorded that it accepted it"
    )
    assert ward.state(expired) == "cancelled"
    assert [ward.state(each) for each in (waits, parked, fresh)] == ["pending"] * 3
    assert ward.released() == 1


def test_a_job_whose_message_is_in_another_broker_is_not_lost(
    ward: Ward, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The app moves to pgbeat's transport, and the old broker's workers are not done yet."""
    monkeypatch.setattr(rescue, "_MESSAGES_INTERVAL", 0.0)
    monkeypatch.setattr(missing_messages, "_GONE", 0.0)
    ward.worker(1, lives=True)
    before = Celery("before", broker="memory://", set_as_current=False)
    before.conf.pgbeat_url = database
    settings = Settings.load(before.conf)
    made = [ward.job(with_message=False), ward.job(with_message=False)]
    with before.producer_or_acquire(None) as producer:
        elsewhere = publisher(before, settings, lambda: producer)
        for job_id in made:
            with connections.transaction(ward.connection):
                found = jobs.find(ward.connection, [job_id])
                assert lifecycle.publish(ward.connection, elsewhere, found) == []
    waits, runs = made
    ward.worker(2, missing=10)
    ward.run(runs, 2, acks_late=True)  # what an old worker ran that died comes again, over there
    ward.sql("UPDATE pgbeat.jobs SET dispatched_at = dispatched_at - interval '11 s'")
    for _ in range(3):
        Rescuer(ward.publisher, ward.settings).rescue(ward.connection)
    rescuer = Rescuer(ward.publisher, ward.settings)
    for _ in range(3):
        rescuer.rescue(ward.connection)
    assert (ward.state(waits), ward.state(runs)) == ("pending", "pending")
    # Once it was given to this broker, it is looked for like any other.
    ward.sql("UPDATE pgbeat.jobs SET dispatched_at = elsewhere_at + interval '1 us'")
    ward.sql("UPDATE pgbeat.jobs SET elsewhere_at = elsewhere_at - interval '1 minute', "
             "dispatched_at = dispatched_at - interval '59 s'")  # fmt: skip
    for _ in range(3):
        rescuer.rescue(ward.connection)
    assert ward.state(waits) == "failed"
    before.close()


def test_many_pending_jobs_are_looked_at_in_turn(
    ward: Ward, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rescue, "_MESSAGES_INTERVAL", 0.0)
    monkeypatch.setattr(missing_messages, "_GONE", 0.0)
    monkeypatch.setattr(missing_messages, "_PAGE", 3)
    ward.worker(1, lives=True)
    made = [ward.job() for _ in range(10)]
    ward.sql("DELETE FROM kombu_message WHERE job_id = ANY (%s::uuid[])", [made[0], made[9]])
    ward.sql("UPDATE pgbeat.jobs SET dispatched_at = dispatched_at - interval '11 s'")
    rescuer = Rescuer(ward.publisher, ward.settings)
    for _ in range(6):
        rescuer.rescue(ward.connection)
    states = [ward.state(job_id) for job_id in made]
    assert states == ["failed", *["pending"] * 8, "failed"]


def test_ends_of_messages_are_read_in_turn(ward: Ward, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the end of the message that a job was sent as last is kept; each round reads a page."""
    monkeypatch.setattr(missing_messages, "_ENDS_PAGE", 30)
    monkeypatch.setattr(rescue, "_MESSAGES_INTERVAL", 0.0)
    waiting, again, ended = ward.job(), ward.job(), ward.job()
    dispatched = "UPDATE pgbeat.unfinished_jobs SET dispatched_at = %s WHERE id = %s"
    end = """INSERT INTO pgbeat.message_ends (job_id, how, worker_id, ended_at)
             SELECT %s, 'accepted', 1, now() - i * interval '1 s'
               FROM generate_series(%s, 1, -1) AS i"""
    ward.worker(1, lives=True)
    ward.sql(dispatched, "-infinity", again)
    ward.sql(dispatched, None, waiting)
    for job_id, number in ((waiting, 20), (again, 50), (ended, 10)):
        ward.sql(end, job_id, number)
    ward.sql("DELETE FROM pgbeat.unfinished_jobs WHERE id = %s", ended)
    left = []
    for _ in range(4):
        ward.rescue()
        left.append(ward.sql("SELECT count(*) FROM pgbeat.message_ends")[0][0])
    assert left == [50, 20, 1, 1]
    assert ward.sql("SELECT job_id::text FROM pgbeat.message_ends") == [(again,)]


def test_an_attempt_begins_as_fast_after_many(ward: Ward) -> None:
    """Of all that a job has had, only the newest are read."""
    job_id = ward.job()
    ward.sql(
        """INSERT INTO pgbeat.executions
                  (id, job_id, number, state, worker, started_at, finished_at)
           SELECT gen_random_uuid(), %s, 3001 - i, 'snoozed', 'w', at, at
             FROM generate_series(1, 3000) AS i, LATERAL (
                  SELECT now() - i * interval '1 s' AS at) AS l""",
        job_id,
    )
    read = """SELECT sum(pg_stat_get_xact_tuples_fetched(oid)) FROM pg_class
               WHERE relname LIKE 'ended_executions%%' AND relkind = 'r'"""
    last = "SELECT pgbeat.is_last_execution(%s, gen_random_uuid(), now() - %s * interval '1 s')"
    with connections.transaction(ward.connection):
        assert ward.sql(last, job_id, 0) == [(True,)]
        assert ward.sql(last, job_id, 5) == [(False,)]
        assert ward.sql(read)[0][0] <= 100


def test_a_retry_that_ran_before_its_attempt_was_told_ended(ward: Ward) -> None:
    """The attempt is not lost by it, and ends when its process tells so."""
    job_id = ward.job()
    first = ward.run(job_id, 1, began=2.0)
    second = ward.run(job_id, 2, began=1.0, retry_attempt=1)
    assert sorted(ward.of(job_id)) == [("running", False, None)] * 2
    late = ExecutionRecord(
        first, job_id, False, state="failed", job_state="scheduled", error="not yet"
    )
    executions.record(ward.connection, [late])
    assert ward.state(job_id) == "running"
    end = ExecutionRecord(second, job_id, False, state="completed", job_state="completed")
    executions.record(ward.connection, [end])
    assert ward.state(job_id) == "completed"
    assert sorted(ward.of(job_id)) == [("completed", False, None), ("failed", False, "not yet")]
    assert ward.released() == 0


@pytest.mark.parametrize("lost", [True, False])
@pytest.mark.parametrize("began", [True, False])
def test_what_the_main_process_tells(ward: Ward, began: bool, lost: bool) -> None:
    """A process died, whether or not it had recorded that it began. Celery reports it twice for one
    that took too long.
    """
    job_id = ward.job()
    if began:
        ward.run(job_id, 1)
    reported = JobReport(
        job_id, "failed", "WorkerLostError: killed", "failed", lost=lost, worker="w1"
    )
    job_reports.record(ward.connection, 1, [reported, reported])
    job_reports.record(ward.connection, 1, [reported])
    assert ward.of(job_id) == [("failed", lost, "WorkerLostError: killed")]
    assert ward.state(job_id) == "failed"


def test_what_a_thread_told_comes_before_what_celery_says(ward: Ward) -> None:
    """In green pools both tell of a time limit: one attempt, though others are written just now."""
    recorder = Recorder(ward.app, ward.settings, 1)
    made = [ward.job() for _ in range(20)]
    for job_id in made:
        attempt = Attempt(job_id, "w1", 0, False, None)
        recorder.record(attempt)
        attempt.end("failed")
        recorder.record(attempt)
        recorder.outbox.add_report(
            JobReport(job_id, "failed", "TimeLimitExceeded: 1", "failed", lost=False)
        )
        until(lambda j=job_id: ward.state(j) == "failed")  # type: ignore[misc]
    recorder.close(10)
    assert [len(ward.of(job_id)) for job_id in made] == [1] * 20


def test_the_last_words_of_a_process_come_after_its_parents(ward: Ward) -> None:
    """One attempt: that it ended was reported before that it began."""
    job_id = ward.job()
    reported = JobReport(job_id, "cancelled", "terminated", "cancelled", lost=False, worker="w1")
    job_reports.record(ward.connection, 1, [reported])
    ward.run(job_id, 1)
    assert ward.of(job_id) == [("cancelled", False, "terminated")]
    assert ward.state(job_id) == "cancelled"


def test_a_process_and_its_parent_tell_of_one_attempt_at_once(ward: Ward, database: str) -> None:
    """The parent waits for a job's row, and reads only then: it sees what the process recorded."""
    first, second = sorted((ward.job(), ward.job()))  # they are locked in this order
    ward.run(first, 1)
    parent = Ward(database)
    reported = [
        JobReport(job_id, "cancelled", "terminated", "cancelled", lost=False, worker="w1")
        for job_id in (first, second)
    ]

    def tell() -> None:
        with connections.transaction(parent.connection):
            job_reports.record(parent.connection, 1, reported)

    with ThreadPoolExecutor(1) as threads:
        with connections.transaction(ward.connection):
            jobs.lock(ward.connection, [first])
            telling = threads.submit(tell)
            waits = "SELECT 1 FROM pg_locks WHERE NOT granted"
            until(lambda: ward.sql(waits), what="it waits")
            child = Ward(database)
            child.run(second, 1)
            child.close()
        telling.result()
    parent.close()
    for job_id in (first, second):
        assert ward.of(job_id) == [("cancelled", False, "terminated")]
        assert ward.state(job_id) == "cancelled"


def test_what_another_worker_runs_is_not_touched_by_that(ward: Ward) -> None:
    job_id = ward.job()
    ward.run(job_id, 2)
    reported = JobReport(
        job_id, "failed", "WorkerLostError: killed", "failed", lost=True, began=False
    )
    job_reports.record(ward.connection, 1, [reported])
    assert ward.of(job_id) == [("running", False, None)]
    assert ward.state(job_id) == "running"


# ----- late words of an attempt that another followed


def test_an_attempt_told_late_changes_nothing_of_the_next(ward: Ward) -> None:
    """Celery's retry ran elsewhere before the attempt that asked for it was reported of."""
    job_id = ward.job()
    second = ward.run(job_id, 2, began=1.0)
    first = ExecutionRecord(
        str(uuid4()), job_id, True, state="failed", job_state="scheduled", worker="w1",
        worker_id=1, began=2.0, ended=1.5, error="not yet",
    )  # fmt: skip
    executions.record(ward.connection, [first])
    assert ward.state(job_id) == "running"
    end = ExecutionRecord(second, job_id, False, state="completed", job_state="completed")
    executions.record(ward.connection, [end])
    assert ward.state(job_id) == "completed"
    assert sorted(ward.of(job_id)) == [("completed", False, None), ("failed", False, "not yet")]


def test_a_beginning_told_again_after_the_end_changes_nothing(ward: Ward) -> None:
    """The commit's answer was lost, and the worker tells both again."""
    job_id = ward.job()
    begin = ExecutionRecord(str(uuid4()), job_id, True, worker="w1", worker_id=1, began=2.0)
    end = ExecutionRecord(
        begin.id, job_id, False, state="failed", job_state="scheduled", error="not yet"
    )
    for _ in range(2):
        executions.record(ward.connection, [begin, end])
        assert ward.state(job_id) == "scheduled"
        assert ward.of(job_id) == [("failed", False, "not yet")]


# ----- processes


def settled(tracked_workers: TrackedWorkers) -> bool:
    """Whether nothing is under way any more."""
    return not tracked_workers.sql(
        "SELECT 1 FROM pgbeat.jobs WHERE state NOT IN ('completed', 'failed') LIMIT 1"
    )


def check_all(tracked_workers: TrackedWorkers, made: list[str]) -> Counter[str]:
    """Each job is completed, or failed and tried again until it was; the executions' ends."""
    rows = tracked_workers.sql("SELECT id, state, retried_by FROM pgbeat.jobs")
    known = {str(row[0]): (row[1], row[2]) for row in rows}
    for job_id in made:
        state, again = known[job_id]
        while again is not None:
            assert state == "failed"
            state, again = known[str(again)]
        assert state == "completed"
    runs = tracked_workers.sql("SELECT state, lost, count(*) FROM pgbeat.executions GROUP BY 1, 2")
    ends = Counter({f"{state}{' lost' * lost}": count for state, lost, count in runs})
    released = tracked_workers.released()
    print(f"{len(known)} jobs of {len(made)}; executions: {dict(ends)}; {released} released")
    assert set(ends) <= {"completed", "failed lost"}
    return ends


@pytest.mark.slow
@pytest.mark.parametrize("sign", [signal.SIGQUIT, signal.SIGKILL], ids=["immediate", "killed"])
def test_two_hundred_jobs_while_the_database_restarts(
    own_server: TemporaryServer, tmp_path: Path, sign: signal.Signals
) -> None:
    migrate.upgrade(postgres_url(own_server.dsn))
    tracked_workers = TrackedWorkers(own_server.dsn, tmp_path)
    try:
        for pool in ("prefork", "threads"):
            tracked_workers.start("-P", pool, "-c", "3")
        made = tracked_workers.launch("work", 0.1, count=100, max_attempts=9, retry_base=0)
        made += tracked_workers.launch("work_late", 0.1, count=100, max_attempts=9, retry_base=0)
        until(lambda: tracked_workers.states().get("completed", 0) > 50)
        own_server.stop(sign)
        time.sleep(1)  # the outage
        own_server.start()
        until(lambda: settled(tracked_workers), 120, "all have ended")
        check_all(tracked_workers, made)
        # The workers are back under their ids.
        missing = "SELECT count(*), count(missing_since) FROM pgbeat.workers"
        until(lambda: tracked_workers.sql(missing) == [(2, 0)], what="both live")
    finally:
        tracked_workers.close()
