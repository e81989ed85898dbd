"""Control: what people do with jobs, a function for each verb.

Each takes an open unit of work, makes one guarded transition with the job's message, records it in
the audit log, and has the lanes concerned dispatched after the commit. `pgbeat.jobs.permissions`
says who may do what. Lock order: the job, then its group; locked messages are passed over.
"""

from collections.abc import Set
from typing import Any
from uuid import UUID

from sqlalchemy import Connection

from pgbeat.broker.publishing.publisher import Publisher, TransactionPublisher
from pgbeat.broker.publishing.unit_of_work import UnitOfWork
from pgbeat.errors import InvalidJob, InvalidTransition, NotUnique
from pgbeat.jobs import defaults, dispatch, lifecycle, submissions, transitions
from pgbeat.jobs import model as jobs
from pgbeat.jobs.lanes import waiting
from pgbeat.jobs.lanes.waiting import Where
from pgbeat.jobs.model import Job
from pgbeat.jobs.permissions import Verb, require, require_task
from pgbeat.jobs.prepare import JobSpec
from pgbeat.jobs.submissions import SubmittedJob

Lanes = Set[tuple[str, str]]


def finish(
    unit: UnitOfWork,
    verb: str,
    before: Job | None,
    after: Job,
    lanes: Lanes = frozenset(),
    **more: Any,
) -> Job:
    """Records a change, and has lanes dispatched after the commit; returns the job after it."""
    unit.record(verb, before, after, **more)
    dispatch.after_commit(unit, lanes)
    return after


# -- made


def submit(unit: UnitOfWork, order: JobSpec, *, job_source: str) -> SubmittedJob:
    """Makes a job, the actor's, with its message; or finds the one that has its unique key.

    Raises `InvalidJob`, `UnknownTask` and `InvalidSchedule` for what the order has wrong, and
    `BrokerUnavailable` if the broker can't be reached.
    """
    made = submissions.place(unit, order, job_source=job_source)
    if made.is_new:
        submissions.follow(unit, [made.job])
        unit.record("create", None, made.job)
    return made


def take(unit: UnitOfWork, verb: Verb, job_id: UUID | str) -> Job:
    """Returns the job, locked. Raises `NotFound`, and `Forbidden` unless the actor may do that."""
    job = jobs.get(unit.connection, job_id, for_update=True)
    require(unit.actor, verb, job)
    return job


# -- ends


def cancel(unit: UnitOfWork, job_id: UUID | str, *, reason: str | None = None) -> Job:
    """Ends a job. One that waits ends now, its message withdrawn. The worker of one that runs is
    asked to end it, and records when it has; asked again, it is sent the request again.

    Raises `InvalidTransition` for one that has ended.
    """
    publisher, connection, by = unit.publisher, unit.connection, unit.actor.name
    job = take(unit, "cancel", job_id)
    if job.has_ended:
        raise InvalidTransition.of(job.id, job.state, "cancelled", _retry_hint(connection, job))
    said = f"cancelled by {by}" + (f": {reason}" if reason else "")
    ended = lifecycle.cancel(connection, publisher, [str(job.id)], by=by, reason=said)
    lanes = lifecycle.follow(connection, publisher, ended)
    return finish(unit, "cancel", job, jobs.get(connection, job.id), lanes)


def _retry_hint(connection: Connection, job: Job) -> str:
    """Returns why it can't be cancelled: it has ended, or its retry has not."""
    if job.retried_by is None:
        return "it has ended"
    for other in jobs.find(connection, [job.retried_by]):
        if not other.has_ended:
            return f"its retry, {other.id}, is {other.state}"
    return "it has ended"


def delete(unit: UnitOfWork, job_id: UUID | str) -> Job:
    """Deletes a job that has ended, and its executions. Raises `InvalidTransition` for others, and
    while its group runs."""
    job = take(unit, "delete", job_id)
    if not job.has_ended:
        raise InvalidTransition.of(job.id, job.state, "deleted", "cancel it first")
    if transitions.is_of_running_group(unit.connection, job):
        hint = f"its group, {job.group_id}, goes by it as long as that runs"
        raise InvalidTransition.of(job.id, job.state, "deleted", hint)
    transitions.delete(unit.connection, job.id)
    unit.record("delete", job, None)
    return job


# -- held and let go


def pause(unit: UnitOfWork, job_id: UUID | str) -> Job:
    """Holds a job that has not begun until it is resumed; it keeps its place in its lane's line,
    but not its slot. Raises `InvalidTransition` for others, and once a worker has its message."""
    publisher, connection = unit.publisher, unit.connection
    job = take(unit, "pause", job_id)
    if job.state not in ("pending", "scheduled"):
        raise InvalidTransition.of(job.id, job.state, "paused", _PAUSE_HINTS.get(job.state, ""))
    if job.dispatched_at is not None:
        withdraw(connection, publisher, job, "paused")
    paused = transitions.pause(connection, job.id)
    if paused is None:
        raise InvalidTransition.of(job.id, jobs.get(connection, job.id).state, "paused")
    return finish(
        unit, "pause", job, paused, frozenset() if job.dispatched_at is None else lane(job)
    )


_PAUSE_HINTS = {
    "running": "what runs can only be cancelled",
    "paused": "it waits already until it is resumed, or approved",
}


def withdraw(connection: Connection, publisher: Publisher, job: Job, verb: str) -> None:
    """Takes a job's message out of the broker. Raises `InvalidTransition` with why it can't."""
    if job.state == "scheduled" and job.started_at is not None:
        hint = "Celery's own retry of it is on its way, and knows what pgbeat doesn't; cancel it"
    elif not publisher.transactional:
        hint = "its message is with the broker, and only a worker gets it out of there; cancel it"
    elif publisher.withdraw(connection, [str(job.id)]):
        return
    elif isinstance(publisher, TransactionPublisher) and publisher.tables.carrying(
        connection, [str(job.id)]
    ):
        hint = "a worker has its message already; cancel it"
    else:
        hint = "it has no message any more that could be held: a worker took it, or it was purged"
    raise InvalidTransition.of(job.id, job.state, verb, hint)


def resume(unit: UnitOfWork, job_id: UUID | str) -> Job:
    """Lets a paused job go on: to the broker, to its place in its lane's line, or until its time.
    Raises `InvalidTransition` for others, and for one that awaits approval."""
    publisher = unit.publisher
    job = take(unit, "resume", job_id)
    resumed = transitions.resume(unit.connection, job.id)
    if resumed is None:
        hint = "it waits for approval" if job.awaits_approval else ""
        raise InvalidTransition.of(job.id, job.state, "resumed", hint)
    return finish(unit, "resume", job, *go_on(unit.connection, publisher, resumed))


def approve(unit: UnitOfWork, job_id: UUID | str) -> Job:
    """Lets a job go on that waits for approval. Raises `InvalidTransition` for others."""
    publisher = unit.publisher
    job = take(unit, "approve", job_id)
    approved = transitions.approve(unit.connection, job.id, unit.actor.name)
    if approved is None:
        hint = "it waits for no approval"
        if job.approved_by is not None:
            hint = f"{job.approved_by} has approved it"
        raise InvalidTransition.of(job.id, job.state, "approved", hint)
    return finish(unit, "approve", job, *go_on(unit.connection, publisher, approved))


def go_on(connection: Connection, publisher: Publisher, job: Job) -> tuple[Job, Lanes]:
    """Sends a job that waited where its row says; returns it then, and the lanes to dispatch."""
    failed = []
    if job.dispatched_at is not None:
        failed = lifecycle.publish(connection, publisher, [job])
    elif job.state == "scheduled":
        submissions.announce(connection, job)
    lanes = lifecycle.follow(connection, publisher, failed)
    if failed:
        job = jobs.get(connection, job.id)
    return job, lanes | (lane(job) if waiting.is_waiting(job) else frozenset())


def lane(job: Job) -> Lanes:
    """Returns the job's lane, to be dispatched; none if it is in none."""
    return frozenset() if job.lane is None else frozenset({(job.namespace, job.lane)})


# -- once more


def retry(
    unit: UnitOfWork, job_id: UUID | str, *, job_source: str, priority: int | None = None
) -> Job:
    """Makes a new job that does what one did that failed, was cancelled or was skipped, with all
    its attempts before it. It belongs to whom that one does, and waits for approval where that one
    required it. Where a retry of it waits for its time already, that one comes now.

    Raises `InvalidTransition` for others, and while a retry of it runs; `NotUnique` where another
    job has its unique key; `InvalidJob` where its arguments are not known.
    """
    publisher, connection = unit.publisher, unit.connection
    job = take(unit, "retry", job_id)
    require_task(unit.actor, job.task, of_template=job.template is not None)
    if job.state not in ("failed", "cancelled", "skipped"):
        hint = "" if not job.has_ended else "make a new one of the same task"
        raise InvalidTransition.of(job.id, job.state, "retried", hint or "it has not ended")
    if job.args is None:
        raise InvalidJob.of(
            "", "malformed", f"job {job.id} can't be retried: its arguments were not JSON"
        )
    coming = _coming(connection, job)
    if coming is not None:
        now = _hasten(connection, publisher, job, coming, priority)
        return finish(unit, "retry", job, *go_on(connection, publisher, now))
    if job.unique_key is not None:
        taken = defaults.find_conflicts(connection, job.namespace, {job.unique_key: None})
        if job.unique_key in taken:
            other, state = taken[job.unique_key]
            raise NotUnique(
                f"job {job.id} can't be retried: job {other}, which has the same unique key, "
                f"is {state}"
            )
    made = transitions.again(connection, job.id, job_source=job_source, priority=priority)
    if made is None:
        raise InvalidTransition.of(job.id, jobs.get(connection, job.id).state, "retried")
    return finish(unit, "retry", job, *go_on(connection, publisher, made))


def _coming(connection: Connection, job: Job) -> Job | None:
    """The retry of a job that has not ended, locked."""
    if job.retried_by is None:
        return None
    for other in jobs.find(connection, [job.retried_by]):
        coming = jobs.get(connection, other.id, for_update=True)
        return None if coming.has_ended else coming
    return None


def _hasten(
    connection: Connection, publisher: Publisher, job: Job, coming: Job, priority: int | None
) -> Job:
    """Has the retry that waits for its time come now."""
    verb, hint = "retried", f"its retry, {coming.id}, is {coming.state}"
    if coming.state != "scheduled" or coming.started_at is not None:
        raise InvalidTransition.of(job.id, job.state, verb, hint)
    if coming.dispatched_at is not None and not publisher.withdraw(connection, [str(coming.id)]):
        raise InvalidTransition.of(job.id, job.state, verb, f"{hint}; cancel that first")
    now = transitions.hasten(connection, coming.id, priority=priority)
    if now is None:
        raise InvalidTransition.of(job.id, job.state, verb, hint)
    return now


# -- in its line


def move(
    unit: UnitOfWork,
    job_id: UUID | str,
    where: Where,
    other: UUID | str | None = None,
    *,
    priority: int | None = None,
) -> tuple[Job, int]:
    """Moves a job in its lane's line: to the `front` or the `back` of those of its priority, or
    right `before` or `after` another, whose priority it takes on.

    Returns it with its place, 1 for the next. Raises `InvalidTransition` for one that doesn't wait
    in a line, `InvalidJob` for another that doesn't wait in the same.
    """
    connection = unit.connection
    job = jobs.get(connection, job_id)  # not locked: the lane is locked before its jobs
    require(unit.actor, "move", job)
    if not waiting.is_waiting(job):
        raise InvalidTransition.of(job.id, job.state, "moved", _why_not_in_line(job))
    beside = None
    if where in ("before", "after"):
        beside = _neighbour(connection, job, where, other)
        priority = beside.priority
    level = job.priority if priority is None else priority
    moved = waiting.move(connection, job, where, beside, priority=level)
    if moved is None:
        raise InvalidTransition.of(job.id, jobs.get(connection, job.id).state, "moved")
    place = waiting.place(connection, moved) + 1
    return finish(unit, "move", job, moved, place=place), place


def _neighbour(connection: Connection, job: Job, where: str, other: UUID | str | None) -> Job:
    if other is None:
        raise InvalidJob.of("other", "required", f"{where} which job?")
    beside = jobs.get(connection, other)
    if beside.id == job.id:
        raise InvalidJob.of("other", "conflict", f"job {job.id} can't be moved {where} itself")
    if not waiting.is_waiting(beside) or (beside.namespace, beside.lane) != (
        job.namespace,
        job.lane,
    ):
        raise InvalidJob.of(
            "other", "conflict", f"job {beside.id} doesn't wait in lane {job.lane!r}"
        )
    return beside


def _why_not_in_line(job: Job) -> str:
    if job.lane is None:
        return "it is in no lane"
    if job.blocked_by_group:
        return "those before it in its group go first"
    return "it doesn't wait for its lane" if job.dispatched_at is None else "it has its lane's slot"
