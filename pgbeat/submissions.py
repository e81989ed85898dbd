"""Submissions: jobs that a person, a program or a group asks for, with their messages."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import uuid4

from celery import Celery
from kombu.utils import json as kombu_json
from sqlalchemy import Connection, text
from sqlalchemy.orm import Session

from pgbeat import db, jobs, lines, orders
from pgbeat.config import Settings, is_own_broker
from pgbeat.dispatch import check_task
from pgbeat.errors import InvalidJob, NotUnique
from pgbeat.job_policies import JobPolicy
from pgbeat.jobs import Job, NewJob, State
from pgbeat.message_templates import Launch
from pgbeat.orders import Stock
from pgbeat.publisher import Publisher, TransactionPublisher, check_options, publisher
from pgbeat.registry import check_arguments
from pgbeat.schedules import CHANNEL


class Order(NamedTuple):
    """What is to be done once, by a task or as a template has it."""

    #: Its registered name; `None`: the template's.
    task: str | None = None
    #: `None`: the template's.
    args: Sequence[Any] | None = None
    #: Beside the template's, and before them.
    kwargs: Mapping[str, Any] = {}
    policy: JobPolicy = JobPolicy()
    queue: str | None = None
    #: Celery's publish options.
    options: Mapping[str, Any] = {}
    #: Not before; aware.
    run_at: datetime | None = None
    #: Not before so much from now.
    countdown: timedelta | None = None


class Draft(NamedTuple):
    """A job that is to be written, and its message."""

    job: NewJob
    launch: Launch
    unique_for: timedelta | None = None


class Submitted(NamedTuple):
    """What became of an order."""

    job: Job
    #: False where another job has its unique key: that is the job then.
    is_new: bool


def stock(connection: Connection, settings: Settings, batch: Sequence[Order]) -> Stock:
    """The templates and lanes that orders name."""
    return Stock(connection, settings, [order.policy for order in batch])


def draft(
    app: Celery,
    stock: Stock,
    order: Order,
    *,
    created_by: str,
    job_source: str,
    is_system_job: bool = False,
) -> Draft:
    """The job of an order, which nothing is written for yet.

    Raises `InvalidJob`, `UnknownTask` and `InvalidSchedule` for what it has wrong: a task that the
    app hasn't registered, arguments that it doesn't take, a template or a lane that isn't there.
    """
    name, args, kwargs = order.task, order.args, dict(order.kwargs)
    options, queue = dict(order.options), order.queue
    policy = stock.policy(order.policy)
    if policy.template is not None:
        template = stock.template(policy.template)
        if name not in (None, template.task):
            raise InvalidJob(
                f"template {template.name!r} is of task {template.task!r}, not {name!r}"
            )
        name = template.task
        args = template.args if args is None else args
        kwargs = template.kwargs | kwargs
        options, queue = {**template.options, **options}, queue or template.queue
    if name is None:
        raise InvalidJob("a job of which task? Name a task or a template")
    args = () if args is None else args
    check_task(app, name)
    check_options(options)
    if "eta" in options or "countdown" in options:
        raise InvalidJob("options has a time for it; give run_at or countdown instead")
    check_arguments(app, name, args, kwargs)
    run_at = _run_at(order, stock)
    serializer = _serializer(app, name, options)
    state: State = "pending" if run_at is None else "scheduled"
    job = stock.apply(
        NewJob(
            id=str(uuid4()),
            namespace=stock.settings.namespace,
            task=name,
            args=_plain(list(args), serializer),
            kwargs=_plain(kwargs, serializer),
            job_source=job_source,
            created_by=created_by,
            is_system_job=is_system_job,
            state=state,
            run_at=run_at,
            queue=queue,
            options=_plain({**options}, serializer) or None,
        ),
        policy,
    )
    if queue is not None:
        options["queue"] = queue
    if job.priority:
        options.setdefault("priority", job.priority)
    if run_at is not None:
        options["eta"] = run_at
    return Draft(job, Launch(job.id, name, args, kwargs, options), policy.unique_for)


def _run_at(order: Order, stock: Stock) -> datetime | None:
    if order.countdown is not None:
        if order.run_at is not None:
            raise InvalidJob("run_at and countdown exclude each other")
        try:
            run_at = stock.now + order.countdown
        except OverflowError:
            raise InvalidJob("countdown: there is no such time any more") from None
    elif order.run_at is None:
        return None
    elif order.run_at.tzinfo is None:
        raise InvalidJob(f"run_at is {order.run_at.isoformat()}, without a time zone; give it one")
    else:
        run_at = order.run_at
    return run_at if run_at > stock.now else None


def _serializer(app: Celery, task: str, options: Mapping[str, Any]) -> str:
    own = options.get("serializer") or app.tasks[task].serializer
    return str(own or app.conf.task_serializer)


def _plain(value: Any, serializer: str) -> Any:
    """The value as JSON has it; `None` if it can't. What kombu's JSON knows beyond JSON, times for
    one, is as kombu writes it: in a message, it is that again."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        if serializer != "json":
            return None
        try:
            found = json.loads(kombu_json.dumps(value))
            json.dumps(found, allow_nan=False)
        except (TypeError, ValueError):
            return None
        return found
    return value


def write(connection: Connection, publisher: Publisher, batch: Sequence[Draft]) -> list[Submitted]:
    """Writes jobs and their messages into the open transaction, in their order. Where an unfinished
    job has a job's unique key, or one of the batch before it, that one is returned instead.

    Raises what Celery raises for what can't be published.
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
        Submitted(rows[job_id], job_id == d.job.id) for job_id, d in zip(ids, batch, strict=True)
    ]


def _create(connection: Connection, publisher: Publisher, batch: Sequence[Draft]) -> list[Job]:
    handed = [d for d in batch if d.job.is_dispatched]
    queues: dict[str, str | None] = {}
    if publisher.transactional:
        queues = {d.job.id: publisher.publish(d.launch) for d in handed}
    made = jobs.make(
        connection, [d.job._replace(queue=d.job.queue or queues.get(d.job.id)) for d in batch]
    )
    if not publisher.transactional:
        for each in handed:
            publisher.publish(each.launch)
    publisher.flush(connection, [d.job.id for d in handed])
    return made


_ANNOUNCE_LANE = text("SELECT pgbeat.announce_lane(:namespace, :lane)")
_WAKE = text("SELECT pg_notify(:channel, 'jobs')")


def announce(connection: Connection, job: Job) -> None:
    """Tells the leading beat, once the transaction commits, of a job that waits for it: in a lane,
    or outside of the broker for its time."""
    if job.state == "scheduled" and job.dispatched_at is None:
        connection.execute(_WAKE, {"channel": CHANNEL})
    elif lines.is_waiting(job):
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
    return db.kept(settings.url, "pgbeat submit")


def place(
    connection: Connection,
    app: Celery,
    settings: Settings,
    publisher: Publisher,
    order: Order,
    *,
    created_by: str,
    job_source: str,
) -> Submitted:
    """Makes a job, with its message, in the open transaction; raises as `draft` and `write`.

    Of one that waits in a lane, `allotment.allot` is to be told after the commit.
    """
    made = draft(
        app, stock(connection, settings, [order]), order,
        created_by=created_by, job_source=job_source,
    )  # fmt: skip
    return write(connection, publisher, [made])[0]


def enlist(session: Connection | Session, broker: Publisher) -> Connection:
    """The connection of a caller's transaction; raises for one that jobs can't be made in."""
    connection = session.connection() if isinstance(session, Session) else session
    if getattr(db.driver(connection), "autocommit", False):
        raise ValueError(
            "the connection is in autocommit mode: there is no transaction for the job to be in; "
            "leave connection out, or give one that commits"
        )
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
    run_at = made.job.run_at or db.now(connection)
    return made._replace(
        job=made.job._replace(is_dispatched=False, state="scheduled", run_at=run_at)
    )
