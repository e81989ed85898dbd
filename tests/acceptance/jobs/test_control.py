"""Control, with workers: what is cancelled in whatever state never runs, or is ended."""

from collections.abc import Iterator
from datetime import timedelta

import pytest

from pgbeat.errors import InvalidTransition
from pgbeat.jobs.rows.model import Job
from pgbeat.jobs.running import executions
from pgbeat.jobs.verbs import control
from tests.support.command_line import run_with
from tests.support.jobs import JobControl, any_arguments, job_controls
from tests.support.processes import until
from tests.support.transport_workers import TransportWorkers


@pytest.fixture
def transport_workers(transport_workers: TransportWorkers, database: str) -> TransportWorkers:
    """Workers on pgbeat's transport, whose client makes jobs."""
    app = transport_workers.app
    app.conf.pgbeat_url = database
    # The same names as those of `tests.support.apps.journal`, which does the work.
    for name in ("hold", "late", "add", "note", "again"):
        app.task(any_arguments, name=f"transport.{name}", shared=False)
    return transport_workers


@pytest.fixture
def job_control(database: str, transport_workers: TransportWorkers) -> Iterator[JobControl]:
    with job_controls(database, transport_workers.app) as make:
        yield make()


def ran(transport_workers: TransportWorkers, job: Job) -> bool:
    """Whether its task has started."""
    return str(job.id) in {entry.id for entry in transport_workers.journal()}


def becomes(job_control: JobControl, job: Job, state: str) -> Job:
    def found() -> Job | None:
        now = job_control.job(job)
        return now if now.state == state else None

    return until(found, 60, f"job {job.id} is {state}")


def is_claimed(transport_workers: TransportWorkers, job: Job) -> bool:
    return transport_workers.count("job_id = %s AND claimed_by IS NOT NULL", job.id) == 1


def after_a_note(transport_workers: TransportWorkers, job_control: JobControl) -> None:
    """Waits until the workers have done what was there before."""
    done = job_control.make(task="transport.note")
    becomes(job_control, done, "completed")
    transport_workers.await_empty()


@pytest.mark.slow
def test_cancel_in_each_state(transport_workers: TransportWorkers, job_control: JobControl) -> None:
    never = [
        job_control.make("x", task="transport.hold"),
        job_control.make("x", task="transport.hold", countdown=timedelta(hours=1)),
        job_control.do(control.pause, job_control.make("x", task="transport.hold")),
        job_control.make("x", task="transport.hold", requires_approval=True),
    ]
    for job in never:
        assert job_control.do(control.cancel, job).state == "cancelled"
    transport_workers.start("-c", "1")
    running = job_control.make("y", task="transport.hold")
    becomes(job_control, running, "running")
    transport_workers.await_started([str(running.id)])
    # It has the message of the next one already, behind the one that runs.
    claimed = job_control.make("z", task="transport.hold")
    until(lambda: is_claimed(transport_workers, claimed), 30, "it is claimed")
    with pytest.raises(InvalidTransition, match="a worker has its message already; cancel it"):
        job_control.do(control.pause, claimed)
    assert job_control.do(control.cancel, claimed).state == "cancelled"
    with pytest.raises(InvalidTransition, match="is running and can't be paused"):
        job_control.do(control.pause, running)
    asked = job_control.do(control.cancel, running)
    assert asked.state in ("running", "cancelled")
    ended = becomes(job_control, running, "cancelled")
    assert ended.cancel_requested_by == "user:root"
    [run] = executions.of_job(job_control.connection, running.id)
    assert run.state == "cancelled"
    transport_workers.open("x", "y", "z")
    after_a_note(transport_workers, job_control)
    assert transport_workers.journal("ended") == []
    assert not any(ran(transport_workers, job) for job in (*never, claimed))
    assert ended.retried_by is None


@pytest.mark.slow
@pytest.mark.parametrize("pool", ["threads", "solo", "gevent", "eventlet"])
def test_cancel_what_is_claimed(
    transport_workers: TransportWorkers, job_control: JobControl, pool: str
) -> None:
    """Behind one that runs, in each pool; what runs goes on where the pool can't end it."""
    worker = transport_workers.start("-P", pool, "-c", "1", "--prefetch-multiplier", "4")
    running = job_control.make("y", task="transport.hold")
    transport_workers.await_started([str(running.id)])
    claimed = job_control.make("z", task="transport.hold")
    if pool != "solo":  # which takes no message while it runs a task
        until(lambda: is_claimed(transport_workers, claimed), 30, "it is claimed")
    known = len(worker.output)
    assert job_control.do(control.cancel, claimed).state == "cancelled"
    if pool != "solo":
        until(lambda: str(claimed.id) in worker.output[known:], 30, "the worker knows")
    transport_workers.open("y", "z")
    becomes(job_control, running, "completed")
    after_a_note(transport_workers, job_control)
    assert not ran(transport_workers, claimed)


def test_the_message_of_what_is_cancelled_as_it_waits_for_a_thread(
    transport_workers: TransportWorkers, job_control: JobControl
) -> None:
    """It is acknowledged, though the pool can't terminate its task."""
    worker = transport_workers.start("-P", "threads", "-c", "1", "--prefetch-multiplier", "4")
    running = job_control.make("y", task="transport.late")
    transport_workers.await_started([str(running.id)])
    claimed = job_control.make("z", task="transport.late")
    until(lambda: f"{claimed.id}] received" in worker.output, 30, "it waits in the worker")
    job_control.do(control.cancel, claimed)
    until(lambda: str(claimed.id) in worker.output.rpartition("received")[2], 30, "it is revoked")
    transport_workers.open("y", "z")
    becomes(job_control, running, "completed")
    until(lambda: transport_workers.count("job_id = %s", claimed.id) == 0, 30, "it is gone")
    assert not ran(transport_workers, claimed)


@pytest.mark.slow
def test_cancel_what_a_worker_had_that_dies(
    transport_workers: TransportWorkers, job_control: JobControl
) -> None:
    """The worker that comes after it knows of no revocation."""
    victim = transport_workers.start("-P", "threads", "-c", "1", "--prefetch-multiplier", "4")
    running = job_control.make("y", task="transport.hold", max_attempts=1)
    transport_workers.await_started([str(running.id)])
    claimed = job_control.make("z", task="transport.hold")
    until(lambda: is_claimed(transport_workers, claimed), 30, "it is claimed")
    assert job_control.do(control.cancel, claimed).state == "cancelled"
    victim.kill_group()
    transport_workers.open("y", "z")
    transport_workers.start("-P", "threads", "-c", "1")
    becomes(job_control, running, "failed")
    after_a_note(transport_workers, job_control)
    assert not ran(transport_workers, claimed)


@pytest.mark.slow
def test_cancel_while_celerys_own_retry_is_on_its_way(
    transport_workers: TransportWorkers, job_control: JobControl
) -> None:
    transport_workers.start("-c", "1")
    job = job_control.make(3600, task="transport.again")
    coming = becomes(job_control, job, "scheduled")
    assert coming.started_at is not None
    assert job_control.do(control.pause, job).state == "paused"
    assert job_control.do(control.resume, job).state == "scheduled"
    assert job_control.do(control.cancel, job).state == "cancelled"
    after_a_note(transport_workers, job_control)
    assert len(transport_workers.journal(task="again")) == 1


@pytest.mark.slow
def test_cancel_what_is_acknowledged_late(
    transport_workers: TransportWorkers, job_control: JobControl
) -> None:
    """It is not delivered again."""
    transport_workers.start("-c", "1")
    job = job_control.make("y", task="transport.late")
    transport_workers.await_started([str(job.id)])
    becomes(job_control, job, "running")
    job_control.do(control.cancel, job)
    becomes(job_control, job, "cancelled")
    transport_workers.open("y")
    after_a_note(transport_workers, job_control)
    assert len(transport_workers.journal(task="late")) == 1
    assert len(executions.of_job(job_control.connection, job.id)) == 1


@pytest.mark.slow
def test_run_and_wait(transport_workers: TransportWorkers) -> None:
    """The command follows the job to its end, which is its exit status."""
    transport_workers.start("-c", "1")
    for args, status, last in (("[1, 2]", 0, "completed"), ('["x", 2]', 1, "failed")):
        asked = ("jobs", "run", "transport.add", "--args", args, "--max-attempts", "1", "--wait")
        shown = run_with(transport_workers.app, *asked)
        assert shown.exit_code == status, shown.output
        lines = shown.stdout.splitlines()
        assert lines[0].startswith("Made job ") and f"transport.add: {last}" in lines[-1]
