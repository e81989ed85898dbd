"""`pgbeat.finish` for asyncio sessions, whose event loop has ended when their transaction does.

The task's end is written by ordinary, blocking statements over the same libpq connection. Another
event loop then commits.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import lru_cache
from threading import local
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.pq.abc import PGconn
from sqlalchemy import Connection, Engine, NullPool
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session

from pgbeat.broker.publishing.async_transaction import AsyncOpened, run_sync
from pgbeat.broker.publishing.transaction import opened, require_broker
from pgbeat.database import connections
from pgbeat.errors import CannotFinish
from pgbeat.jobs.running.task_exceptions import Failed
from pgbeat.worker.finishing.endings import COMMITTED, NEEDS_PSYCOPG, current_ending

#: Where an engine's next connection gets its libpq connection from.
_next = local()


class _Shared(psycopg.Connection[Any]):
    """Sends statements over the libpq connection of an asyncio one, which stays its owner."""

    def __init__(self, pgconn: PGconn) -> None:
        self._handlers = pgconn.notice_handler, pgconn.notify_handler
        super().__init__(pgconn)
        # Names of prepared statements would be those of the owner.
        self.prepare_threshold = None

    def close(self) -> None:
        """Returns the connection to its owner, who closes it."""
        self.pgconn.notice_handler, self.pgconn.notify_handler = self._handlers

    def __del__(self, *args: Any) -> None:
        """Warns of nothing: the connection is the owner's."""


def _connect() -> Any:
    return _Shared(_next.pgconn)


@lru_cache(maxsize=4)
def _sharing(like: Engine) -> Engine:
    """Returns an engine that speaks as another one does, over connections that are given to it."""
    return Engine(NullPool(_connect, reset_on_return=None), like.dialect, like.url)


class _OwnAsyncSession:
    """The asyncio session or connection that a task gave to `finish`."""

    def __init__(self, session: AsyncOpened) -> None:
        self.session = session() if isinstance(session, async_scoped_session) else session
        self._transaction: Any = None
        #: libpq's connection.
        self.pgconn: Any = None

    async def begin(self) -> None:
        """Begins the transaction, or joins the one that is open."""
        if isinstance(self.session, AsyncConnection) and self.session.sync_connection is None:
            await self.session.start()
        await run_sync(self.session, self._begin)
        self._transaction = self._open_transaction()

    def _begin(self, session: Any) -> None:
        connection = opened(session)
        if not connection.in_transaction():
            connection.begin()
        raw: Any = connections.driver(connection)
        if not isinstance(raw, psycopg.AsyncConnection):
            raise CannotFinish(NEEDS_PSYCOPG % connection.dialect.driver)
        if raw.info.transaction_status == TransactionStatus.IDLE:
            connection.exec_driver_sql("SELECT 1")
        self.pgconn = raw.pgconn

    def _open_transaction(self) -> Any:
        if isinstance(self.session, AsyncSession):
            return self.session.sync_session.get_transaction()
        within = self.session.sync_connection
        return within and within.get_transaction()

    def check(self) -> None:
        """Raises `CannotFinish` if the transaction that the block began is over."""
        transaction = self._open_transaction()
        is_same = transaction is not None and transaction == self._transaction
        if not is_same or self.pgconn.transaction_status == TransactionStatus.IDLE:
            raise CannotFinish(COMMITTED)

    async def flush(self) -> None:
        """Writes what the session has not sent yet."""
        self.check()
        if isinstance(self.session, AsyncSession):
            await self.session.flush()


class _Adopted:
    """What the task wrote, for the end of the task, when its event loop has ended."""

    def __init__(self, opened_session: _OwnAsyncSession, engine: Engine) -> None:
        self._own = opened_session
        _next.pgconn = opened_session.pgconn
        self._connection = _sharing(engine).connect()

    def connection(self) -> Connection:
        self._own.check()
        return self._connection

    def commit(self) -> None:
        asyncio.run(self._end(self._own.session.commit))

    def roll_back(self) -> None:
        with suppress(Exception):  # its connection may be lost
            asyncio.run(self._end(self._own.session.rollback))

    async def _end(self, end: Callable[[], Awaitable[None]]) -> None:
        try:
            await end()
        finally:
            self._connection.close()
            await self._own.session.close()


@asynccontextmanager
async def finish_async(session: AsyncOpened) -> AsyncIterator[AsyncOpened]:
    """Does what `pgbeat.finish` does for an asyncio session or connection."""
    ending, problem = current_ending()
    own_session = _OwnAsyncSession(session)
    try:
        if problem is not None:
            raise problem
        if ending is not None and ending.is_awaited:
            raise CannotFinish("the task is awaited; let it call asyncio.run(…) instead")
        await own_session.begin()
        if ending is not None:
            await run_sync(session, lambda sync: require_broker(opened(sync), ending.app))
            ending.check_adopts()
        partial = None
        try:
            yield session
        except Failed as failed:  # other members of the batch have completed
            partial = failed
        await own_session.flush()
        if ending is not None:
            ending.adopt(_Adopted(own_session, ending.engine))
        else:
            await own_session.session.commit()
            await own_session.session.close()
    except BaseException:
        with suppress(Exception):
            await own_session.session.rollback()
            await own_session.session.close()
        raise
    if partial is not None:
        raise partial
