"""Publishes in the transaction of an asyncio session, without blocking its event loop."""

from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeVar

from celery import Celery
from sqlalchemy import Connection

from pgbeat.broker import own_tables
from pgbeat.broker.messages import Message, put
from pgbeat.broker.publishing import predeclare
from pgbeat.broker.publishing.publisher import HeldPublishes
from pgbeat.broker.publishing.transaction import (
    BlockChannel,
    check_snapshot,
    is_of,
    opened,
    require_broker,
)
from pgbeat.broker.transport import transaction_blocks
from pgbeat.broker.transport.outbox import OutboxConnection
from pgbeat.config import delays_in_table
from pgbeat.database import identity
from pgbeat.errors import CannotPublish

if TYPE_CHECKING:  # importing it fails without greenlet, which only a caller's session needs
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session

#: A session or connection of the caller's, for asyncio.
AsyncOpened: TypeAlias = "AsyncConnection | AsyncSession | async_scoped_session[Any]"
Returned = TypeVar("Returned")


def run_sync(session: AsyncOpened, function: Callable[[Any], Returned]) -> Awaitable[Returned]:
    """Calls a function with the synchronous side of a session or connection."""
    from sqlalchemy.ext.asyncio import async_scoped_session

    current = session() if isinstance(session, async_scoped_session) else session
    return current.run_sync(function)


class _HeldChannel(BlockChannel):
    """Holds a block's messages until its end."""

    def write(self, message: Message, transient: bool) -> int | None:
        """Holds a message."""
        self.connection.client.sink.write(message)
        return None


class AsyncInTransaction(OutboxConnection):
    """A block of asyncio code; what it publishes is written into its transaction at the end."""

    def __init__(self, session: AsyncOpened, app: Celery) -> None:
        if not delays_in_table(app.conf):
            raise CannotPublish(
                "`async with in_transaction(…):` needs pgbeat's transport; the app's broker is "
                "another one"
            )
        self._session, self._app = session, app
        self._held = HeldPublishes()
        self._database: Any = None
        self._block: transaction_blocks.TransactionBlock | None = None
        self._channel: _HeldChannel | None = None
        super().__init__(self._held)

    def __enter__(self) -> Self:
        """Raises `TypeError`: the messages can't be written without waiting."""
        raise TypeError("an asyncio session needs `async with pgbeat.in_transaction(…):`")

    async def __aenter__(self) -> Self:
        """Makes what this asyncio task publishes join the transaction, until the block's end."""
        if self._block is not None:
            raise RuntimeError("the block is open already")
        await run_sync(self._session, self._check)
        self._block = transaction_blocks.enter(self)
        return self

    def _check(self, session: Any) -> None:
        connection = opened(session)
        require_broker(connection, self._app)
        own_tables.require(connection)
        self._database = identity.cached(connection)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Writes the messages, unless the block raised. The caller must commit."""
        block, self._block = self._block, None
        if block is not None:
            transaction_blocks.leave(block)
        try:
            if error is None:
                await run_sync(self._session, self._write)
        finally:
            self._held.clear()
            if self._channel is not None:
                self._channel.forget_clients()

    def _write(self, session: Any) -> None:
        connection = opened(session)
        messages = list(self._held.messages)
        self._held.declare(connection, self._app)
        self._put(connection, messages)

    def _put(self, connection: Connection, messages: list[Message]) -> None:
        to_queues = [message for message in messages if message.queue is not None]
        if to_queues:
            put(connection, to_queues, predeclare.creator(self._app))
        for message in messages:
            if message.queue is None and not put(connection, [message]):
                joined = self._channel.joined if self._channel is not None else None
                check_snapshot(connection, joined, message.exchange)

    def channel_for(self, broker: Any) -> _HeldChannel | None:
        """Returns the channel for messages to `broker`, if its database is the transaction's."""
        if not is_of(broker, self._app, self._database):
            return None
        if self._channel is None:
            self._channel = _HeldChannel(self.transport)
        self._channel.joined = broker
        return self._channel
