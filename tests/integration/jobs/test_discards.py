"""Jobs whose message was purged, was deleted with its queue, or expired: they do not come back."""

from uuid import UUID

import psycopg
import pytest
from celery import Celery

from pgbeat.broker import discards
from pgbeat.database import connections
from pgbeat.jobs.lanes import model as lanes
from tests.support.rows import make_lane
from tests.support.simulated_workers import FakeWorkers
from tests.support.transport_workers import transport_url


def end_of(fake_workers: FakeWorkers, job_id: str) -> tuple[str, str | None, object]:
    """A job's state, its error and its retry."""
    job = fake_workers.get(job_id)
    return job.state, job.error, job.retried_by


PURGED = ("cancelled", "its message was purged from queue 'celery'", None)


def test_a_purge_cancels_jobs_in_its_transaction(fake_workers: FakeWorkers) -> None:
    waits, later = fake_workers.job(max_attempts=3), fake_workers.job(max_attempts=3, run_at=None)
    fake_workers.sql(
        "UPDATE kombu_message SET visible = false, available_at = now() + interval '1 hour' "
        "WHERE job_id = %s",
        later,
    )
    with pytest.raises(ZeroDivisionError), connections.transaction(fake_workers.connection):
        assert discards.purge(fake_workers.connection, "celery") == 2
        assert end_of(fake_workers, waits) == PURGED
        raise ZeroDivisionError
    assert fake_workers.state(waits) == "pending"
    with connections.transaction(fake_workers.connection):
        discards.purge(fake_workers.connection, "celery")
    assert [end_of(fake_workers, job_id) for job_id in (waits, later)] == [PURGED, PURGED]
    fake_workers.rescuer().rescue(fake_workers.connection)
    assert fake_workers.sql("SELECT count(*) FROM pgbeat.message_ends") == [(0,)]


def test_a_claimed_message_is_not_purged(fake_workers: FakeWorkers) -> None:
    job_id = fake_workers.job()
    fake_workers.sql("UPDATE kombu_message SET visible = false, claimed_by = 1")
    with connections.transaction(fake_workers.connection):
        assert discards.purge(fake_workers.connection, "celery") == 0
    assert fake_workers.state(job_id) == "pending"


def test_celerys_own_purge(fake_workers: FakeWorkers, database: str) -> None:
    job_id = fake_workers.job(max_attempts=3)
    with Celery(broker=transport_url(database), set_as_current=False) as app:
        assert app.control.purge() == 1
    assert end_of(fake_workers, job_id) == PURGED


def test_what_follows_a_purge_comes_with_the_next_sweep(fake_workers: FakeWorkers) -> None:
    """The slot of a lane, and what another transaction has locked."""
    make_lane(fake_workers.sql, "one")
    in_lane, locked = fake_workers.job(lane="one"), fake_workers.job(max_attempts=3)
    with psycopg.connect(fake_workers.dsn) as other:
        other.execute("SELECT FROM pgbeat.jobs WHERE id = %s FOR UPDATE", [locked])
        with connections.transaction(fake_workers.connection):
            discards.purge(fake_workers.connection, "celery")
        assert [fake_workers.state(job_id) for job_id in (in_lane, locked)] == [
            "pending",
            "pending",
        ]
        rescuer = fake_workers.rescuer()
        assert rescuer.rescue(fake_workers.connection) == {
            lanes.Room("default", "one", UUID(in_lane))
        }
        assert end_of(fake_workers, in_lane) == PURGED
        assert fake_workers.state(locked) == "pending"
    fake_workers.rescuer().rescue(fake_workers.connection)
    assert end_of(fake_workers, locked) == PURGED


def test_an_expired_message_cancels_its_job(fake_workers: FakeWorkers) -> None:
    expired, kept = fake_workers.job(max_attempts=3), fake_workers.job()
    fake_workers.sql("UPDATE kombu_message SET expires_at = now() WHERE job_id = %s", expired)
    with connections.transaction(fake_workers.connection):
        discards.expire(fake_workers.connection)
    what = "expired: no worker took its message from queue 'celery' in time"
    assert end_of(fake_workers, expired) == ("cancelled", what, None)
    assert fake_workers.state(kept) == "pending"


def test_the_jobs_of_a_queue_that_is_deleted(fake_workers: FakeWorkers) -> None:
    job_id = fake_workers.job(max_attempts=3)
    with connections.transaction(fake_workers.connection):
        assert discards.delete_queue(fake_workers.connection, "celery") == 1
    what = "its message was deleted from queue 'celery' with the queue"
    assert end_of(fake_workers, job_id) == ("cancelled", what, None)


def test_what_a_worker_lost_and_was_purged_then_is_not_tried_again(
    fake_workers: FakeWorkers,
) -> None:
    """Its message had come back, and its execution was not ended yet."""
    fake_workers.worker(1, missing=60)
    job_id = fake_workers.job(max_attempts=3)
    fake_workers.run(job_id, 1, began=30.0, acks=False)
    with connections.transaction(fake_workers.connection):
        discards.purge(fake_workers.connection, "celery")
    assert fake_workers.state(job_id) == "running"
    fake_workers.rescuer().rescue(fake_workers.connection)
    state, _, again = end_of(fake_workers, job_id)
    assert (state, again) == ("cancelled", None)
