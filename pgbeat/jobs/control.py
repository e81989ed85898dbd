"""Control: what people do with jobs. Each verb is one guarded transition, with the job's message.

Verbs take an open transaction, and what they return says which lanes are to be allotted after its
commit; `act` does both. Who may do what, `pgbeat.jobs.permissions` says.
Lock order: the job, then its group; messages that somebody holds are passed by.
"""

from collections.abc import Callable, Set
from contextlib import suppress
from typing import NamedTuple
from uuid import UUID

import kombu.exceptions
from celery import Celery
from sqlalchemy import Connection

from pgbeat.broker.publishing.publisher import Publisher, TransactionPublisher
from pgbeat.config import Settings
from pgbeat.database import connections
from pgbeat.errors import InvalidJob, InvalidTransition, NotUnique
from pgbeat.jobs import dispatch, lifecycle, orders, transitions
from pgbeat.jobs import model as jobs
from pgbeat.jobs.drafts import Order
from pgbeat.jobs.lanes import waiting
from pgbeat.jobs.lanes.waiting import Where
from pgbeat.jobs.model import Job
from pgbeat.jobs.permissions import Actor, Verb, require, require_task
from pgbeat.jobs.submissions import announce, place

Lanes = Set[tuple[str, str]]


class Change(NamedTuple):
    """What a verb made of a job."""

    job: Job
    #: Namespaces and names of lanes that have room, or something new.
    lanes: Lanes = frozenset()
    #: Of an order: whether the job was made for it.
    is_new: bool = True


def act(
    connection: Connection, publisher: Publisher, what: Callable[[Connection], Change]
) -> Change:
    """Does it in a transaction of its own; then the lanes' free slots are handed out. `connection`
    is in autocommit mode."""
    try:
        with connections.transaction(connection):
            change = what(connection)
    finally:
        publisher.clear()
    allot(connection, publisher, change.lanes)
    return change


def allot(connection: Connection, publisher: Publisher, lanes: Lanes) -> None:
    """Hands out the free slots of lanes. Where the broker is away, beat does it later."""
    with suppress(kombu.exceptions.OperationalError):
        for namespace, lane in lanes:
            dispatch.allot(connection, publisher, namespace, lane)


# -- made


def submit(
    connection: Connection,
    app: Celery,
    settings: Settings,
    publisher: Publisher,
    actor: Actor,
    order: Order,
    *,
    job_source: str,
) -> Change:
    """Makes a job, the actor's, with its message; or finds the one that has its unique key.

    Raises `InvalidJob`, `UnknownTask` and `InvalidSchedule` for what the order has wrong, and
    kombu's `OperationalError` for a broker that is away.
    """
    job, is_new = place(
        connection, app, settings, publisher, order, created_by=actor.name, job_source=job_source,
        actor=actor,
    )  # fmt: skip
    if not is_new:
        return Change(job, is_new=False)
    if job.state == "scheduled":
        announce(connection, job)
    return Change(job, _lane(job) if waiting.is_waiting(job) else frozenset())


def _take(connection: Connection, actor: Actor, verb: Verb, job_id: UUID | str) -> Job:
    """The job, locked, if the actor may."""
    job = jobs.get(connection, job_id, for_update=True)
    require(actor, verb, job)
    return job


# -- ends


def cancel(
    connection: Connection,
    publisher: Publisher,
    actor: Actor,
    job_id: UUID | str,
    *,
    reason: str | None = None,
) -> Change:
    """Ends a job. One that waits ends now, its message taken back. Of one that runs, its worker is
    asked to end it, and says so when it did; again, it is asked again.

    Raises `InvalidTransition` for one that has ended.
    """
    job = _take(connection, actor, "cancel", job_id)
    if job.has_ended:
        raise InvalidTransition(job.id, job.state, "cancelled", _retry_hint(connection, job))
    said = f"cancelled by {actor.name}" + (f": {reason}" if reason else "")
    ended = lifecycle.cancel(connection, publisher, [str(job.id)], by=actor.name, reason=said)
    lanes = lifecycle.follow(connection, publisher, ended)
    return Change(jobs.get(connection, job.id), lanes)


def _retry_hint(connection: Connection, job: Job) -> str:
    """That its retry has not ended, if so."""
    if job.retried_by is None:
        return "it has ended"
    for other in jobs.find(connection, [job.retried_by]):
        if not other.has_ended:
            return f"its retry, {other.id}, is {other.state}"
    return "it has ended"


def delete(connection: Connection, actor: Actor, job_id: UUID | str) -> Job:
    """Deletes a job that has ended, and its executions. Raises `InvalidTransition` for others, and
    while its group runs."""
    job = _take(connection, actor, "delete", job_id)
    if not job.has_ended:
        raise InvalidTransition(job.id, job.state, "deleted", "cancel it first")
    if transitions.is_of_running_group(connection, job):
        hint = f"its group, {job.group_id}, goes by it as long as that runs"
        raise InvalidTransition(job.id, job.state, "deleted", hint)
    transitions.delete(connection, job.id)
    return job


# -- held and let go


def pause(connection: Connection, publisher: Publisher, actor: Actor, job_id: UUID | str) -> Change:
    """Holds a job that has not begun until it is resumed; its place in its lane's line stays, its
    slot doesn't. Raises `InvalidTransition` for others, and once a worker has its message."""
    job = _take(connection, actor, "pause", job_id)
    if job.state not in ("pending", "scheduled"):
        raise InvalidTransition(job.id, job.state, "paused", _PAUSE_HINTS.get(job.state, ""))
    if job.dispatched_at is not None:
        _take_back(connection, publisher, job)
    paused = transitions.pause(connection, job.id)
    if paused is None:
        raise InvalidTransition(job.id, jobs.get(connection, job.id).state, "paused")
    freed = job.lane is not None and job.dispatched_at is not None
    return Change(paused, _lane(paused) if freed else frozenset())


_PAUSE_HINTS = {
    "running": "what runs can only be cancelled",
    "paused": "it waits already until it is resumed, or approved",
}


def _take_back(
    connection: Connection, publisher: Publisher, job: Job, verb: str = "paused"
) -> None:
    """Takes a job's message out of the broker, or raises `InvalidTransition` with why it can't."""
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
    raise InvalidTransition(job.id, job.state, verb, hint)


def resume(
    connection: Connection, publisher: Publisher, actor: Actor, job_id: UUID | str
) -> Change:
    """Lets a paused job go on: to the broker, to its place in its lane's line, or until its time.
    Raises `InvalidTransition` for others, and for one that awaits approval."""
    job = _take(connection, actor, "resume", job_id)
    resumed = transitions.resume(connection, job.id)
    if resumed is None:
        hint = "it waits for approval" if job.awaits_approval else ""
        raise InvalidTransition(job.id, job.state, "resumed", hint)
    return _go_on(connection, publisher, resumed)


def approve(
    connection: Connection, publisher: Publisher, actor: Actor, job_id: UUID | str
) -> Change:
    """Lets a job go on that waits for approval. Raises `InvalidTransition` for others."""
    job = _take(connection, actor, "approve", job_id)
    approved = transitions.approve(connection, job.id, actor.name)
    if approved is None:
        hint = "it waits for no approval"
        if job.approved_by is not None:
            hint = f"{job.approved_by} has approved it"
        raise InvalidTransition(job.id, job.state, "approved", hint)
    return _go_on(connection, publisher, approved)


def _go_on(connection: Connection, publisher: Publisher, job: Job) -> Change:
    """A job that waited goes where its row says."""
    failed = []
    if job.dispatched_at is not None:
        failed = lifecycle.hand_out(connection, publisher, [job])
    elif job.state == "scheduled":
        announce(connection, job)
    lanes = lifecycle.follow(connection, publisher, failed)
    if failed:
        job = jobs.get(connection, job.id)
    return Change(job, lanes | (_lane(job) if waiting.is_waiting(job) else frozenset()))


def _lane(job: Job) -> Lanes:
    return frozenset() if job.lane is None else frozenset({(job.namespace, job.lane)})


# -- once more


def retry(
    connection: Connection,
    publisher: Publisher,
    actor: Actor,
    job_id: UUID | str,
    *,
    job_source: str,
    priority: int | None = None,
) -> Change:
    """Makes a new job that does what one did that failed, was cancelled or was skipped, with all
    its attempts before it. It belongs to whom that one does, and waits for approval where that one
    required it. Where a retry of it waits for its time already, that one comes now.

    Raises `InvalidTransition` for others, and while a retry of it runs; `NotUnique` where another
    job has its unique key; `InvalidJob` where its arguments are not known.
    """
    job = _take(connection, actor, "retry", job_id)
    require_task(actor, job.task, of_template=job.template is not None)
    if job.state not in ("failed", "cancelled", "skipped"):
        hint = "" if not job.has_ended else "make a new one of the same task"
        raise InvalidTransition(job.id, job.state, "retried", hint or "it has not ended")
    if job.args is None:
        raise InvalidJob(f"job {job.id} can't be retried: its arguments were not JSON")
    coming = _coming(connection, job)
    if coming is not None:
        return _hasten(connection, publisher, job, coming, priority)
    if job.unique_key is not None:
        taken = orders.same(connection, job.namespace, {job.unique_key: None})
        if job.unique_key in taken:
            other, state = taken[job.unique_key]
            raise NotUnique(
                f"job {job.id} can't be retried: job {other}, which has the same unique key, "
                f"is {state}"
            )
    made = transitions.again(connection, job.id, job_source=job_source, priority=priority)
    if made is None:
        raise InvalidTransition(job.id, jobs.get(connection, job.id).state, "retried")
    return _go_on(connection, publisher, made)


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
) -> Change:
    """Has the retry that waits for its time come now."""
    verb, hint = "retried", f"its retry, {coming.id}, is {coming.state}"
    if coming.state != "scheduled" or coming.started_at is not None:
        raise InvalidTransition(job.id, job.state, verb, hint)
    if coming.dispatched_at is not None and not publisher.withdraw(connection, [str(coming.id)]):
        raise InvalidTransition(job.id, job.state, verb, f"{hint}; cancel that first")
    now = transitions.hasten(connection, coming.id, priority=priority)
    if now is None:
        raise InvalidTransition(job.id, job.state, verb, hint)
    return _go_on(connection, publisher, now)


# -- in its line


def move(
    connection: Connection,
    actor: Actor,
    job_id: UUID | str,
    where: Where,
    other: UUID | str | None = None,
    *,
    priority: int | None = None,
) -> Job:
    """Moves a job in its lane's line: to the `front` or the `back` of those of its priority, or
    right `before` or `after` another, whose priority it takes on.

    Raises `InvalidTransition` for one that doesn't wait in a line, `InvalidJob` for another that
    doesn't wait in the same.
    """
    job = jobs.get(connection, job_id)
    require(actor, "move", job)
    if not waiting.is_waiting(job):
        raise InvalidTransition(job.id, job.state, "moved", _why_not_in_line(job))
    beside = None
    if where in ("before", "after"):
        beside = _neighbour(connection, job, where, other)
        priority = beside.priority
    level = job.priority if priority is None else priority
    moved = waiting.move(connection, job, where, beside, priority=level)
    if moved is None:
        raise InvalidTransition(job.id, jobs.get(connection, job.id).state, "moved")
    return moved


def _neighbour(connection: Connection, job: Job, where: str, other: UUID | str | None) -> Job:
    if other is None:
        raise InvalidJob(f"{where} which job?")
    beside = jobs.get(connection, other)
    if beside.id == job.id:
        raise InvalidJob(f"job {job.id} can't be moved {where} itself")
    if not waiting.is_waiting(beside) or (beside.namespace, beside.lane) != (
        job.namespace,
        job.lane,
    ):
        raise InvalidJob(f"job {beside.id} doesn't wait in lane {job.lane!r}")
    return beside


def _why_not_in_line(job: Job) -> str:
    if job.lane is None:
        return "it is in no lane"
    if job.blocked_by_group:
        return "those before it in its group go first"
    return "it doesn't wait for its lane" if job.dispatched_at is None else "it has its lane's slot"
