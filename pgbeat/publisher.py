"""Publishing: Celery makes the messages; on this Postgres they become rows of our transaction."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from json import dumps
from typing import Any, Protocol

from celery import Celery
from kombu import Connection as BrokerConnection
from kombu.transport.sqlalchemy import Channel as StockChannel
from kombu.transport.sqlalchemy import Transport as StockTransport
from kombu.transport.sqlalchemy.models import metadata as stock_metadata
from sqlalchemy import Connection, text

from pgbeat import db
from pgbeat.config import Settings, is_own_broker
from pgbeat.errors import InvalidSchedule
from pgbeat.messages import BrokerTables
from pgbeat.migrate import MIGRATION_LOCK
from pgbeat.templates import Templates

#: What a row's `options` may hold: `Task.apply_async`'s options that are data.
OPTIONS = frozenset(
    {
        "queue", "exchange", "routing_key", "exchange_type", "priority", "expires", "countdown",
        "eta", "headers", "serializer", "compression", "delivery_mode", "time_limit",
        "soft_time_limit", "ignore_result", "shadow", "retry", "retry_policy", "link",
        "link_error", "expiration", "mandatory", "immediate", "argsrepr", "kwargsrepr",
        "reply_to", "timeout", "confirm_timeout", "group_id", "root_id", "parent_id",
    }
)  # fmt: skip


class Publisher(Protocol):
    """Turns launches into messages."""

    #: Whether messages commit with the transaction that they are flushed in.
    transactional: bool

    def prepare(self, connection: Connection) -> None:
        """Sees to it that the broker can take messages; called in a transaction of its own."""

    def publish(
        self,
        job_id: str,
        task: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        options: Mapping[str, Any],
    ) -> str | None:
        """Makes the message; the queue's name, where that is known. Raises what Celery raises."""

    def flush(self, connection: Connection, job_ids: Iterable[str]) -> None:
        """Writes the messages of these jobs into the open transaction."""

    def clear(self) -> None:
        """Forgets what was made and not flushed."""


def publisher(app: Celery, settings: Settings, producer: Callable[[], Any]) -> Publisher:
    """The publisher for the app's broker; `producer` gives one where the broker is elsewhere."""
    if is_own_broker(app.conf, settings.url):
        return TransactionPublisher(app)
    return BrokerPublisher(app, producer)


def prepare_broker(app: Celery, settings: Settings) -> bool:
    """Makes the broker's tables and the app's queues, if the broker is this database; whether it
    is."""
    made = publisher(app, settings, lambda: None)
    if made.transactional:
        with db.engine(settings.url, "pgbeat migrate").begin() as connection:
            made.prepare(connection)
    return made.transactional


def apply_async(
    app: Celery,
    job_id: str,
    task: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    options: Mapping[str, Any],
    producer: Any,
) -> None:
    """Publishes through Celery, as its own beat does: the task's `apply_async`, or by name."""
    headers = {**(options.get("headers") or {}), "celery_beat_task": True}
    options = {**options, "headers": headers, "task_id": job_id, "producer": producer}
    registered = app.tasks.get(task)
    if registered is not None:
        registered.apply_async(tuple(args), dict(kwargs), **options)
    else:
        app.send_task(task, tuple(args), dict(kwargs), **options)


def check_options(options: Mapping[str, Any]) -> None:
    """Raises `InvalidSchedule` for an option that is not one of a message's."""
    unknown = sorted(set(options) - OPTIONS)
    if unknown:
        raise InvalidSchedule(
            f"options has {', '.join(map(repr, unknown))}, which is no publish option; "
            f"there are {', '.join(sorted(OPTIONS))}"
        )


class _OutboxChannel(StockChannel):
    """The stock channel, but what it would insert and commit goes to an outbox."""

    def _put(self, queue: str, payload: Any, **kwargs: Any) -> None:
        self.connection.client.outbox.append((queue, payload))

    def _new_queue(self, queue: str, **kwargs: Any) -> None:
        """A queue's row is made with its first message."""

    def _size(self, queue: str) -> int:
        return 0


class _OutboxTransport(StockTransport):
    Channel = _OutboxChannel


class TransactionPublisher:
    """For the stock SQLAlchemy transport on this very database: exactly one message a launch."""

    transactional = True

    def __init__(self, app: Celery) -> None:
        self._app = app
        options = dict(app.conf.broker_transport_options or {})
        self.tables = BrokerTables(
            options.get("queue_tablename", "kombu_queue"),
            options.get("message_tablename", "kombu_message"),
        )
        self._outbox: list[tuple[str, Any]] = []
        connection = BrokerConnection("localhost", transport=_OutboxTransport)
        connection.transport_options = options
        connection.outbox = self._outbox
        self._channel = connection.default_channel
        self._producer = app.amqp.Producer(connection, auto_declare=False)
        self._templates = Templates(app)
        self._made: dict[str, list[tuple[str, str]]] = {}

    def prepare(self, connection: Connection) -> None:
        """Makes the transport's tables, with its own DDL, and the app's queues, where missing.

        The stock transport doesn't expect two first users: a worker that makes them at the same
        moment fails.
        """
        if not self.tables.exist(connection):
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": MIGRATION_LOCK})
            tables = [self._channel.queue_cls.__table__, self._channel.message_cls.__table__]
            stock_metadata.create_all(connection, tables=tables)
        self.tables.declare(connection, self._app.amqp.queues)

    def publish(
        self,
        job_id: str,
        task: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        options: Mapping[str, Any],
    ) -> str | None:
        if job_id not in self._made:
            quick = self._templates.message(job_id, task, args, kwargs, options)
            if quick is not None:
                self._made[job_id] = [quick]
            else:
                self._outbox.clear()
                apply_async(self._app, job_id, task, args, kwargs, options, self._producer)
                self._templates.learn(job_id, task, args, kwargs, options, self._outbox)
                self._made[job_id] = [(queue, dumps(payload)) for queue, payload in self._outbox]
        made = self._made[job_id]
        return made[0][0] if made else None

    def flush(self, connection: Connection, job_ids: Iterable[str]) -> None:
        batch = [message for job_id in job_ids for message in self._made.get(job_id, ())]
        self.tables.put(connection, batch)

    def clear(self) -> None:
        self._made.clear()
        self._outbox.clear()


class BrokerPublisher:
    """For a broker elsewhere: published before the commit, so at least once, under one task id."""

    transactional = False

    def __init__(self, app: Celery, producer: Callable[[], Any]) -> None:
        self._app = app
        self._producer = producer
        self._sent: set[str] = set()

    def prepare(self, connection: Connection) -> None:
        """Nothing to do: the broker is another server."""

    def publish(
        self,
        job_id: str,
        task: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        options: Mapping[str, Any],
    ) -> str | None:
        if job_id not in self._sent:
            apply_async(self._app, job_id, task, args, kwargs, options, self._producer())
            self._sent.add(job_id)
        return None

    def flush(self, connection: Connection, job_ids: Iterable[str]) -> None:
        """Nothing to do: the broker has the messages."""

    def clear(self) -> None:
        self._sent.clear()
