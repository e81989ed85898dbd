"""Submits and changes jobs for people and programs, with a function for each verb.

Each takes an open unit of work, makes one guarded transition with the job's message, records it in
the audit log, and dispatches lanes after the commit. `pgbeat.jobs.checks.permissions` says what
each actor may do. Locks are taken on the job, then on its group; locked messages are skipped.
"""

from collections.abc import Set
from typing import Any
from uuid import UUID

from sqlalchemy import Connection

from pgbeat.broker import messages
from pgbeat.broker.publishing.publisher import Publisher, TransactionPublisher
from pgbeat.broker.publishing.unit_of_work import UnitOfWork
from pgbeat.errors import InvalidJob, InvalidTransition, NotFound, NotUnique
from pgbeat.jobs.checks import user_limits
from pgbeat.jobs.checks.permissions import Verb, named, require, require_task, sees
from pgbeat.jobs.flow import depends_on, dispatch, lifecycle
from pgbeat.jobs.groups import model as groups
from pgbeat.jobs.lanes import waiting
from pgbeat.jobs.lanes.model import Room
from pgbeat.jobs.lanes.waiting import Where
from pgbeat.jobs.messages import kept_messages
from pgbeat.jobs.preparing.defaults import JobDefaults
from pgbeat.jobs.preparing.prepare import JobSpec, Preparer
from pgbeat.jobs.rows import ids, unique_keys
from pgbeat.jobs.rows import model as jobs
from pgbeat.jobs.rows.model import Job
from pgbeat.jobs.rows.unique_keys import UniqueKey
from pgbeat.jobs.running import stacks, steps
from pgbeat.jobs.states import retries, transitions
from pgbeat.jobs.writing import submissions
from pgbeat.jobs.writing.submissions import SubmittedJob

Lanes = Set[Room]


def finish(
    unit: UnitOfWork,
    verb: str,
    before: Job | None,
    after: Job,
    lanes: Lanes = frozenset(),
    **more: Any,
) -> Job:
    """Records a change and dispatches lanes after the commit. Returns the job `after` it."""
    unit.record(verb, before, after, **more)
    dispatch.after_commit(unit, lanes)
    return after


def submit(unit: UnitOfWork, spec: JobSpec, *, job_source: str) -> SubmittedJob:
    """Makes a job of the actor's, or finds the one that has its unique key.

    Raises as `Preparer.prepare`, and `BrokerUnavailable`.
    """
    defaults = JobDefaults(unit.connection, unit.settings, [spec.policy])
    prepared = Preparer(unit.require_app(), defaults, unit.actor, job_source).prepare(spec)
    parents = depends_on.existing(unit, spec)
    [new] = submissions.write(unit, [depends_on.blocked(prepared, spec, parents)])
    if new.is_new:
        unit.record("create", None, new.job)
    return new


def lock(unit: UnitOfWork, verb: Verb, job_id: UUID | str) -> Job:
    """Locks a job, and returns it.

    Raises `NotFound`, and `Forbidden` unless the actor may do what the verb says.
    """
    job = jobs.get(unit.connection, job_id, for_update=True)
    require(unit.actor, verb, job)
    return job


def cancel(unit: UnitOfWork, job_id: UUID | str, *, reason: str | None = None) -> Job:
    """Cancels a job that has not ended.

    A job that waits ends now. If it runs, each call asks its worker to end it. Raises
    `InvalidTransition`.
    """
    publisher, connection, by = unit.publisher, unit.connection, unit.actor.name
    job = lock(unit, "cancel", job_id)
    if job.has_ended:
        raise InvalidTransition.of(job.id, job.state, "cancelled", _retry_hint(connection, job))
    ending = f"cancelled by {by}" + (f": {reason}" if reason else "")
    ended = lifecycle.cancel(connection, publisher, [str(job.id)], by=by, reason=ending)
    if not ended and job.state != "running":
        hint = "its task has succeeded, which its worker is about to record"
        raise InvalidTransition.of(job.id, job.state, "cancelled", hint)
    lanes = lifecycle.follow(connection, publisher, ended)
    return finish(unit, "cancel", job, jobs.get(connection, job.id), lanes)


def _retry_hint(connection: Connection, job: Job) -> str:
    for other in jobs.find(connection, [job.retried_by] if job.retried_by else []):
        if not other.has_ended:
            return f"its retry, {other.id}, is {other.state}"
    return "it has ended"


def delete(unit: UnitOfWork, job_id: UUID | str) -> Job:
    """Deletes a job that has ended, and its executions.

    Raises `InvalidTransition`, also while the job's group runs, which needs it.
    """
    job = lock(unit, "delete", job_id)
    if not job.has_ended:
        raise InvalidTransition.of(job.id, job.state, "deleted", "cancel it first")
    if job.group_id is not None and groups.is_running(unit.connection, job.group_id):
        hint = f"its group, {job.group_id}, needs it while it runs"
        raise InvalidTransition.of(job.id, job.state, "deleted", hint)
    transitions.delete(unit.connection, job.id)
    stacks.delete(unit.connection, job.id)
    steps.delete(unit.connection, job.id)
    unit.record("delete", job, None)
    return job


def pause(unit: UnitOfWork, job_id: UUID | str) -> Job:
    """Pauses a job that has not begun. It keeps its place in its lane's line, but not its slot.

    Raises `InvalidTransition`, also if a worker has the job's message.
    """
    publisher, connection = unit.publisher, unit.connection
    job = lock(unit, "pause", job_id)
    if job.state not in ("pending", "scheduled"):
        raise InvalidTransition.of(job.id, job.state, "paused", _PAUSE_HINTS.get(job.state, ""))
    paused = transitions.pause(connection, job.id, withdraw(connection, publisher, job, "paused"))
    if paused is None:
        raise InvalidTransition.of(job.id, jobs.get(connection, job.id).state, "paused")
    return finish(unit, "pause", job, paused, freed_lane(job))


_PAUSE_HINTS = {
    "running": "a running job can only be cancelled",
    "paused": "it already waits for `resume` or an approval",
}


def withdraw(
    connection: Connection, publisher: Publisher, job: Job, verb: str
) -> dict[str, Any] | None:
    """Takes the job's message back from the broker, and returns it for the job to keep.

    Returns `None` if it was not sent. Raises `InvalidTransition` with the reason.
    """
    if job.dispatched_at is None:
        return None
    if not publisher.transactional:
        hint = "its message is with the broker, and only a worker can take it there; cancel the job"
    elif withdrawn := publisher.withdraw(connection, [str(job.id)]):
        return kept_messages.of_withdrawn(withdrawn[str(job.id)])
    elif isinstance(publisher, TransactionPublisher) and messages.carrying(
        connection, [str(job.id)]
    ):
        hint = "a worker has its message already; cancel it"
    else:
        hint = "its message is gone: a worker took it, or it was purged"
    raise InvalidTransition.of(job.id, job.state, verb, hint)


def resume(unit: UnitOfWork, job_id: UUID | str) -> Job:
    """Resumes a paused job.

    It goes to the broker, to its place in its lane's line, or waits for its time. Raises
    `InvalidTransition`, also if the job awaits approval.
    """
    publisher = unit.publisher
    job = lock(unit, "resume", job_id)
    resumed = transitions.resume(unit.connection, job.id)
    if resumed is None:
        hint = "it waits for approval" if job.awaits_approval else ""
        raise InvalidTransition.of(job.id, job.state, "resumed", hint)
    return finish(unit, "resume", job, *proceed(unit.connection, publisher, resumed))


def approve(unit: UnitOfWork, job_id: UUID | str) -> Job:
    """Approves a job that awaits approval, which then continues as after `resume`.

    Raises `InvalidTransition`.
    """
    publisher = unit.publisher
    job = lock(unit, "approve", job_id)
    approved = transitions.approve(unit.connection, job.id, unit.actor.name)
    if approved is None:
        hint = "it waits for no approval"
        if job.approved_by is not None:
            hint = f"{job.approved_by} has approved it"
        raise InvalidTransition.of(job.id, job.state, "approved", hint)
    return finish(unit, "approve", job, *proceed(unit.connection, publisher, approved))


def proceed(connection: Connection, publisher: Publisher, job: Job) -> tuple[Job, Lanes]:
    """Publishes a job that its row says is dispatched, or notifies beat if it waits for its time.

    Returns the job after that, and the lanes to dispatch.
    """
    failed = []
    if job.dispatched_at is not None:
        failed = lifecycle.publish(connection, publisher, [job])
    else:
        submissions.announce(connection, [job])
    lanes = lifecycle.follow(connection, publisher, failed)
    if failed:
        job = jobs.get(connection, job.id)
    if waiting.is_waiting(job):
        lanes.add(Room(job.namespace, str(job.lane), job.id))
    return job, lanes


def freed_lane(job: Job) -> Lanes:
    """Returns the lane in which the job had a slot, for `finish`."""
    if job.lane is None or job.dispatched_at is None:
        return frozenset()
    return {Room(job.namespace, job.lane, job.id)}


def retry(
    unit: UnitOfWork,
    job_id: UUID | str,
    *,
    job_source: str,
    priority: int | None = None,
    from_step: str | None = None,
) -> Job:
    """Retries a job that failed, was cancelled or was skipped, and returns the new job.

    It has the same owner and all attempts ahead of it, and needs a new approval if the job needed
    one. It waits for attempts of the job's parents that have not ended. A retry that waits for its
    time is used instead: its time is now, and if it is approved, it has the attempts that are left.
    It continues after the last step that is recorded; with `from_step`, that one and later ones are
    forgotten.

    Raises `InvalidTransition`, also while another attempt of its chain runs or waits, or the group
    that it waited for goes on; `NotUnique` if another job has its unique key; `InvalidJob` if its
    arguments or the step are not known.
    """
    publisher, connection = unit.publisher, unit.connection
    retries.lock_chain(connection, ids.parse(job_id, "job"))
    job = lock(unit, "retry", job_id)
    require_task(unit.actor, job.task, of_template=job.template is not None)
    if priority is not None:
        user_limits.require_changes(unit.actor, unit.app, job, ("priority",))
    _require_retryable(job)
    coming = _lock_coming(connection, job)
    forgotten: dict[str, Any] = {}
    if from_step is not None:
        forgotten["forgotten_steps"] = steps.forget(connection, job, from_step)
    if coming is not None:
        now = _hasten(connection, publisher, job, coming, priority)
        return finish(unit, "retry", job, *proceed(connection, publisher, now), **forgotten)
    if job.unique_key is not None:
        key = UniqueKey(job.task, job.unique_key)
        taken = unique_keys.lock_and_find(connection, job.namespace, {key: None})
        if key in taken:
            other = named(unit.actor, jobs.get(connection, taken[key][0]))
            raise NotUnique(f"job {job.id} can't be retried: {other} has the same unique key")
    new = retries.insert_by_hand(connection, job.id, job_source=job_source, priority=priority)
    if new is None:
        raise InvalidTransition.of(job.id, jobs.get(connection, job.id).state, "retried")
    if new.unfinished_parents:
        submissions.settle_after_commit(unit, [new.id])
    return finish(unit, "retry", job, *proceed(connection, publisher, new), **forgotten)


def _require_retryable(job: Job) -> None:
    """Raises `InvalidTransition`, or `InvalidJob` if its message could not be read."""
    if job.state not in ("failed", "cancelled", "skipped"):
        hint = "make a new job of the same task" if job.has_ended else "it has not ended"
        raise InvalidTransition.of(job.id, job.state, "retried", hint)
    if not isinstance(job.args, list) or not isinstance(job.kwargs or {}, dict):
        message = f"job {job.id} can't be retried: its arguments were not JSON of a call"
        raise InvalidJob.of("", "malformed", message)


def _lock_coming(connection: Connection, job: Job) -> Job | None:
    """Locks the retry of a job's chain that waits for its time, and returns it.

    Raises `InvalidTransition` if another attempt, or the group that it waited for, has not ended.
    """
    if retries.waits(connection, job.id):
        hint = "what it waits for has not ended"
        raise InvalidTransition.of(job.id, job.state, "retried", hint)
    coming = None
    for job_id in retries.unfinished(connection, job.id):
        coming = jobs.get(connection, job_id, for_update=True)
        if coming.has_ended:  # just now: it may have a retry
            return _lock_coming(connection, job)
        if coming.state != "scheduled" or coming.started_at is not None:
            raise InvalidTransition.of(job.id, job.state, "retried", _of_other(coming))
    return coming


def _of_other(attempt: Job) -> str:
    return f"another attempt, {attempt.id}, is {attempt.state}"


def _hasten(
    connection: Connection, publisher: Publisher, job: Job, coming: Job, priority: int | None
) -> Job:
    verb, hint = "retried", _of_other(coming)
    if coming.dispatched_at is not None and not publisher.withdraw(connection, [str(coming.id)]):
        raise InvalidTransition.of(job.id, job.state, verb, f"{hint}; cancel that first")
    now = transitions.hasten(connection, coming.id, priority=priority)
    if now is None:
        raise InvalidTransition.of(job.id, job.state, verb, hint)
    return now


def move(
    unit: UnitOfWork,
    job_id: UUID | str,
    where: Where,
    other: UUID | str | None = None,
    *,
    priority: int | None = None,
) -> tuple[Job, int]:
    """Moves a job in its lane's line.

    It goes to the `front` or the `back` of the jobs with its priority, or right `before` or `after`
    another, whose priority it gets. Returns the job and its place, 1 for the next.

    Raises `InvalidTransition` if it is in no line, and `InvalidJob` if the other is not in the
    same line.
    """
    connection = unit.connection
    job = jobs.get(connection, job_id)  # not locked: the lane is locked before its jobs
    require(unit.actor, "move", job)
    if not waiting.is_waiting(job):
        raise InvalidTransition.of(job.id, job.state, "moved", _why_not_in_line(job))
    if priority is not None:
        user_limits.require_changes(unit.actor, unit.app, job, ("priority",))
    beside = None
    if where in ("before", "after"):
        if priority is not None:
            message = "priority: next to another job, it takes that job's priority"
            raise InvalidJob.of("priority", "conflict", message)
        beside = _neighbour(unit, job, where, other)
        priority = beside.priority
        if priority != job.priority:
            user_limits.require_changes(unit.actor, unit.app, job, ("priority",))
    elif other is not None:
        raise InvalidJob.of("other", "conflict", f"{where} takes no other job")
    level = job.priority if priority is None else priority
    moved = waiting.move(connection, job, where, beside, priority=level)
    if moved is None:
        raise InvalidTransition.of(job.id, jobs.get(connection, job.id).state, "moved")
    place = waiting.place(connection, moved) + 1
    return finish(unit, "move", job, moved, place=place), place


def _neighbour(unit: UnitOfWork, job: Job, where: str, other: UUID | str | None) -> Job:
    if other is None:
        raise InvalidJob.of("other", "required", f"{where} which job?")
    beside = jobs.get(unit.connection, other, namespace=job.namespace)
    if not sees(unit.actor, beside):
        raise NotFound(f"there is no job {beside.id}")
    if beside.id == job.id:
        raise InvalidJob.of("other", "conflict", f"job {job.id} can't be moved {where} itself")
    if not waiting.is_waiting(beside) or beside.lane != job.lane:
        raise InvalidJob.of(
            "other", "conflict", f"job {beside.id} doesn't wait in lane {job.lane!r}"
        )
    return beside


def _why_not_in_line(job: Job) -> str:
    if job.lane is None:
        return "it is in no lane"
    if job.unfinished_parents:
        return "it waits for jobs that it depends on"
    if job.is_blocked:
        return "it waits for its group"
    return "it doesn't wait for its lane" if job.dispatched_at is None else "it has its lane's slot"
