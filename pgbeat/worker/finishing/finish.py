"""`pgbeat.finish`: what a task writes commits with the task's own end."""

from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar, overload

import psycopg
from psycopg.pq import TransactionStatus
from sqlalchemy import Connection
from sqlalchemy.orm import Session, scoped_session

from pgbeat.broker.publishing.transaction import opened, require_broker
from pgbeat.database import connections
from pgbeat.errors import CannotFinish
from pgbeat.jobs.running.task_exceptions import Failed
from pgbeat.worker.finishing.endings import COMMITTED, NEEDS_PSYCOPG, current_ending

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session

    AsyncOpened = TypeVar(
        "AsyncOpened", bound=AsyncConnection | AsyncSession | async_scoped_session[Any]
    )

Opened = TypeVar("Opened", bound=Connection | Session | scoped_session[Any])


class _OwnSession:
    """The session or connection that a task gave to `finish`."""

    def __init__(self, session: Any) -> None:
        self._session: Session | Connection = (
            session() if isinstance(session, scoped_session) else session
        )
        self._connection = opened(self._session)
        if not self._connection.in_transaction():
            self._connection.begin()
        self._transaction = self._session.get_transaction()
        if not isinstance(connections.driver(self._connection), psycopg.Connection):
            raise CannotFinish(NEEDS_PSYCOPG % self._connection.dialect.driver)

    def connection(self) -> Connection:
        """Returns the connection, with its transaction begun on the server."""
        self.check()
        raw = connections.driver(self._connection)
        if raw.info.transaction_status == TransactionStatus.IDLE:
            self._connection.exec_driver_sql("SELECT 1")
        return self._connection

    def check(self) -> None:
        """Raises `CannotFinish` if the transaction that the block began is over."""
        is_same = self._session.get_transaction() is self._transaction
        if not is_same or self._connection.closed:
            raise CannotFinish(COMMITTED)

    def flush(self) -> None:
        self.check()
        if isinstance(self._session, Session):
            self._session.flush()

    def commit(self) -> None:
        self._session.commit()
        self._session.close()

    def roll_back(self) -> None:
        with suppress(Exception):  # its connection may be lost
            self._session.rollback()
        self._session.close()


@overload
def finish(session: Opened) -> AbstractContextManager[Opened]: ...
@overload
def finish(session: "AsyncOpened") -> "AbstractAsyncContextManager[AsyncOpened]": ...
def finish(session: Any) -> Any:
    """Makes a task's writes in a session commit with the task's end, or not at all.

        @app.task(acks_late=True)
        def book(order_id):
            with pgbeat.finish(Session()) as session:
                session.add(Booking(order_id))

    The block flushes the session; the commit comes when the task has returned. In the same
    transaction its result is stored, its callbacks and the next link of its chain are published,
    its execution is recorded, and its message is acknowledged. If the task raises, is killed, or
    has lost its message to another worker, all of that is rolled back. So the rows exist exactly
    once, however often the task is delivered.

    Where a task is called directly or eagerly, there is no message: the block commits at its end.

    With an asyncio session the block is `async with`, in an event loop that the task runs in its
    own thread, as by `asyncio.run`.

    Args:
        session: A session or connection of SQLAlchemy's to the broker's database, with psycopg 3,
            or an asyncio one. The task must neither commit nor close it; it is closed after the
            commit.

    Raises:
        CannotFinish: The task is not acknowledged late, its broker or its result backend is not
            pgbeat's in one database, or the session's transaction was ended in the block.
        ConfigError: The session is in another database than the broker.
    """
    if type(session).__module__.startswith("sqlalchemy.ext.asyncio"):
        from pgbeat.worker.finishing.async_finish import finish_async

        return finish_async(session)
    return _finish(session)


@contextmanager
def _finish(session: Opened) -> Iterator[Opened]:
    ending, problem = current_ending()
    own_session = _OwnSession(session)
    try:
        if problem is not None:
            raise problem
        if ending is not None:
            require_broker(own_session.connection(), ending.app)
            ending.check_adopts()
        partial = None
        try:
            yield session
        except Failed as failed:  # other members of the batch have completed
            partial = failed
        own_session.flush()
    except BaseException:
        own_session.roll_back()
        raise
    if ending is None:
        own_session.commit()
    else:
        ending.adopt(own_session)
    if partial is not None:
        raise partial
