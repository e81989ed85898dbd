"""Changes the priority, the lane, the time or the retries of a job that waits."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import Connection

from pgbeat.broker.publishing.unit_of_work import UnitOfWork
from pgbeat.database import connections
from pgbeat.database.named_rows import missing
from pgbeat.errors import InvalidJob, InvalidTransition
from pgbeat.jobs.checks import user_limits
from pgbeat.jobs.checks.permissions import require_admin
from pgbeat.jobs.lanes import model as lanes
from pgbeat.jobs.policy import policies as job_policies
from pgbeat.jobs.policy.batches import BATCH
from pgbeat.jobs.preparing import times
from pgbeat.jobs.rows import model as jobs
from pgbeat.jobs.rows.model import Job
from pgbeat.jobs.states import transitions
from pgbeat.jobs.verbs.control import finish, freed_lane, lock, proceed, withdraw
from pgbeat.storable import later

#: The fields that can be changed.
FIELDS = ("priority", "lane", "run_at", "countdown", "max_attempts", "retry_base", "retry_cap")
# The message of a job, and its place in the line, depend on these.
_PLACED = {"priority", "lane", "run_at"}
# And on these, if Celery retries it: its message says how.
_RETRIES = {"max_attempts", "retry_base", "retry_cap"}


def update(unit: UnitOfWork, job_id: UUID | str, *, values: Mapping[str, Any]) -> Job:
    """Changes fields of a job that waits.

    `run_at` needs a time zone, and `None` means as soon as possible; `countdown` is a timedelta
    from now. Only an administrator may change `lane`, because a lane limits the owners of its jobs.
    With a new priority, the job keeps its place among the jobs of that priority; in another lane,
    it goes to the end. A message in the broker is withdrawn and sent again.

    Raises `InvalidTransition` if the job runs or has ended, or if a worker has its message;
    `InvalidJob`; `Forbidden`.
    """
    publisher, connection = unit.publisher, unit.connection
    job = lock(unit, "update", job_id)
    if "lane" in values:
        require_admin(unit.actor, f"give job {job.id} another lane")
    user_limits.require_changes(unit.actor, unit.app, job, values)
    if job.state not in ("pending", "scheduled", "paused"):
        raise InvalidTransition.of(job.id, job.state, "updated", "only a job that waits can be")
    read = _columns(connection, job, values)
    columns = {name: value for name, value in read.items() if value != getattr(job, name)}
    if unit.actor.is_restricted:
        user_limits.require_time(unit.settings, columns.get("run_at"), connections.now(connection))
    if not columns:
        return job
    if "run_at" in columns and job.due_at is None:
        columns |= _deadlines(job, columns["run_at"] or job.created_at)
    placed = _PLACED | _RETRIES if job.keeps_id else _PLACED
    if job.state == "paused" or not placed & columns.keys():
        transitions.change(connection, job.id, columns)
        return finish(unit, "update", job, jobs.get(connection, job.id))
    message = withdraw(connection, publisher, job, "updated")
    if transitions.pause(connection, job.id, message) is None:
        raise InvalidTransition.of(job.id, jobs.get(connection, job.id).state, "updated")
    transitions.change(connection, job.id, columns)
    resumed = transitions.resume(connection, job.id)
    if resumed is None:  # never: it was paused just now, by this transaction
        raise InvalidTransition.of(job.id, "paused", "updated")
    changed, waiting = proceed(connection, publisher, resumed)
    return finish(unit, "update", job, changed, waiting | freed_lane(job))


def _deadlines(job: Job, run_at: datetime) -> dict[str, Any]:
    """Returns the job's deadlines that it has not missed, so long after `run_at` as before."""
    moved = run_at - (job.run_at or job.created_at)
    left = {
        f"must_{name}_by": later(moment, moved)
        for name, moment in (("start", job.must_start_by), ("end", job.must_end_by))
        if moment is not None and name not in job.missed_deadlines
    }
    return left | {"next_deadline": min(left.values())} if left else {}


def _columns(connection: Connection, job: Job, values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the new values of columns. Raises `InvalidJob`."""
    changes = dict(values)
    unknown = sorted(changes.keys() - set(FIELDS))
    if unknown:
        listed, known = ", ".join(map(repr, unknown)), ", ".join(FIELDS)
        raise InvalidJob.of(
            unknown[0],
            "unknown_field",
            f"a job has no {listed} that can be updated; there are {known}",
        )
    if not changes:
        raise InvalidJob.of(
            "", "required", f"there is nothing to update; give one of {', '.join(FIELDS)}"
        )
    columns = _times(connection, changes)
    if "lane" in changes:
        name = columns["lane"] = changes.pop("lane")
        if name is not None and BATCH in (job.message or ()):
            message = "lane: a member of a batch waits for its batch, and for nothing else"
            raise InvalidJob.of("lane", "conflict", message)
        if name is not None and not lanes.load(connection, {name}, namespace=job.namespace):
            error = missing(connection, "lane", name, namespace=job.namespace)
            raise InvalidJob.of("lane", "unknown", str(error))
    for name, value in changes.items():
        if value is None:
            raise InvalidJob.of(name, "required", f"{name} must have a value")
    policy = job_policies.parse(changes)
    columns |= {name: getattr(policy, name) for name in changes}
    if columns.get("max_attempts", job.attempt) < job.attempt:
        raise InvalidJob.of(
            "max_attempts",
            "out_of_range",
            f"max_attempts must be at least {job.attempt}, the attempt that the job is at",
        )
    if columns.get("retry_cap", job.retry_cap) < columns.get("retry_base", job.retry_base):
        raise InvalidJob.of("retry_cap", "out_of_range", "retry_cap must not be below retry_base")
    return columns


def _times(connection: Connection, changes: dict[str, Any]) -> dict[str, Any]:
    """Removes `run_at` and `countdown` from the values, and returns the column `run_at`."""
    if "countdown" in changes:
        if "run_at" in changes:
            raise InvalidJob.of("run_at", "conflict", "run_at and countdown exclude each other")
        countdown = changes.pop("countdown")
        if not isinstance(countdown, timedelta):
            raise InvalidJob.of(
                "countdown", "malformed", f"countdown must be a length of time, got {countdown!r}"
            )
        return {"run_at": times.after(connections.now(connection), countdown)}
    if "run_at" not in changes:
        return {}
    run_at = changes.pop("run_at")
    return {"run_at": None if run_at is None else times.check_run_at(run_at)}
