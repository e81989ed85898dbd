"""Publishing inside the caller's own transaction: tasks that exist only if it commits."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any
from uuid import uuid4

from celery import Celery, current_app
from sqlalchemy import Connection
from sqlalchemy.orm import Session, scoped_session

from pgbeat.config import delays_in_table
from pgbeat.message_templates import Launch
from pgbeat.messages import BrokerTables, Message
from pgbeat.publisher import TransactionPublisher, send_task
from pgbeat.transport.outbox import OutboxConnection

#: Messages that go to the server in one statement.
_CHUNK = 1000
#: What a caller's transaction is in.
Opened = Connection | Session | scoped_session[Any]


def opened(session: Opened) -> Connection:
    """The connection of a caller's transaction. Raises `TypeError` for what has none."""
    if isinstance(session, Session | scoped_session):
        return session.connection()
    if isinstance(session, Connection):
        return session
    kind = f"{type(session).__module__}.{type(session).__qualname__}"
    raise TypeError(f"wanted is an open SQLAlchemy session or connection, and this is a {kind}")


class _Immediate:
    """Writes at once, on the caller's connection."""

    def __init__(self, session: Opened, tables: BrokerTables) -> None:
        self._session, self.tables = session, tables

    @property
    def connection(self) -> Connection:
        """Asked of a session every time: it tells the server of a savepoint only then."""
        return opened(self._session)

    def write(self, message: Message) -> None:
        self.tables.put(self.connection, [message])

    def do(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return function(self.connection, self.tables, *args, **kwargs)


class InTransaction(OutboxConnection):
    """A kombu connection that publishes into an open transaction."""

    def __init__(self, session: Opened, app: Celery) -> None:
        self._app = app
        self._open = _Immediate(
            session, BrokerTables.named(app.conf.broker_transport_options or {})
        )
        self._open.tables.require(self._open.connection)
        super().__init__(self._open, delays=delays_in_table(app.conf))

    def send_many(
        self,
        task: Any,
        arguments: Iterable[Sequence[Any] | Mapping[str, Any]],
        **options: Any,
    ) -> list[str]:
        """Sends a task once for each item: a sequence of arguments, or a mapping of keyword
        arguments. The ids of the tasks.

        `task` is a task, or a task's name; `options` are `apply_async`'s. Many times faster than
        `apply_async` in a loop where the task is a plain one.
        """
        app = getattr(task, "app", None) or self._app
        publisher = TransactionPublisher(app, send_task)
        name, items, ids = getattr(task, "name", task), iter(arguments), []
        while chunk := list(islice(items, _CHUNK)):
            fresh = []
            for item in chunk:
                args, kwargs = _arguments(item)
                launch = Launch(str(uuid4()), name, args, kwargs, options)
                publisher.publish(launch)
                fresh.append(launch.job_id)
            publisher.flush(self._open.connection, fresh)
            publisher.clear()
            ids += fresh
        return ids


def _arguments(
    item: Sequence[Any] | Mapping[str, Any],
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    if isinstance(item, Mapping):
        return (), item
    if isinstance(item, Sequence) and not isinstance(item, str | bytes | bytearray):
        return item, {}
    raise TypeError(
        f"send_many wants for each task a sequence of its arguments, or a mapping of its "
        f"keyword arguments, not {item!r}"
    )


def in_transaction(session: Opened, app: Celery | None = None) -> InTransaction:
    """A connection for `apply_async(connection=…)` whose messages commit, or vanish, with the open
    transaction of an SQLAlchemy session or connection.

    The session's database must be the broker's: `SchemaError` where it has no such tables. `app` is
    the current one unless given.
    """
    return InTransaction(session, app or current_app._get_current_object())
