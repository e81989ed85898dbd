"""Whatever is killed, no job stays running, none waits for nobody, and all is done once."""

import signal
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery

from pgbeat.broker.publishing.publisher import publisher
from pgbeat.config import Settings, postgres_url
from pgbeat.database import connections
from pgbeat.database.migrations import migrate
from pgbeat.jobs.flow import lifecycle
from pgbeat.jobs.rescuing import missing_messages
from pgbeat.jobs.rows import model as jobs
from pgbeat.jobs.running import job_reports, workers
from pgbeat.jobs.running.executions import ExecutionRecord
from pgbeat.jobs.running.job_reports import JobReport
from pgbeat.jobs.states import endings
from pgbeat.testing.databases import TemporaryServer
from pgbeat.worker.recording.attempts import Attempt
from pgbeat.worker.recording.heartbeat import Heartbeat
from pgbeat.worker.recording.recorder import Recorder
from tests.support.processes import until
from tests.support.recorded_workers import TrackedWorkers
from tests.support.rows import make_lane
from tests.support.simulated_workers import FakeWorkers
from tests.support.threads import WAITS, together

#: A job and its only execution, of which nothing was told since it began.
RUNNING = ("running", [("running", False, None)])
KILLED = "WorkerLostError: killed"


def tell(fake_workers: FakeWorkers, *reports: JobReport) -> None:
    """What a worker's main process tells of its processes."""
    job_reports.record(fake_workers.connection, 1, reports)


def terminated(job_id: str) -> JobReport:
    return JobReport(job_id, "cancelled", "terminated", "cancelled", lost=False, worker="w1")


# ----- without processes: the rows of a worker that is no more


def test_what_a_dead_worker_ran_is_lost(fake_workers: FakeWorkers) -> None:
    """Its jobs fail, or wait for the message that comes again; those of one who lives go on."""
    fake_workers.worker(1, missing=fake_workers.settings.lock_patience + 1)
    fake_workers.worker(2, lives=True)
    acknowledged, late, living = fake_workers.job(), fake_workers.job(), fake_workers.job()
    fake_workers.run(acknowledged, 1)
    fake_workers.run(late, 1, acks=False, acks_late=True)
    fake_workers.run(living, 2)
    fake_workers.rescue()
    lost = [("failed", True, "lost: the worker w1 died")]
    assert fake_workers.now(acknowledged) == ("failed", lost)
    assert fake_workers.now(late) == ("pending", lost)
    assert fake_workers.now(living) == RUNNING
    assert fake_workers.released() == 2
    fake_workers.rescue()
    assert fake_workers.released() == 2


@pytest.mark.parametrize("is_begun", [True, False])
def test_what_a_dead_worker_had_completed_is(fake_workers: FakeWorkers, is_begun: bool) -> None:
    """Its result says so: it is not tried again. One that is delivered again decides itself."""
    fake_workers.app.conf.result_backend = "pgbeat://"
    fake_workers.worker(1, missing=fake_workers.settings.lock_patience + 1)
    done, other = fake_workers.job(max_attempts=3), fake_workers.job(max_attempts=3)
    for job_id in (done, other):
        fake_workers.run(job_id, 1) if is_begun else fake_workers.accept(job_id, 1)
    late = fake_workers.job()
    fake_workers.run(late, 1, acks=False, acks_late=True)
    for job_id in (done, late):
        fake_workers.app.backend.mark_as_done(job_id, 7)
    fake_workers.sql("UPDATE pgbeat.results SET date_done = now() - interval '1 minute'")
    fake_workers.rescue()
    assert fake_workers.now(done) == ("completed", [("completed", False, None)])
    assert (fake_workers.state(other), fake_workers.state(late)) == ("failed", "pending")
    then = "SELECT finished_at < now() - interval '50 s' FROM pgbeat.executions WHERE job_id = %s"
    assert fake_workers.sql(then, done) == [(True,)]
    assert fake_workers.get(done).retried_by is None
    assert fake_workers.get(other).retried_by is not None


@pytest.mark.parametrize("fails", ["before", "after"])
def test_a_failure_beside_a_lost_execution_ends_the_job(
    fake_workers: FakeWorkers, fails: str
) -> None:
    """Its worker accepted the message, and has nothing more to record: nobody sends it again."""
    fake_workers.worker(1, missing=fake_workers.settings.lock_patience + 1)
    fake_workers.worker(2, lives=True)
    job_id = fake_workers.job()
    first = fake_workers.run(job_id, 2, acks=False)
    fake_workers.run(job_id, 1)  # the later one decides about the job, while it runs
    fake_workers.accept(job_id, 2)
    if fails == "before":
        fake_workers.end(first, job_id, "failed", error="killed")
        assert fake_workers.state(job_id) == "running"
    fake_workers.rescue()
    if fails == "after":
        assert fake_workers.state(job_id) == "pending"
        fake_workers.end(first, job_id, "failed", error="killed")
    assert fake_workers.state(job_id) == "failed"
    assert [run[:2] for run in fake_workers.of(job_id)] == [("failed", True), ("failed", False)]


def test_the_settings_say_how_long_a_worker_may_be_without_its_lock(
    fake_workers: FakeWorkers,
) -> None:
    fake_workers.worker(1, missing=8)
    job_id = fake_workers.job()
    fake_workers.run(job_id, 1)
    fake_workers.settings = replace(fake_workers.settings, lock_patience=60.0)
    fake_workers.rescue()
    assert fake_workers.state(job_id) == "running"
    fake_workers.settings = replace(fake_workers.settings, lock_patience=6.0)
    fake_workers.rescue()
    assert fake_workers.state(job_id) == "failed"


def test_a_worker_is_missed_for_a_while_first(fake_workers: FakeWorkers) -> None:
    fake_workers.worker(1)
    job_id = fake_workers.job()
    fake_workers.run(job_id, 1)
    fake_workers.rescue()
    [(missing,)] = fake_workers.sql("SELECT missing_since IS NOT NULL FROM pgbeat.workers")
    assert missing
    assert fake_workers.state(job_id) == "running"
    fake_workers.sql("SELECT pg_advisory_lock(%s, 1)", workers.LIFE)  # it is back
    fake_workers.rescue()
    assert fake_workers.sql("SELECT missing_since FROM pgbeat.workers") == [(None,)]
    fake_workers.sql("SELECT pg_advisory_unlock(%s, 1)", workers.LIFE)
    fake_workers.rescue()
    fake_workers.sql("UPDATE pgbeat.workers SET missing_since = now() - interval '6 s'")
    fake_workers.rescue()
    assert fake_workers.state(job_id) == "failed"


def test_the_dead_are_looked_for_as_often_after_many_died(fake_workers: FakeWorkers) -> None:
    """Who lives takes turns with those who live, not with those who are kept for the record."""
    fake_workers.sql(
        "INSERT INTO pgbeat.workers (id, name, pid, missing_since) "
        "SELECT i, 'w', 1, now() - interval '1 minute' FROM generate_series(2, 201) AS i"
    )
    heartbeat = Heartbeat(fake_workers.settings, 1, "w1", "solo", 1)
    heartbeat.connected(fake_workers.connection)

    def is_lost() -> bool:
        heartbeat.beat(fake_workers.connection, fake_workers.publisher)
        return fake_workers.state(job_id) == "failed"

    for worker in (2, 3):
        job_id = fake_workers.job()
        fake_workers.run(job_id, worker)
        until(is_lost, 10)


def test_what_a_worker_left_behind_is_lost(fake_workers: FakeWorkers) -> None:
    """It said that it ended, and did not say how this did. What began just now may be of a worker
    that is not known yet.
    """
    old, new = fake_workers.job(), fake_workers.job()
    fake_workers.run(old, 7, began=20.0)
    fake_workers.run(new, 8)
    fake_workers.rescue()
    assert (fake_workers.state(old), fake_workers.state(new)) == ("failed", "running")


def test_a_lost_job_is_tried_again_by_its_policy(fake_workers: FakeWorkers) -> None:
    fake_workers.worker(1, missing=10)
    job_id = fake_workers.job(max_attempts=2, retry_base=60)
    fake_workers.run(job_id, 1)
    fake_workers.rescue()
    again = fake_workers.get(job_id).retried_by
    assert again is not None
    job = fake_workers.get(again)
    assert (job.state, job.attempt) == ("scheduled", 2)
    assert fake_workers.sql("SELECT count(*) FROM kombu_message WHERE job_id = %s", again) == [(1,)]


def test_a_lost_job_that_delay_made_is_not_tried_again(fake_workers: FakeWorkers) -> None:
    """Its worker may only be cut off, and would run, and retry, the same id."""
    fake_workers.worker(1, missing=10)
    job_id = fake_workers.job(max_attempts=2, keeps_id=True)
    fake_workers.run(job_id, 1)
    fake_workers.rescue()
    assert (fake_workers.state(job_id), fake_workers.get(job_id).retried_by) == ("failed", None)


def test_a_lost_job_that_was_to_be_cancelled_is(fake_workers: FakeWorkers) -> None:
    """And its message does not come again."""
    fake_workers.worker(1, missing=10)
    job_id = fake_workers.job(max_attempts=3)
    fake_workers.run(job_id, 1, acks=False, acks_late=True)
    endings.request_cancel(fake_workers.connection, [job_id], "me")
    fake_workers.rescue()
    assert fake_workers.state(job_id) == "cancelled"
    assert fake_workers.sql("SELECT count(*) FROM kombu_message WHERE job_id IS NOT NULL") == [(0,)]


def test_a_cancelled_job_that_celery_was_to_retry_does_not_come_again(
    fake_workers: FakeWorkers,
) -> None:
    """Where it ran could not be ended, and it asked for a retry before it knew."""
    job_id = fake_workers.job()
    run = fake_workers.run(job_id, 1)
    endings.request_cancel(fake_workers.connection, [job_id], "me")
    with connections.transaction(fake_workers.connection):  # what `self.retry` publishes
        retry = jobs.find(fake_workers.connection, [job_id])
        lifecycle.publish(fake_workers.connection, fake_workers.publisher, retry)
    with connections.transaction(fake_workers.connection):
        ended = fake_workers.end(run, job_id, "failed", "scheduled", error="not yet")
        lifecycle.follow(fake_workers.connection, fake_workers.publisher, ended)
    assert fake_workers.state(job_id) == "cancelled"
    assert fake_workers.sql("SELECT count(*) FROM kombu_message WHERE job_id IS NOT NULL") == [(0,)]


def test_one_that_was_given_up_and_lived_says_how_it_ended(fake_workers: FakeWorkers) -> None:
    """Its job has gone on without it."""
    fake_workers.worker(1, missing=10)
    job_id = fake_workers.job()
    run = fake_workers.run(job_id, 1)
    fake_workers.rescue()
    fake_workers.end(run, job_id)
    assert fake_workers.now(job_id) == ("failed", [("completed", False, None)])


@pytest.mark.parametrize("is_first", [True, False])
def test_one_that_was_delivered_again_and_completes_decides(
    fake_workers: FakeWorkers, is_first: bool
) -> None:
    """The other may run a message that it had in memory, and that is no more."""
    make_lane(fake_workers.sql, "one")
    job_id = fake_workers.job(lane="one")
    one, other = [fake_workers.run(job_id, worker, acks_late=True) for worker in (1, 2)]
    assert fake_workers.of(job_id)[1] == ("failed", True, "lost: the message was delivered again")
    if not is_first:
        fake_workers.end(other, job_id, "failed", "pending", error="no")
    ended = fake_workers.end(one, job_id)
    if is_first:
        ended += fake_workers.end(other, job_id, "failed", "pending", error="no")
    assert (str(ended[-1].id), ended[-1].state, ended[-1].lane) == (job_id, "completed", "one")
    ends = [("completed", False, None), ("failed", False, "no")]
    assert fake_workers.now(job_id) == ("completed", ends)


def test_one_that_another_task_replaced_ends_no_job(fake_workers: FakeWorkers) -> None:
    """Its replacement may have begun, and even snoozed, before that is recorded."""
    job_id = fake_workers.job()
    replaced, other = [fake_workers.run(job_id, worker) for worker in (1, 2)]
    fake_workers.end(other, job_id, "snoozed", "scheduled", runs_in=3600, message={})
    assert not fake_workers.end(replaced, job_id, "completed", "pending")
    ends = [("completed", False, None), ("snoozed", False, None)]
    assert fake_workers.now(job_id) == ("scheduled", ends)


def test_one_that_snoozed_beside_another_run_is_sent_again(fake_workers: FakeWorkers) -> None:
    """The snooze has deleted the message that the other one held, which says so at its end."""
    job_id = fake_workers.job()
    one = fake_workers.run(job_id, 1, acks=False, acks_late=True)
    fake_workers.end(one, job_id, "snoozed", "scheduled", runs_in=3600, message={})
    other = fake_workers.run(job_id, 2, acks_late=True)
    [ended] = fake_workers.end(other, job_id, "failed", "pending")
    assert (ended.state, ended.is_dispatched) == ("scheduled", False)
    job = fake_workers.get(job_id)
    assert (job.state, job.message) == ("scheduled", {})
    assert job.run_at is not None
    assert fake_workers.sql("SELECT run_at <= now() FROM pgbeat.jobs") == [(True,)]


def test_other_namespaces_are_left_alone(fake_workers: FakeWorkers) -> None:
    """Their jobs' messages are for an app that this one does not know."""
    fake_workers.worker(1, missing=10)
    job_id = fake_workers.job()
    fake_workers.run(job_id, 1)
    fake_workers.sql("UPDATE pgbeat.jobs SET namespace = 'other'")
    fake_workers.rescue()
    assert fake_workers.state(job_id) == "running"


def test_two_sweepers_do_everything_once(fake_workers: FakeWorkers, database: str) -> None:
    fake_workers.worker(1, missing=10)
    made = [fake_workers.job(max_attempts=2, retry_base=0) for _ in range(60)]
    for job_id in made:
        fake_workers.run(job_id, 1)
    sweepers = [FakeWorkers(database) for _ in range(3)]
    for _ in range(5):
        together([each.rescue for each in sweepers])
    for each in sweepers:
        each.close()
    assert fake_workers.released() == 60
    [(count,)] = fake_workers.sql("SELECT count(*) FROM pgbeat.jobs WHERE retry_of IS NOT NULL")
    assert count == 60
    assert fake_workers.sql("SELECT count(*), count(DISTINCT job_id) FROM kombu_message") == [
        (60, 60)
    ]


def test_the_job_of_a_dead_letter_fails(fake_workers: FakeWorkers) -> None:
    dead, runs = fake_workers.job(), fake_workers.job()
    fake_workers.run(runs, 1, acks=False)
    fake_workers.worker(1, lives=True)
    fake_workers.sql(
        "WITH gone AS (DELETE FROM kombu_message WHERE job_id IS NOT NULL RETURNING *) "
        "INSERT INTO kombu_message_dead (id, queue, payload, priority, deliveries, reason, "
        "enqueued_at, job_id) SELECT id, 'celery', payload, priority, 3, 'delivered 3 times', "
        "now(), job_id FROM gone"
    )
    fake_workers.rescue()
    job = fake_workers.get(dead)
    assert (job.state, job.error) == ("failed", "its message is a dead letter: delivered 3 times")
    assert fake_workers.state(runs) == "running"


def test_a_job_whose_message_is_gone_fails(
    fake_workers: FakeWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker took it and died before it recorded that. Others wait for their message, their lane
    or their time; or their worker is just about to record them.
    """
    monkeypatch.setattr(missing_messages, "_GONE", 0.0)
    fake_workers.worker(1, lives=True)
    waits, gone = fake_workers.job(), fake_workers.job()
    expired = fake_workers.job(options={"expires": 1})
    parked = fake_workers.job(with_message=False, is_dispatched=False)
    fresh = fake_workers.job()
    for job_id in (gone, expired, fresh):
        fake_workers.sql("DELETE FROM kombu_message WHERE job_id = %s", job_id)
    fake_workers.sql(
        "UPDATE pgbeat.jobs SET dispatched_at = dispatched_at - interval '11 s' WHERE id <> %s",
        fresh,
    )
    rescuer = fake_workers.rescuer()
    rescuer.rescue(fake_workers.connection)
    assert fake_workers.state(gone) == "pending"  # seen once
    rescuer.rescue(fake_workers.connection)
    job = fake_workers.get(gone)
    assert job.state == "failed"
    assert job.error == (
        "lost: its message is gone, and no worker has recorded that it accepted it"
    )
    assert fake_workers.state(expired) == "cancelled"
    assert [fake_workers.state(each) for each in (waits, parked, fresh)] == ["pending"] * 3
    assert fake_workers.released() == 1


def test_a_job_whose_message_is_in_another_broker_is_not_lost(
    fake_workers: FakeWorkers, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The app moves to pgbeat's transport, and the old broker's workers are not done yet."""
    monkeypatch.setattr(missing_messages, "_GONE", 0.0)
    fake_workers.worker(1, lives=True)
    before = Celery("before", broker="memory://", set_as_current=False)
    before.conf.pgbeat_url = database
    settings = Settings.load(before.conf)
    made = [fake_workers.job(with_message=False), fake_workers.job(with_message=False)]
    with before.producer_or_acquire(None) as producer:
        elsewhere = publisher(before, settings, lambda: producer)
        for job_id in made:
            with connections.transaction(fake_workers.connection):
                found = jobs.find(fake_workers.connection, [job_id])
                assert lifecycle.publish(fake_workers.connection, elsewhere, found) == []
    waits, runs = made
    fake_workers.worker(2, missing=10)
    # What an old worker ran that died comes again, over there.
    fake_workers.run(runs, 2, acks_late=True)
    fake_workers.sql("UPDATE pgbeat.jobs SET dispatched_at = dispatched_at - interval '11 s'")
    for _ in range(3):
        fake_workers.rescuer().rescue(fake_workers.connection)
    rescuer = fake_workers.rescuer()
    for _ in range(3):
        rescuer.rescue(fake_workers.connection)
    assert (fake_workers.state(waits), fake_workers.state(runs)) == ("pending", "pending")
    # Once it was given to this broker, it is looked for like any other.
    fake_workers.sql("UPDATE pgbeat.jobs SET dispatched_at = elsewhere_at + interval '1 us'")
    fake_workers.sql(
        "UPDATE pgbeat.jobs SET elsewhere_at = elsewhere_at - interval '1 minute', "
        "dispatched_at = dispatched_at - interval '59 s'"
    )
    for _ in range(3):
        rescuer.rescue(fake_workers.connection)
    assert fake_workers.state(waits) == "failed"
    before.close()


def test_many_pending_jobs_are_looked_at_in_turn(
    fake_workers: FakeWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(missing_messages, "_GONE", 0.0)
    monkeypatch.setattr(missing_messages, "_PAGE", 3)
    fake_workers.worker(1, lives=True)
    made = [fake_workers.job() for _ in range(10)]
    fake_workers.sql(
        "DELETE FROM kombu_message WHERE job_id = ANY (%s::uuid[])", [made[0], made[9]]
    )
    fake_workers.sql("UPDATE pgbeat.jobs SET dispatched_at = dispatched_at - interval '11 s'")
    rescuer = fake_workers.rescuer()
    for _ in range(6):
        rescuer.rescue(fake_workers.connection)
    states = [fake_workers.state(job_id) for job_id in made]
    assert states == ["failed", *["pending"] * 8, "failed"]


def test_ends_of_messages_are_read_in_turn(
    fake_workers: FakeWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the end of the message that a job was sent as last is kept; each round reads a page."""
    monkeypatch.setattr(missing_messages, "_ENDS_PAGE", 30)
    waiting, again, ended = fake_workers.job(), fake_workers.job(), fake_workers.job()
    dispatched = "UPDATE pgbeat.unfinished_jobs SET dispatched_at = %s WHERE id = %s"
    end = """INSERT INTO pgbeat.message_ends (job_id, how, worker_id, ended_at)
             SELECT %s, 'accepted', 1, now() - i * interval '1 s'
               FROM generate_series(%s, 1, -1) AS i"""
    fake_workers.worker(1, lives=True)
    fake_workers.sql(dispatched, "-infinity", again)
    fake_workers.sql(dispatched, None, waiting)
    for job_id, number in ((waiting, 20), (again, 50), (ended, 10)):
        fake_workers.sql(end, job_id, number)
    fake_workers.sql("DELETE FROM pgbeat.unfinished_jobs WHERE id = %s", ended)
    left = []
    for _ in range(4):
        fake_workers.rescue()
        left.append(fake_workers.sql("SELECT count(*) FROM pgbeat.message_ends")[0][0])
    assert left == [50, 20, 1, 1]
    assert fake_workers.sql("SELECT job_id::text FROM pgbeat.message_ends") == [(again,)]


def test_an_attempt_begins_as_fast_after_many(fake_workers: FakeWorkers) -> None:
    """Of all that a job has had, only the newest are read."""
    job_id = fake_workers.job()
    fake_workers.sql(
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
    with connections.transaction(fake_workers.connection):
        assert fake_workers.sql(last, job_id, 0) == [(True,)]
        assert fake_workers.sql(last, job_id, 5) == [(False,)]
        assert fake_workers.sql(read)[0][0] <= 100


@pytest.mark.parametrize("lost", [True, False])
@pytest.mark.parametrize("began", [True, False])
def test_what_the_main_process_tells(fake_workers: FakeWorkers, began: bool, lost: bool) -> None:
    """A process died, whether or not it had recorded that it began. Celery reports it twice for one
    that took too long.
    """
    job_id = fake_workers.job()
    if began:
        fake_workers.run(job_id, 1)
    reported = JobReport(job_id, "failed", KILLED, "failed", lost=lost, worker="w1")
    tell(fake_workers, reported, reported)
    tell(fake_workers, reported)
    assert fake_workers.now(job_id) == ("failed", [("failed", lost, KILLED)])


def test_what_a_thread_told_comes_before_what_celery_says(fake_workers: FakeWorkers) -> None:
    """In green pools both tell of a time limit: one attempt, though others are written just now."""
    recorder = Recorder(fake_workers.app, fake_workers.settings, 1)
    made = [fake_workers.job() for _ in range(20)]
    for job_id in made:
        attempt = Attempt(job_id, "w1", 0, False, None)
        recorder.record(attempt)
        attempt.end("failed")
        recorder.record(attempt)
        recorder.outbox.add_report(
            JobReport(job_id, "failed", "TimeLimitExceeded: 1", "failed", lost=False)
        )
        until(lambda j=job_id: fake_workers.state(j) == "failed")  # type: ignore[misc]
    recorder.close(10)
    assert [len(fake_workers.of(job_id)) for job_id in made] == [1] * 20


def test_the_last_words_of_a_process_come_after_its_parents(fake_workers: FakeWorkers) -> None:
    """One attempt: that it ended was reported before that it began."""
    job_id = fake_workers.job()
    tell(fake_workers, terminated(job_id))
    fake_workers.run(job_id, 1)
    assert fake_workers.now(job_id) == ("cancelled", [("cancelled", False, "terminated")])


def test_a_process_and_its_parent_tell_of_one_attempt_at_once(
    fake_workers: FakeWorkers, database: str
) -> None:
    """The parent waits for a job's row, and reads only then: it sees what the process recorded."""
    # They are locked in this order.
    first, second = sorted((fake_workers.job(), fake_workers.job()))
    fake_workers.run(first, 1)
    parent = FakeWorkers(database)

    def tell_both() -> None:
        with connections.transaction(parent.connection):
            tell(parent, terminated(first), terminated(second))

    with ThreadPoolExecutor(1) as threads:
        with connections.transaction(fake_workers.connection):
            jobs.lock(fake_workers.connection, [first])
            telling = threads.submit(tell_both)
            until(lambda: fake_workers.sql(WAITS), what="it waits")
            child = FakeWorkers(database)
            child.run(second, 1)
            child.close()
        telling.result()
    parent.close()
    for job_id in (first, second):
        assert fake_workers.now(job_id) == ("cancelled", [("cancelled", False, "terminated")])


def test_they_tell_at_once_of_an_attempt_at_a_job_that_has_ended(
    fake_workers: FakeWorkers, database: str
) -> None:
    """Its group skipped it just when its task began. The parent has no row to wait for."""
    job_id = fake_workers.job()
    endings.end(fake_workers.connection, [job_id], "skipped", "its group failed")
    child, parent = FakeWorkers(database), FakeWorkers(database)

    def tell_it() -> None:
        with connections.transaction(parent.connection):
            tell(parent, terminated(job_id))

    with ThreadPoolExecutor(1) as threads:
        with connections.transaction(child.connection):
            child.run(job_id, 1)
            telling = threads.submit(tell_it)
            until(lambda: fake_workers.sql(WAITS), what="it waits")
        telling.result()
    child.close()
    parent.close()
    assert fake_workers.now(job_id) == ("skipped", [("cancelled", False, "terminated")])


def test_what_another_worker_runs_is_not_touched_by_that(fake_workers: FakeWorkers) -> None:
    job_id = fake_workers.job()
    fake_workers.run(job_id, 2)
    tell(fake_workers, JobReport(job_id, "failed", KILLED, "failed", lost=True, began=False))
    assert fake_workers.now(job_id) == RUNNING


# ----- late words of an attempt that another followed


@pytest.mark.parametrize("is_known", [True, False])
def test_an_attempt_told_late_changes_nothing_of_the_next(
    fake_workers: FakeWorkers, is_known: bool
) -> None:
    """Celery's retry ran elsewhere before the attempt that asked for it was reported of, wholly or
    its end. It is not lost by that.
    """
    job_id = fake_workers.job()
    first = fake_workers.run(job_id, 1, began=2.0) if is_known else str(uuid4())
    second = fake_workers.run(job_id, 2, began=1.0, retry_attempt=1 if is_known else None)
    assert set(fake_workers.of(job_id)) == {("running", False, None)}
    begin: dict[str, Any] = {} if is_known else {"worker": "w1", "worker_id": 1, "began": 2.0}
    late = ExecutionRecord(first, job_id, not is_known, "failed", "scheduled", error="no", **begin)
    fake_workers.record(late._replace(ended=None if is_known else 1.5))
    assert fake_workers.state(job_id) == "running"
    fake_workers.end(second, job_id)
    ends = [("completed", False, None), ("failed", False, "no")]
    assert fake_workers.now(job_id) == ("completed", ends)
    assert fake_workers.released() == 0


def test_a_beginning_told_again_after_the_end_changes_nothing(fake_workers: FakeWorkers) -> None:
    """The commit's answer was lost, and the worker tells both again."""
    job_id = fake_workers.job()
    begin = ExecutionRecord(str(uuid4()), job_id, True, worker="w1", worker_id=1, began=2.0)
    end = ExecutionRecord(begin.id, job_id, False, "failed", "scheduled", error="not yet")
    for _ in range(2):
        fake_workers.record(begin, end)
        assert fake_workers.now(job_id) == ("scheduled", [("failed", False, "not yet")])


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
