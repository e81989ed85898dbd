"""A job that a worker accepted is given up only when that worker is dead."""

from typing import Any

import psycopg
import pytest

from pgbeat.database import connections
from pgbeat.jobs.explaining import explain as whereabouts
from tests.support.processes import until
from tests.support.recorded_workers import TrackedWorkers
from tests.support.rows import make_lane, make_schedule
from tests.support.simulated_workers import FakeWorkers


def test_what_a_living_worker_accepted_is_not_given_up(fake_workers: FakeWorkers) -> None:
    fake_workers.worker(1, lives=True)
    fake_workers.worker(2, missing=1)  # its session broke just now
    accepted = [fake_workers.job(), fake_workers.job()]
    for worker, job_id in enumerate(accepted, 1):
        fake_workers.accept(job_id, worker)
    rescuer = fake_workers.rescuer()
    rescuer._missing_messages._suspects = dict.fromkeys(accepted, 0.0)  # without a message for long
    rescuer.rescue(fake_workers.connection)
    assert [fake_workers.state(job_id) for job_id in accepted] == ["pending", "pending"]
    assert fake_workers.sql("SELECT count(*) FROM pgbeat.message_ends") == [(2,)]


def test_what_a_worker_accepted_that_died_or_left_is_lost(
    fake_workers: FakeWorkers, caplog: pytest.LogCaptureFixture
) -> None:
    fake_workers.worker(1, missing=60)
    died, left = fake_workers.job(max_attempts=2), fake_workers.job(max_attempts=1)
    fake_workers.accept(died, 1)
    fake_workers.accept(left, 2)
    fake_workers.rescuer().rescue(fake_workers.connection)
    job = fake_workers.get(died)
    assert (job.state, job.error) == (
        "failed",
        "lost: the worker w accepted it, and is gone without having begun it",
    )
    assert job.retried_by is not None
    assert fake_workers.state(left) == "failed"
    assert fake_workers.released() == 2
    assert f"Job {died} (tests.add) failed (attempt 1/2), retrying in 1 min" in caplog.text
    assert f"Job {left} (tests.add) failed (attempt 1/1): lost: the worker" in caplog.text
    fake_workers.rescuer().rescue(fake_workers.connection)
    assert fake_workers.sql("SELECT count(*) FROM pgbeat.message_ends") == [(0,)]


@pytest.mark.parametrize(
    ("worker", "says"),
    [
        (1, "was accepted 1 min ago by worker w, which has not recorded yet that it began"),
        (
            2,
            "was accepted 1 min ago by a worker that is gone, which has not recorded yet that it "
            "began",
        ),
        (None, "was accepted 1 min ago by a worker that records nothing"),
    ],
)
def test_where_an_accepted_job_is(fake_workers: FakeWorkers, worker: int | None, says: str) -> None:
    fake_workers.worker(1, lives=True)
    job_id = fake_workers.job()
    fake_workers.accept(job_id, worker)
    with connections.transaction(fake_workers.connection):
        job, now = (fake_workers.get(job_id), connections.now(fake_workers.connection))
        where = whereabouts.of_job(fake_workers.connection, job, now)
    assert (where.cause, where.sentence) == ("accepted", says)


def test_what_was_accepted_just_now_may_be_of_a_worker_that_is_not_registered_yet(
    fake_workers: FakeWorkers,
) -> None:
    job_id = fake_workers.job()
    fake_workers.accept(job_id, 1, ago=5)
    fake_workers.rescuer().rescue(fake_workers.connection)
    assert fake_workers.state(job_id) == "pending"


def test_a_worker_whose_consumer_lives_is_not_dead(fake_workers: FakeWorkers) -> None:
    """Its recording session may be away for longer than its consumer's."""
    job_id = fake_workers.job()
    fake_workers.accept(job_id, 1)
    [(consumer,)] = fake_workers.sql(
        "INSERT INTO pgbeat.consumers (name, lease_until) "
        "VALUES ('w', now() + interval '1 minute') RETURNING id"
    )
    fake_workers.sql("UPDATE pgbeat.message_ends SET consumer_id = %s", consumer)
    fake_workers.rescuer().rescue(fake_workers.connection)
    assert fake_workers.state(job_id) == "pending"
    fake_workers.sql("DELETE FROM pgbeat.consumers")
    fake_workers.rescuer().rescue(fake_workers.connection)
    assert fake_workers.state(job_id) == "failed"


def test_what_a_worker_accepted_that_records_nothing_is_never_given_up(
    fake_workers: FakeWorkers,
) -> None:
    fake_workers.worker(1, lives=True)
    job_id = fake_workers.job()
    fake_workers.accept(job_id, None)
    rescuer = fake_workers.rescuer()
    rescuer._missing_messages._suspects = {job_id: 0.0}
    rescuer.rescue(fake_workers.connection)
    assert fake_workers.state(job_id) == "pending"


def test_a_lost_execution_of_a_job_that_another_worker_has_accepted(
    fake_workers: FakeWorkers,
) -> None:
    """Its message was delivered again, and the other has not recorded yet that it began."""
    fake_workers.worker(1, missing=60)
    fake_workers.worker(2, lives=True)
    job_id = fake_workers.job(max_attempts=2)
    fake_workers.run(job_id, 1, began=30.0, acks=False)
    fake_workers.accept(job_id, 2)
    fake_workers.rescuer().rescue(fake_workers.connection)
    assert fake_workers.state(job_id) == "pending"
    fake_workers.run(job_id, 2)
    assert fake_workers.state(job_id) == "running"


def test_a_success_that_celery_does_not_run_again(fake_workers: FakeWorkers) -> None:
    """Its message was delivered again, and dropped without a signal, by a worker that lives."""
    fake_workers.app.conf.update(
        result_backend="pgbeat://", worker_deduplicate_successful_tasks=True
    )
    fake_workers.worker(1, missing=60)
    fake_workers.worker(2, lives=True)
    begun, unrecorded, other = (fake_workers.job() for _ in range(3))
    fake_workers.run(begun, 1, began=120.0, acks=False, acks_late=True)
    for job_id in (begun, unrecorded, other):
        fake_workers.accept(job_id, 2)
    for job_id in (begun, unrecorded):
        fake_workers.app.backend.mark_as_done(job_id, 7)
    fake_workers.rescue()
    completed = ("completed", False, None)
    assert fake_workers.now(begun) == (
        "completed",
        [completed, ("failed", True, "lost: the worker w1 died")],
    )
    assert fake_workers.now(unrecorded) == ("completed", [completed])
    assert fake_workers.now(other) == ("pending", [])


def test_a_lost_execution_is_logged_with_what_becomes_of_it(
    fake_workers: FakeWorkers, caplog: pytest.LogCaptureFixture
) -> None:
    fake_workers.worker(1, missing=60)
    make_lane(fake_workers.sql, "gpu")
    job_id = fake_workers.job(max_attempts=2, lane="gpu")
    fake_workers.run(job_id, 1, began=600.0)
    fake_workers.rescuer().rescue(fake_workers.connection)
    again = fake_workers.get(job_id).retried_by
    run = f"Execution 1 of job {job_id} (tests.add) is lost after 10 min: the worker w1 died"
    retry = f"Job {job_id} (tests.add) failed (attempt 1/2), retrying in 1 min as job {again}"
    freed = "Cleared stale locks: 1 slot of lane 'gpu' is free again"
    for line in (run, retry, freed):
        assert line in caplog.text


def journal(tracked_workers: TrackedWorkers) -> list[str]:
    """What the tasks noted."""
    return (tracked_workers.folder / "journal").read_text().split()


def make_schedules(tracked_workers: TrackedWorkers) -> None:
    """Makes two schedules; one runs after the other's jobs."""
    for name, timetable, value in (("first", "every", "1 day"), ("then", "after", "first")):
        make_schedule(tracked_workers.sql, name, task="x", args="[]", **{timetable: value})


@pytest.mark.slow
def test_a_task_that_holds_the_interpreter_is_not_given_up(tracked_workers: TrackedWorkers) -> None:
    """Its process can't record that it began, however long after the acknowledgement."""
    make_lane(tracked_workers.sql, "one")
    tracked_workers.start("-c", "2")
    [first] = tracked_workers.launch("seize", 45, lane="one", is_dispatched=False)
    until(
        lambda: (
            "begin" in journal(tracked_workers)
            if (tracked_workers.folder / "journal").exists()
            else None
        )
    )
    [second] = tracked_workers.launch("seize", lane="one", is_dispatched=False)
    seen = tracked_workers.ended(first, second, seconds=120)
    assert journal(tracked_workers) == ["begin", "end", "begin", "end"]
    assert [each.job.state for each in seen] == ["completed", "completed"]
    assert [len(each.runs) for each in seen] == [1, 1]


@pytest.mark.slow
def test_a_worker_killed_between_the_result_and_the_acknowledgement(
    tracked_workers: TrackedWorkers,
) -> None:
    """Celery lets no other worker run the task again, which has succeeded: the job completes."""
    settings = {
        "task_acks_late": True,
        "worker_deduplicate_successful_tasks": True,
        "result_backend": "pgbeat://",
    }
    job_id = tracked_workers.one("store_and_die")
    options: dict[str, Any] = {"app": "tests.support.apps.killed", "settings": settings}
    first = tracked_workers.begin("-P", "solo", **options)
    until(lambda: first.poll() is not None, 60)
    other = tracked_workers.start("-P", "solo", **options)
    other.says("Task already completed successfully", 60)
    [seen] = tracked_workers.ended(job_id, seconds=30)
    assert seen.job.state == "completed"
    assert journal(tracked_workers) == ["ran"]
    assert other.poll() is None


@pytest.mark.slow
def test_an_open_transaction_delays_only_the_job_that_it_concerns(
    tracked_workers: TrackedWorkers, database: str
) -> None:
    """The job's end changes the schedule that runs after it, whose row is locked."""
    make_schedules(tracked_workers)
    [(schedule,)] = tracked_workers.sql("SELECT id FROM pgbeat.schedules WHERE name = 'first'")
    tracked_workers.start("-c", "1")
    tracked_workers.ended(tracked_workers.one("add"))
    with psycopg.connect(database) as held:
        held.execute("UPDATE pgbeat.schedules SET updated_at = now() WHERE name = 'then'")
        locked = tracked_workers.one(
            "say", "locked", schedule_id=schedule, max_attempts=3, retry_base=0
        )
        others = [
            tracked_workers.one("say", f"other{i}", max_attempts=3, retry_base=0) for i in range(5)
        ]
        seen = tracked_workers.ended(*others, seconds=15)
        assert {each.job.state for each in seen} == {"completed"}
        with pytest.raises(AssertionError):
            tracked_workers.ended(locked, seconds=40)
    [seen_last] = tracked_workers.ended(locked, seconds=15)
    assert seen_last.job.state == "completed"
    assert len(seen_last.runs) == 1
    assert sorted(journal(tracked_workers)) == ["locked", *(f"other{i}" for i in range(5))]
    assert tracked_workers.sql(
        "SELECT upstream_ended FROM pgbeat.schedules WHERE name = 'then'"
    ) == [(1,)]
