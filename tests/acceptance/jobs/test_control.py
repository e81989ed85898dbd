"""Control, with workers: what is cancelled in whatever state never runs, or is ended."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from pgbeat.errors import InvalidTransition
from pgbeat.jobs import control, executions
from pgbeat.jobs import model as jobs
from pgbeat.jobs.model import Job
from tests.support.command_line import run_with
from tests.support.jobs import JobControl, job_controls
from tests.support.processes import until
from tests.support.transport_workers import Fleet


@pytest.fixture
def fleet(database: str, tmp_path: Path) -> Iterator[Fleet]:
    """Workers on pgbeat's transport."""
    fleet = Fleet(database, tmp_path)
    app = fleet.app
    app.conf.pgbeat_url = database

    def one(gate: str) -> None: ...
    def two(x: Any, y: int) -> None: ...
    def many(*args: Any, **kwargs: Any) -> None: ...

    # The same names as those of `tests.support.apps.journal`, which does the work.
    for name, function in {
        "hold": one,
        "late": one,
        "add": two,
        "note": many,
        "again": many,
    }.items():
        app.task(name=f"transport.{name}", shared=False)(function)
    yield fleet
    fleet.stop_all()
    fleet.app.close()


@pytest.fixture
def job_control(database: str, fleet: Fleet) -> Iterator[JobControl]:
    """Controls jobs of the workers."""
    with job_controls(database, fleet.app) as make:
        yield make()


def ran(fleet: Fleet, job: Job) -> bool:
    """Whether its task has started."""
    return str(job.id) in {entry.id for entry in fleet.journal()}


def becomes(job_control: JobControl, job: Job, state: str) -> Job:
    """The job, once it is in that state."""

    def found() -> Job | None:
        now = job_control.job(job)
        return now if now.state == state else None

    return until(found, 60, f"job {job.id} is {state}")


def is_claimed(fleet: Fleet, job: Job) -> bool:
    """Whether a worker has its message."""
    return fleet.count("job_id = %s AND claimed_by IS NOT NULL", job.id) == 1


def after_a_note(fleet: Fleet, job_control: JobControl) -> None:
    """Waits until the workers have done what was there before."""
    done = job_control.make(task="transport.note")
    becomes(job_control, done, "completed")
    fleet.await_empty()


@pytest.mark.slow
def test_cancel_in_each_state(fleet: Fleet, job_control: JobControl) -> None:
    never = [
        job_control.make("x", task="transport.hold"),
        job_control.make("x", task="transport.hold", countdown=timedelta(hours=1)),
        job_control.do(control.pause, job_control.make("x", task="transport.hold")),
        job_control.make("x", task="transport.hold", requires_approval=True),
    ]
    for job in never:
        assert job_control.do(control.cancel, job).state == "cancelled"
    fleet.start("-c", "1")
    running = job_control.make("y", task="transport.hold")
    becomes(job_control, running, "running")
    fleet.await_started([str(running.id)])
    # It has the message of the next one already, behind the one that runs.
    claimed = job_control.make("z", task="transport.hold")
    until(lambda: is_claimed(fleet, claimed), 30, "it is claimed")
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
    fleet.open("x", "y", "z")
    after_a_note(fleet, job_control)
    assert fleet.journal("ended") == []
    assert not any(ran(fleet, job) for job in (*never, claimed))
    assert ended.retried_by is None


@pytest.mark.slow
@pytest.mark.parametrize("pool", ["threads", "solo", "gevent", "eventlet"])
def test_cancel_what_is_claimed(fleet: Fleet, job_control: JobControl, pool: str) -> None:
    """Behind one that runs, in each pool; what runs goes on where the pool can't end it."""
    fleet.start("-P", pool, "-c", "1", "--prefetch-multiplier", "4")
    running = job_control.make("y", task="transport.hold")
    fleet.await_started([str(running.id)])
    claimed = job_control.make("z", task="transport.hold")
    if pool != "solo":  # which takes no message while it runs a task
        until(lambda: is_claimed(fleet, claimed), 30, "it is claimed")
    assert job_control.do(control.cancel, claimed).state == "cancelled"
    fleet.open("y", "z")
    becomes(job_control, running, "completed")
    after_a_note(fleet, job_control)
    assert not ran(fleet, claimed)


@pytest.mark.slow
def test_cancel_what_a_worker_had_that_dies(fleet: Fleet, job_control: JobControl) -> None:
    """The worker that comes after it knows of no revocation."""
    victim = fleet.start("-P", "threads", "-c", "1", "--prefetch-multiplier", "4")
    running = job_control.make("y", task="transport.hold", max_attempts=1)
    fleet.await_started([str(running.id)])
    claimed = job_control.make("z", task="transport.hold")
    until(lambda: is_claimed(fleet, claimed), 30, "it is claimed")
    assert job_control.do(control.cancel, claimed).state == "cancelled"
    victim.kill_group()
    fleet.open("y", "z")
    fleet.start("-P", "threads", "-c", "1")
    becomes(job_control, running, "failed")
    after_a_note(fleet, job_control)
    assert not ran(fleet, claimed)


@pytest.mark.slow
def test_paused_and_resumed_before_a_worker_came(fleet: Fleet, job_control: JobControl) -> None:
    held = job_control.do(control.pause, job_control.make("x", task="transport.hold"))
    fleet.start("-c", "1")
    after_a_note(fleet, job_control)
    assert not ran(fleet, held)
    fleet.open("x")
    job_control.do(control.resume, held)
    becomes(job_control, held, "completed")
    waits = job_control.make("x", task="transport.hold", requires_approval=True)
    after_a_note(fleet, job_control)
    assert not ran(fleet, waits)
    job_control.do(control.approve, waits)
    becomes(job_control, waits, "completed")


@pytest.mark.slow
def test_a_chain_of_retries_and_one_by_hand(fleet: Fleet, job_control: JobControl) -> None:
    """`add` of a text and a number fails."""
    fleet.start("-c", "1")
    first = job_control.make("x", 1, task="transport.add", max_attempts=3, retry_base=0)
    chain = [becomes(job_control, first, "failed")]
    while chain[-1].retried_by is not None:
        [following] = jobs.find(job_control.connection, [str(chain[-1].retried_by)])
        chain.append(becomes(job_control, following, "failed"))
    assert [job.attempt for job in chain] == [1, 2, 3]
    assert all("TypeError" in str(job.error) for job in chain)
    again = job_control.do(control.retry, chain[-1], job_source="user_cli")
    assert (again.attempt, again.retry_of) == (1, chain[-1].id)
    assert becomes(job_control, again, "failed").retried_by is not None


@pytest.mark.slow
def test_cancel_while_celerys_own_retry_is_on_its_way(
    fleet: Fleet, job_control: JobControl
) -> None:
    fleet.start("-c", "1")
    job = job_control.make(3600, task="transport.again")
    coming = becomes(job_control, job, "scheduled")
    assert coming.started_at is not None
    assert job_control.do(control.pause, job).state == "paused"
    assert job_control.do(control.resume, job).state == "scheduled"
    assert job_control.do(control.cancel, job).state == "cancelled"
    after_a_note(fleet, job_control)
    assert len(fleet.journal(task="again")) == 1


@pytest.mark.slow
def test_cancel_what_is_acknowledged_late(fleet: Fleet, job_control: JobControl) -> None:
    """It is not delivered again."""
    fleet.start("-c", "1")
    job = job_control.make("y", task="transport.late")
    fleet.await_started([str(job.id)])
    becomes(job_control, job, "running")
    job_control.do(control.cancel, job)
    becomes(job_control, job, "cancelled")
    fleet.open("y")
    after_a_note(fleet, job_control)
    assert len(fleet.journal(task="late")) == 1
    assert len(executions.of_job(job_control.connection, job.id)) == 1


@pytest.mark.slow
def test_run_and_wait(fleet: Fleet) -> None:
    """The command follows the job to its end, which is its exit status."""
    fleet.start("-c", "1")
    for args, status, last in (("[1, 2]", 0, "completed"), ('["x", 2]', 1, "failed")):
        shown = run_with(
            fleet.app, "jobs", "run", "transport.add", "--args", args, "--max-attempts", "1",
            "--wait",
        )  # fmt: skip
        assert shown.exit_code == status, shown.output
        lines = shown.stdout.splitlines()
        assert lines[0].startswith("Made job ") and f"transport.add: {last}" in lines[-1]
