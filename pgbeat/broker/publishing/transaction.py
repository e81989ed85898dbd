"""Publishes in a caller's transaction, so that tasks exist only if it commits."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import islice
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

import psycopg
from celery import Celery
from celery._state import get_current_task
from kombu import Connection as BrokerConnection
from psycopg.pq import TransactionStatus
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, scoped_session

from pgbeat.broker import exchanges, messages, own_tables
from pgbeat.broker.messages import Message
from pgbeat.broker.publishing import predeclare
from pgbeat.broker.publishing.message_templates import TaskMessage
from pgbeat.broker.publishing.publisher import TransactionPublisher, send_task
from pgbeat.broker.transport import transaction_blocks
from pgbeat.broker.transport.outbox import (
    DECLARATIONS,
    OutboxChannel,
    OutboxConnection,
    declare_queue,
)
from pgbeat.config import (
    brokers,
    connect_args,
    delays_in_table,
    is_sqlalchemy_broker,
    postgres_url,
    same_database,
)
from pgbeat.config.urls import merged
from pgbeat.database import connections, identity
from pgbeat.errors import CannotPublish

#: Messages in one statement.
_CHUNK = 1000
#: A session or connection of the caller's.
Opened = Connection | Session | scoped_session[Any]


def opened(session: Opened) -> Connection:
    """Returns the connection of a caller's transaction.

    Raises:
        TypeError: The argument is neither a session nor a connection.
        ValueError: It is in autocommit mode, so there is no transaction.
    """
    if isinstance(session, Session | scoped_session):
        connection = session.connection()
    elif isinstance(session, Connection):
        connection = session
    else:
        kind = f"{type(session).__module__}.{type(session).__qualname__}"
        if "sqlalchemy.ext.asyncio" in kind:
            raise TypeError(
                f"a {kind} can't be used without `await`: use `await pgbeat.aio.submit(…)`, or "
                "`async with pgbeat.in_transaction(…):`"
            )
        raise TypeError(f"session must be an open SQLAlchemy session or connection, got a {kind}")
    if connections.is_autocommit(connection) and not _is_begun(connection):
        raise ValueError(
            "the connection is in autocommit mode, so it has no transaction; give one that "
            "commits, or publish without it"
        )
    return connection


def _is_begun(connection: Connection) -> bool:
    """Returns whether somebody has begun a transaction by hand."""
    raw: Any = connections.driver(connection)
    if hasattr(raw, "is_in_transaction"):  # asyncpg's
        return bool(raw.is_in_transaction())
    return bool(raw.info.transaction_status != TransactionStatus.IDLE)


class _Immediate:
    """Writes at once over the caller's connection."""

    def __init__(self, session: Opened, app: Celery) -> None:
        self._session, self._app = session, app

    @property
    def connection(self) -> Connection:
        # Each time from the session, which begins a savepoint on the server only then.
        return opened(self._session)

    def write(self, message: Message) -> int:
        """Writes a message; returns how many rows one for an exchange became."""
        return messages.put(self.connection, [message], predeclare.creator(self._app))

    def do(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        connection = self.connection
        if function is declare_queue:
            predeclare.create(self._app, connection, args)
            return None
        if function in DECLARATIONS:
            call = predeclare.call(function, *args, **kwargs)
            predeclare.declare(self._app, connection, call)
        return function(connection, *args, **kwargs)


class _FailedInBlock(DBAPIError):
    """Replaces an error of the caller's transaction.

    kombu would take the original for one of the broker's connection, reconnect, and publish again.
    """


class BlockChannel(OutboxChannel):
    """Replaces the channels that a block's code publishes over."""

    #: The broker whose channels it replaces.
    joined: Any = None

    def __init__(self, connection: Any) -> None:
        super().__init__(connection)
        self._clients: dict[int, BrokerConnection] = {}

    def note_client(self, client: BrokerConnection) -> None:
        """Notes a connection that declared something in the transaction."""
        self._clients[id(client)] = client

    def forget_client(self, client: BrokerConnection) -> None:
        """Makes such a connection declare everything again, since the caller may roll back."""
        if self._clients.pop(id(client), None) is not None:
            client.declared_entities.clear()

    def forget_clients(self) -> None:
        """Makes all such connections declare everything again."""
        for client in list(self._clients.values()):
            self.forget_client(client)

    def takes(self, message: Any) -> bool:
        """Returns whether the message joins the transaction: all but the running task's retry.

        A retry raises, which rolls most transactions back; its message must not vanish with them.
        """
        running = get_current_task()
        return running is None or message["headers"].get("id") != running.request.id

    def failing(self) -> AbstractContextManager[None]:
        """Keeps the database's errors from kombu, until the block ends."""
        return _failing()

    def _do(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with self.failing():
            return super()._do(function, *args, **kwargs)

    def write(self, message: Message, transient: bool) -> int | None:
        """Writes a message into the transaction."""
        sink = self.connection.client.sink
        with self.failing():
            count = sink.write(message)
            if message.queue is None and not count:
                check_snapshot(sink.connection, self.joined, message.exchange)
        return None


@contextmanager
def _failing() -> Iterator[None]:
    try:
        yield
    except DBAPIError as error:
        raise _FailedInBlock(
            error.statement,
            error.params,
            error.orig or error,
            error.hide_parameters,
            connection_invalidated=error.connection_invalidated,
            code=error.code,
        ) from error


def check_snapshot(connection: Connection, broker: Any, exchange: str) -> None:
    """Raises `CannotPublish` if an exchange's queues were bound after the transaction's snapshot.

    The message would be lost.
    """
    isolation = connection.exec_driver_sql("SHOW transaction_isolation").scalar_one()
    if isolation != "read committed" and broker.do(exchanges.is_bound, exchange):
        raise CannotPublish(
            f"no queue got the message for exchange {exchange!r}: the transaction is {isolation} "
            "and began before its queues were bound; declare them first"
        )


def require_broker(connection: Connection, app: Celery) -> None:
    """Raises `CannotPublish` unless the transaction is in the database of the app's broker."""
    urls = brokers(app.conf)
    own_urls = [postgres_url(url) for url in urls if is_sqlalchemy_broker(url)]
    if not own_urls:
        scheme = urls[0].partition(":")[0] if urls else "not set"
        raise CannotPublish(
            f"messages can join a transaction only if the broker is a Postgres database; the "
            f"broker of app {app.main!r} is {scheme}"
        )
    whole = merged(own_urls)  # one of several servers may be down
    own_urls = own_urls if whole is None else [whole]
    arguments = connect_args(app.conf)
    identity.require(connection, own_urls, whose="the broker's", connect_args=arguments)


def is_of(broker: Any, app: Celery, database: identity.Identity) -> bool:
    """Returns whether a broker's database is that of a transaction, in the app's broker.

    Raises `psycopg.OperationalError` if the broker is the app's, but on another server meanwhile:
    what it got at once would be there, though the transaction can't be.
    """
    if broker.database_identity() == database:
        return True
    own_urls = [postgres_url(url) for url in brokers(app.conf) if is_sqlalchemy_broker(url)]
    if not any(same_database(broker.url, url) for url in own_urls):
        return False
    # What is known may be from before a restart of the server behind a pooler.
    if broker.database_identity(again=True) == database:
        return True
    identity.forget()
    raise psycopg.OperationalError(
        "the transaction is not on the broker's server any more: another server has taken over"
    )


class InTransaction(OutboxConnection):
    """A kombu connection that publishes in an open transaction.

    As a block, it does so for everything that its thread publishes to that broker.
    """

    def __init__(self, session: Opened, app: Celery) -> None:
        self._app = app
        self.require_broker(session)
        self._open = _Immediate(session, app)
        own_tables.require(self._open.connection)
        self._blocks: list[transaction_blocks.TransactionBlock] = []
        self._channel: BlockChannel | None = None
        super().__init__(self._open, delays=delays_in_table(app.conf))

    def require_broker(self, session: Opened) -> None:
        """Raises `CannotPublish` unless the transaction is in the database of the app's broker."""
        require_broker(opened(session), self._app)

    def make_channel(self) -> BlockChannel:
        """Returns a channel for what the block's code publishes."""
        return BlockChannel(self.transport)

    def __enter__(self) -> Self:
        """Makes what this thread publishes join the transaction, until the end of the block.

        Raises:
            CannotPublish: The app's broker uses kombu's own transport, which has no such block.
        """
        if not self.delays:
            raise CannotPublish(
                "`with in_transaction(…):` needs pgbeat's transport; on kombu's own, give "
                "connection=in_transaction(…) to each apply_async"
            )
        self._blocks.append(transaction_blocks.enter(self))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Ends the block. The caller must commit the transaction."""
        transaction_blocks.leave(self._blocks.pop())
        if self._channel is not None:
            self._channel.forget_clients()
        if isinstance(error, _FailedInBlock) and error.__cause__ is not None:
            raise error.__cause__

    def channel_for(self, broker: Any) -> BlockChannel | None:
        """Returns the channel for messages to `broker`, if its database is the transaction's."""
        if not is_of(broker, self._app, identity.cached(self._open.connection)):
            return None
        if self._channel is None:
            self._channel = self.make_channel()
        self._channel.joined = broker
        return self._channel

    def send_many(
        self, task: Any, arguments: Iterable[Sequence[Any] | Mapping[str, Any]], **options: Any
    ) -> list[str]:
        """Sends a task once for each item of `arguments`, and returns the tasks' ids.

        For a plain task this is many times faster than `apply_async` in a loop.

        Args:
            task: A task, or a task's name.
            arguments: Sequences of positional arguments, or mappings of keyword arguments.
            options: The options of `apply_async`.
        """
        app = getattr(task, "app", None) or self._app
        publisher = TransactionPublisher(app, send_task)
        name, items, ids = getattr(task, "name", task), iter(arguments), []
        while chunk := list(islice(items, _CHUNK)):
            fresh = []
            for item in chunk:
                args, kwargs = _arguments(item)
                message = TaskMessage(str(uuid4()), name, args, kwargs, options)
                publisher.publish(message)
                fresh.append(message.job_id)
            publisher.flush(self._open.connection, fresh)
            publisher.clear()
            ids += fresh
        return ids


def _arguments(item: Sequence[Any] | Mapping[str, Any]) -> tuple[Sequence[Any], Mapping[str, Any]]:
    if isinstance(item, Mapping):
        return (), item
    if isinstance(item, Sequence) and not isinstance(item, str | bytes | bytearray):
        return item, {}
    raise TypeError(
        "the arguments of a task must be a sequence, or a mapping of keyword arguments, "
        f"got {item!r}"
    )
