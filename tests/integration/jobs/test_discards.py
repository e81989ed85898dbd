"""Jobs whose message was purged, was deleted with its queue, or expired: they do not come back."""

from collections.abc import Iterator
from uuid import UUID

import psycopg
import pytest
from celery import Celery

from pgbeat.broker import discards
from pgbeat.database import connections
from pgbeat.jobs import model as jobs
from pgbeat.jobs import rescue
from pgbeat.jobs.lanes import model as lanes
from pgbeat.jobs.rescue import Rescuer
from tests.support.rows import make_lane
from tests.support.simulated_workers import Ward
from tests.support.transport_workers import transport_url


@pytest.fixture
def ward(database: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ward]:
    """Workers that are nothing but rows."""
    monkeypatch.setattr(rescue, "_MESSAGES_INTERVAL", 0.0)
    ward = Ward(database)
    yield ward
    ward.close()


def end_of(ward: Ward, job_id: str) -> tuple[str, str | None, object]:
    """A job's state, its error and its retry."""
    job = jobs.get(ward.connection, job_id)
    return job.state, job.error, job.retried_by


def sweep(ward: Ward) -> None:
    """One sweep of a process that has not looked before."""
    Rescuer(ward.publisher, ward.settings).rescue(ward.connection)


PURGED = ("cancelled", "its message was purged from queue 'celery'", None)


def test_a_purge_cancels_jobs_in_its_transaction(ward: Ward) -> None:
    waits, later = ward.job(max_attempts=3), ward.job(max_attempts=3, run_at=None)
    ward.sql(
        "UPDATE kombu_message SET visible = false, available_at = now() + interval '1 hour' "
        "WHERE job_id = %s", later,
    )  # fmt: skip
    with pytest.raises(ZeroDivisionError), connections.transaction(ward.connection):
        assert discards.purge(ward.connection, "celery") == 2
        assert end_of(ward, waits) == PURGED
        raise ZeroDivisionError
    assert ward.state(waits) == "pending"
    with connections.transaction(ward.connection):
        discards.purge(ward.connection, "celery")
    assert [end_of(ward, job_id) for job_id in (waits, later)] == [PURGED, PURGED]
    sweep(ward)
    assert ward.sql("SELECT count(*) FROM pgbeat.message_ends") == [(0,)]


def test_a_claimed_message_is_not_purged(ward: Ward) -> None:
    job_id = ward.job()
    ward.sql("UPDATE kombu_message SET visible = false, claimed_by = 1")
    with connections.transaction(ward.connection):
        assert discards.purge(ward.connection, "celery") == 0
    assert ward.state(job_id) == "pending"


def test_celerys_own_purge(ward: Ward, database: str) -> None:
    job_id = ward.job(max_attempts=3)
    with Celery(broker=transport_url(database), set_as_current=False) as app:
        assert app.control.purge() == 1
    assert end_of(ward, job_id) == PURGED


def test_what_follows_a_purge_comes_with_the_next_sweep(ward: Ward) -> None:
    """The slot of a lane, and what another transaction has locked."""
    make_lane(ward.sql, "one")
    in_lane, locked = ward.job(lane="one"), ward.job(max_attempts=3)
    with psycopg.connect(ward.dsn) as other:
        other.execute("SELECT FROM pgbeat.jobs WHERE id = %s FOR UPDATE", [locked])
        with connections.transaction(ward.connection):
            discards.purge(ward.connection, "celery")
        assert [ward.state(job_id) for job_id in (in_lane, locked)] == ["pending", "pending"]
        rescuer = Rescuer(ward.publisher, ward.settings)
        assert rescuer.rescue(ward.connection) == {lanes.Room("default", "one", UUID(in_lane))}
        assert end_of(ward, in_lane) == PURGED
        assert ward.state(locked) == "pending"
    sweep(ward)
    assert end_of(ward, locked) == PURGED


def test_an_expired_message_cancels_its_job(ward: Ward) -> None:
    expired, kept = ward.job(max_attempts=3), ward.job()
    ward.sql("UPDATE kombu_message SET expires_at = now() WHERE job_id = %s", expired)
    with connections.transaction(ward.connection):
        discards.expire(ward.connection)
    what = "expired: no worker took its message from queue 'celery' in time"
    assert end_of(ward, expired) == ("cancelled", what, None)
    assert ward.state(kept) == "pending"


def test_the_jobs_of_a_queue_that_is_deleted(ward: Ward) -> None:
    job_id = ward.job(max_attempts=3)
    with connections.transaction(ward.connection):
        assert discards.delete_queue(ward.connection, "celery") == 1
    what = "its message was deleted from queue 'celery' with the queue"
    assert end_of(ward, job_id) == ("cancelled", what, None)


def test_what_a_worker_lost_and_was_purged_then_is_not_tried_again(ward: Ward) -> None:
    """Its message had come back, and its execution was not ended yet."""
    ward.worker(1, missing=60)
    job_id = ward.job(max_attempts=3)
    ward.run(job_id, 1, began=30.0, acks=False)
    with connections.transaction(ward.connection):
        discards.purge(ward.connection, "celery")
    assert ward.state(job_id) == "running"
    sweep(ward)
    state, _, again = end_of(ward, job_id)
    assert (state, again) == ("cancelled", None)
