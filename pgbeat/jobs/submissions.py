"""Submissions: jobs that a person, a program or a group asks for, with their messages."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from celery import Celery
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from pgbeat.access.actors import Actor
from pgbeat.broker.publishing.message_templates import TaskMessage
from pgbeat.broker.publishing.publisher import Publisher
from pgbeat.broker.publishing.transaction import Opened, opened
from pgbeat.broker.publishing.unit_of_work import UnitOfWork
from pgbeat.config import Settings
from pgbeat.database import channels, connections, identity
from pgbeat.errors import InvalidJob, NotUnique, PgbeatError
from pgbeat.jobs import defaults, dispatch, prepare
from pgbeat.jobs import model as jobs
from pgbeat.jobs.lanes import waiting
from pgbeat.jobs.model import Job
from pgbeat.jobs.prepare import JobSpec, PreparedJob


class SubmittedJob(NamedTuple):
    """What became of a job spec."""

    job: Job
    #: False where another job has its unique key: that is the job then.
    is_new: bool


def write(unit: UnitOfWork, batch: Sequence[PreparedJob]) -> list[SubmittedJob]:
    """Writes jobs and their messages, in their order. Where an unfinished job has a job's unique
    key, or one of the batch before it, that one is returned instead.

    Raises `InvalidJob` for what Celery can't publish, and `BrokerUnavailable` if the broker
    is unreachable.
    """
    connection, publisher = unit.connection, unit.publisher
    if unit.is_callers and not publisher.transactional:
        batch = [_deferred(connection, each) for each in batch]
    keys = prepare.unique_keys(batch)
    namespaces = {d.job.namespace for d in batch}
    taken: dict[str, str] = {}
    for namespace in namespaces:
        found = defaults.find_conflicts(connection, namespace, keys)
        taken |= {key: job_id for key, (job_id, _) in found.items()}
    fresh: list[PreparedJob] = []
    for each in batch:
        if each.job.unique_key not in taken:
            fresh.append(each)
            if each.job.unique_key is not None:
                taken[each.job.unique_key] = each.job.id
    try:
        made = _create(connection, publisher, fresh)
    finally:
        publisher.clear()
    ids = [taken.get(d.job.unique_key or "", d.job.id) for d in batch]
    rows = {str(job.id): job for job in made}
    rows |= {str(job.id): job for job in jobs.find(connection, set(ids) - rows.keys())}
    if not rows.keys() >= set(ids):
        raise NotUnique("a job with the same unique key was made at this moment; try again")
    return [
        SubmittedJob(rows[job_id], job_id == d.job.id) for job_id, d in zip(ids, batch, strict=True)
    ]


def _create(
    connection: Connection, publisher: Publisher, batch: Sequence[PreparedJob]
) -> list[Job]:
    handed = [d for d in batch if d.job.is_dispatched]
    queues: dict[str, str | None] = {}
    if publisher.transactional:
        queues = {d.job.id: _publish(publisher, d.message) for d in handed}
    made = jobs.make(
        connection, [d.job._replace(queue=d.job.queue or queues.get(d.job.id)) for d in batch]
    )
    if not publisher.transactional:
        for each in handed:
            _publish(publisher, each.message)
    publisher.flush(connection, [d.job.id for d in handed])
    return made


def _publish(publisher: Publisher, message: TaskMessage) -> str | None:
    try:
        return publisher.publish(message)
    except (PgbeatError, DBAPIError):
        raise
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        raise InvalidJob(f"task {message.task!r} can't be published: {said}") from error


_WAKE = text(f"SELECT pg_notify('{channels.SCHEDULES}', 'jobs')")


def announce(connection: Connection, job: Job) -> None:
    """Notifies the leading beat, once the transaction commits, of a job that waits for its time
    outside of the broker."""
    if job.state == "scheduled" and job.dispatched_at is None:
        connection.execute(_WAKE)


def follow(unit: UnitOfWork, made: Sequence[Job]) -> None:
    """Has new jobs that wait, for their time or in a lane, dispatched once they are committed."""
    for job in made:
        announce(unit.connection, job)
    in_lanes = {(job.namespace, str(job.lane)) for job in made if waiting.is_waiting(job)}
    dispatch.after_commit(unit, in_lanes)


@contextmanager
def opened_unit(
    app: Celery, settings: Settings, actor: Actor, session: Opened | None = None
) -> Iterator[UnitOfWork]:
    """Opens a unit of work for a program, in the transaction of its `session` if it gives one.

    Raises:
        ConfigError: The session is in another database than pgbeat's.
        ValueError: It is in autocommit mode.
    """
    if session is None:
        with connections.kept(settings.url, "pgbeat submit") as connection:
            yield UnitOfWork(connection, settings, actor, app=lambda: app)
        return
    connection = opened(session)
    identity.require(connection, [settings.url], whose="pgbeat's")
    yield UnitOfWork(connection, settings, actor, app=lambda: app, is_callers=True)


def place(unit: UnitOfWork, order: JobSpec, *, job_source: str) -> SubmittedJob:
    """Makes a job, the actor's, with its message. Raises as `prepare.prepare` and `write`.

    `follow` must be called for it if it is new.
    """
    app = unit.require_app()
    stock = prepare.job_defaults(unit.connection, unit.settings, [order])
    made = prepare.prepare(
        app, stock, order, created_by=unit.actor.name, job_source=job_source, actor=unit.actor
    )
    return write(unit, [made])[0]


def _deferred(connection: Connection, made: PreparedJob) -> PreparedJob:
    """Returns the job for beat to dispatch after the commit, since the broker is elsewhere."""
    if not made.job.is_dispatched:
        return made
    if made.job.args is None:
        raise InvalidJob("its arguments are not JSON, and it can't wait for the commit without")
    run_at = made.job.run_at or connections.now(connection)
    return made._replace(
        job=made.job._replace(is_dispatched=False, state="scheduled", run_at=run_at)
    )
