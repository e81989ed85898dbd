"""Writes the jobs that people, programs and groups submit, with their messages."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple
from uuid import UUID

from celery import Celery
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from pgbeat.access.actors import Actor
from pgbeat.broker.publishing.message_templates import TaskMessage
from pgbeat.broker.publishing.publisher import Publisher
from pgbeat.broker.publishing.transaction import Opened, opened
from pgbeat.broker.publishing.unit_of_work import UnitOfWork
from pgbeat.broker.transport import transaction_blocks
from pgbeat.config import Settings
from pgbeat.database import channels, connections, identity
from pgbeat.database.kept import kept
from pgbeat.errors import CannotPublish, ConfigError, InvalidJob, NotUnique, PgbeatError
from pgbeat.jobs.flow import dependencies, dispatch, lifecycle
from pgbeat.jobs.lanes import waiting
from pgbeat.jobs.lanes.model import Room
from pgbeat.jobs.messages import canvas
from pgbeat.jobs.policy.batches import BATCH
from pgbeat.jobs.preparing import prepare
from pgbeat.jobs.preparing.prepare import PreparedJob
from pgbeat.jobs.rows import model as jobs
from pgbeat.jobs.rows import new_jobs, unique_keys
from pgbeat.jobs.rows.model import Job
from pgbeat.jobs.rows.unique_keys import UniqueKey


class SubmittedJob(NamedTuple):
    """The job of a submission."""

    job: Job
    #: False if it existed before, with the same unique key.
    is_new: bool


def write(unit: UnitOfWork, batch: Sequence[PreparedJob]) -> list[SubmittedJob]:
    """Writes jobs and their messages, and returns the jobs in the same order.

    If an unfinished job, or an earlier one of the batch, has the unique key of a job, it is
    returned instead. The lanes of new jobs are dispatched after the commit.

    Raises `InvalidJob` if Celery can't publish a message, and `BrokerUnavailable`.
    """
    ids, fresh = _claim_keys(unit, batch)
    with _messages(unit, fresh) as rows:
        written = {job.id: job for job in new_jobs.insert_returning(unit.connection, rows)}
    if settled := _settle(unit, fresh):
        written |= {job.id: job for job in jobs.find(unit.connection, settled)}
    if others := set(ids) - written.keys():
        rows = jobs.find(unit.connection, others, as_owner=unit.submits_as_owner)
        written |= {job.id: job for job in rows}
    if not written.keys() >= set(ids):
        raise _too_late()
    return [
        SubmittedJob(written[job_id], job_id == new.job.id)
        for job_id, new in zip(ids, batch, strict=True)
    ]


def write_many(unit: UnitOfWork, batch: Sequence[PreparedJob]) -> list[str]:
    """Writes jobs as `write` does, and returns their ids only: reading rows takes as long again."""
    ids, fresh = _claim_keys(unit, batch)
    with _messages(unit, fresh) as rows:
        if new_jobs.insert(unit.connection, rows) < len(rows):
            raise _too_late()
    _settle(unit, fresh)
    return [str(job_id) for job_id in ids]


@contextmanager
def transaction(unit: UnitOfWork) -> Iterator[list[str]]:
    """Opens the unit's transaction; the block adds the ids of the jobs that it makes, at its end.

    If the answer to the commit is lost, it raises only if the jobs are not there.
    """
    ids: list[str] = []
    try:
        with unit.transaction():
            yield ids
    except DBAPIError as error:
        if unit.is_callers or not ids or not connections.is_lost(error):
            raise
        unit.connection.rollback()
        if unit.connection.scalar(_COUNT, {"ids": ids}) < len(set(ids)):
            raise


_COUNT = text("SELECT count(*) FROM pgbeat.jobs WHERE id = ANY (CAST(:ids AS uuid[]))")


def _too_late() -> NotUnique:
    return NotUnique("a job with the same unique key was made at this moment; try again")


def _claim_keys(
    unit: UnitOfWork, batch: Sequence[PreparedJob]
) -> tuple[list[UUID], list[PreparedJob]]:
    """Locks unique keys; returns the id of the job that each stands for, and those that are new."""
    if unit.is_callers and not unit.publisher.transactional:
        batch = [_deferred(unit.connection, new) for new in batch]
    keys = prepare.unique_keys(batch)
    taken = unique_keys.lock_and_find(
        unit.connection, unit.namespace, keys, as_owner=bool(keys) and unit.submits_as_owner
    )
    owners: dict[UniqueKey | None, UUID] = {key: UUID(job_id) for key, (job_id, _) in taken.items()}
    for new in batch:
        if new.job.key is not None:
            owners.setdefault(new.job.key, new.job.id)
    ids = [owners.get(new.job.key, new.job.id) for new in batch]
    return ids, [new for job_id, new in zip(ids, batch, strict=True) if job_id == new.job.id]


@contextmanager
def _messages(unit: UnitOfWork, batch: Sequence[PreparedJob]) -> Iterator[list[Job]]:
    """Publishes the messages of jobs around the block that inserts the rows that it yields.

    Then has beat notified of jobs for which it must wait, and lanes dispatched after the commit.
    """
    publisher, sender = unit.publisher, canvas.within_task()
    dispatched = [new for new in batch if new.job.is_dispatched]
    queues: dict[UUID, str | None] = {}
    try:
        if publisher.transactional:
            queues = {new.job.id: _publish(publisher, new.message) for new in dispatched}
        rows = [
            new.job._replace(queue=queues[new.job.id])
            if new.job.queue is None and queues.get(new.job.id) is not None
            else new.job
            for new in batch
        ]
        if sender.parent_id is not None:
            rows = [sender.of(row) for row in rows]
        yield rows
        if not publisher.transactional:
            for new in dispatched:
                _publish(publisher, new.message)
        publisher.flush(unit.connection, [new.message.job_id for new in dispatched])
    finally:
        publisher.clear()
    announce(unit.connection, rows)
    dispatch.after_commit(
        unit,
        {
            Room(row.namespace, row.lane, row.id)
            for row in rows
            if row.lane and waiting.is_waiting(row)
        },
    )


def _settle(unit: UnitOfWork, batch: Sequence[PreparedJob]) -> list[UUID]:
    """Writes what new jobs depend on, and unblocks or skips those whose parents have ended.

    Returns the jobs that this may have changed. Looks again after the commit: a parent may have
    ended meanwhile. For a role that may not change jobs, the leading beat does that.
    """
    as_owner = any(new.parents for new in batch) and unit.submits_as_owner
    parents = dependencies.insert(unit.connection, batch, as_owner=as_owner)
    if as_owner or not parents - {new.job.id for new in batch}:
        return []
    waiting_jobs = [new.job.id for new in batch if new.parents]
    lanes = _follow_parents(unit, waiting_jobs)
    if lanes is not None:
        dispatch.after_commit(unit, lanes)
    settle_after_commit(unit, waiting_jobs)
    return [] if lanes is None else waiting_jobs


def settle_after_commit(unit: UnitOfWork, job_ids: Collection[UUID]) -> None:
    """Unblocks or skips new jobs after the commit, if parents of theirs have ended meanwhile.

    In a caller's transaction, the leading beat does that.
    """
    if not unit.is_callers:
        unit.after_commit(partial(_settle_again, unit, job_ids))


def _follow_parents(unit: UnitOfWork, job_ids: Collection[UUID]) -> set[Room] | None:
    """Unblocks or skips new jobs whose parents have ended; returns lanes, `None` if none has.

    Locks no other jobs: the transaction may be the caller's, and stay open.
    """
    ended = dependencies.ended_parents(unit.connection, job_ids)
    if not ended:
        return None
    return lifecycle.follow(unit.connection, unit.publisher, [], parents=ended, dependents=job_ids)


def _settle_again(unit: UnitOfWork, job_ids: Collection[UUID]) -> None:
    with connections.transaction(unit.connection):
        rooms = _follow_parents(unit, job_ids)
    dispatch.dispatch_lanes(unit.connection, unit.publisher, rooms or ())


def _deferred(connection: Connection, new: PreparedJob) -> PreparedJob:
    """Returns the job for beat to dispatch after the commit, because the broker is elsewhere."""
    if not new.job.is_dispatched:
        return new
    if new.job.args is None:
        raise InvalidJob("its arguments are not JSON, and it can't wait for the commit without")
    run_at = new.job.run_at or connections.now(connection)
    job = new.job._replace(dispatched_at=None, state="scheduled", run_at=run_at)
    return new._replace(job=job)


def _publish(publisher: Publisher, message: TaskMessage) -> str | None:
    try:
        return publisher.publish(message)
    except ConfigError as error:
        raise CannotPublish(error.problems, subject=error.subject) from error
    except (PgbeatError, DBAPIError):
        raise
    except Exception as error:
        cause = f"{type(error).__name__}: {error}"
        raise InvalidJob(f"task {message.task!r} can't be published: {cause}") from error


_NOTIFY = text("SELECT pg_notify(:channel, 'jobs')").bindparams(channel=channels.SCHEDULES)


def announce(connection: Connection, batch: Iterable[Job]) -> None:
    """Notifies the leading beat, after the commit, if it must dispatch a job."""
    waiting = (job for job in batch if not job.is_dispatched)
    if any(job.state == "scheduled" or BATCH in (job.message or ()) for job in waiting):
        connection.execute(_NOTIFY)


@contextmanager
def opened_unit(
    app: Celery,
    settings: Settings,
    actor: Actor,
    session: Opened | None = None,
    *,
    joins: bool = True,
) -> Iterator[UnitOfWork]:
    """Opens a unit of work for a program, in the transaction of its `session` if it gives one.

    Without one it joins the transaction that a framework has open in pgbeat's database, if any.

    Raises:
        ConfigError: The session is in another database than pgbeat's.
        ValueError: The session is in autocommit mode.
    """
    if session is None:
        for framework in transaction_blocks.open_transactions() if joins else ():
            callers = framework.connection()
            if identity.is_one_of(callers, [settings.url]):
                with framework.savepoint(), connections.readable(callers):
                    yield UnitOfWork(callers, settings, actor, app=lambda: app, is_callers=True)
                return
        with kept(settings.url, "pgbeat submit") as connection:
            yield UnitOfWork(connection, settings, actor, app=lambda: app)
        return
    connection = opened(session)
    identity.require(connection, [settings.url], whose="pgbeat's")
    with connections.readable(connection):
        yield UnitOfWork(connection, settings, actor, app=lambda: app, is_callers=True)
