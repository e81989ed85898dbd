"""Submissions: jobs that a person, a program or a group asks for, with their messages."""

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, NamedTuple

from celery import Celery
from kombu.exceptions import OperationalError
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from pgbeat.broker.publishing.message_templates import TaskMessage
from pgbeat.broker.publishing.publisher import Publisher, TransactionPublisher, publisher
from pgbeat.broker.publishing.transaction import Opened, opened
from pgbeat.config import Settings, is_own_broker
from pgbeat.database import channels, connections, identity
from pgbeat.errors import InvalidJob, NotUnique, PgbeatError
from pgbeat.jobs import drafts, orders
from pgbeat.jobs import model as jobs
from pgbeat.jobs.drafts import Draft, Order
from pgbeat.jobs.lanes import waiting
from pgbeat.jobs.model import Job
from pgbeat.jobs.permissions import Actor


class SubmittedJob(NamedTuple):
    """What became of an order."""

    job: Job
    #: False where another job has its unique key: that is the job then.
    is_new: bool


def write(
    connection: Connection, publisher: Publisher, batch: Sequence[Draft]
) -> list[SubmittedJob]:
    """Writes jobs and their messages into the open transaction, in their order. Where an unfinished
    job has a job's unique key, or one of the batch before it, that one is returned instead.

    Raises `InvalidJob` for what Celery can't publish, and kombu's `OperationalError` for a broker
    that is away.
    """
    keys = {d.job.unique_key: d.unique_for for d in batch if d.job.unique_key is not None}
    namespaces = {d.job.namespace for d in batch}
    taken: dict[str, str] = {}
    for namespace in namespaces:
        found = orders.same(connection, namespace, keys)
        taken |= {key: job_id for key, (job_id, _) in found.items()}
    fresh: list[Draft] = []
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


def _create(connection: Connection, publisher: Publisher, batch: Sequence[Draft]) -> list[Job]:
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
    except (PgbeatError, DBAPIError, OperationalError):
        raise
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        raise InvalidJob(f"task {message.task!r} can't be published: {said}") from error


_ANNOUNCE_LANE = text("SELECT pgbeat.announce_lane(:namespace, :lane)")
_WAKE = text(f"SELECT pg_notify('{channels.SCHEDULES}', 'jobs')")


def announce(connection: Connection, job: Job) -> None:
    """Tells the leading beat, once the transaction commits, of a job that waits for it: in a lane,
    or outside of the broker for its time."""
    if job.state == "scheduled" and job.dispatched_at is None:
        connection.execute(_WAKE)
    elif waiting.is_waiting(job):
        connection.execute(_ANNOUNCE_LANE, {"namespace": job.namespace, "lane": job.lane})


#: Where an app has the publishers that nobody uses just now: each knows how its messages look.
_IDLE = "_pgbeat_publishers"


@contextmanager
def publishing(app: Celery, settings: Settings) -> Iterator[Publisher]:
    """The publisher for the app's broker, outside of beat; nobody else uses it meanwhile. All that
    it writes into is to be committed at the end of the block, or the block raises."""
    with ExitStack() as stack:
        acquired: list[Any] = []

        def producer() -> Any:
            if not acquired:
                acquired.append(stack.enter_context(app.producer_or_acquire(None)))
            return acquired[0]

        # What a task publishes is its child, and so unlike what another does.
        if not is_own_broker(app.conf, settings.url) or app.current_worker_task:
            yield publisher(app, settings, producer)
            return
        # Messages say which process they are from.
        broker = repr((os.getpid(), app.conf.broker_url, app.conf.broker_transport_options))
        idle = vars(app).setdefault(_IDLE, {}).setdefault(broker, [])
        try:
            found = idle.pop()
        except IndexError:
            found = publisher(app, settings, producer)
        yield found
        found.clear()
        idle.append(found)


def session(settings: Settings) -> AbstractContextManager[Connection]:
    """A connection to pgbeat's database in autocommit mode."""
    return connections.kept(settings.url, "pgbeat submit")


def place(
    connection: Connection,
    app: Celery,
    settings: Settings,
    publisher: Publisher,
    order: Order,
    *,
    created_by: str,
    job_source: str,
    actor: Actor | None = None,
) -> SubmittedJob:
    """Makes a job, with its message, in the open transaction. Raises as `drafts.of_order` and
    `write`.

    Of one that waits in a lane, `allotment.allot` is to be told after the commit.
    """
    stock = drafts.stock(connection, settings, [order])
    made = drafts.of_order(
        app, stock, order, created_by=created_by, job_source=job_source, actor=actor
    )
    return write(connection, publisher, [made])[0]


def enlist(session: Opened, settings: Settings, broker: Publisher) -> Connection:
    """Returns the connection of a caller's transaction.

    Raises:
        ConfigError: It is in another database than pgbeat's.
        ValueError: It is in autocommit mode.
    """
    connection = opened(session)
    identity.require(connection, [settings.url], whose="pgbeat's")
    if isinstance(broker, TransactionPublisher) and broker.tables not in connection.info:
        broker.tables.require(connection)
        connection.info[broker.tables] = True
    return connection


def after_commit(connection: Connection, made: Draft, broker: Publisher) -> Draft:
    """The same, for beat to hand out after the commit where the broker is elsewhere."""
    if broker.transactional or not made.job.is_dispatched:
        return made
    if made.job.args is None:
        raise InvalidJob("its arguments are not JSON, and it can't wait for the commit without")
    run_at = made.job.run_at or connections.now(connection)
    return made._replace(
        job=made.job._replace(is_dispatched=False, state="scheduled", run_at=run_at)
    )
