"""`pgbeat.in_transaction`: publishes in a caller's transaction."""

from typing import TYPE_CHECKING, cast, overload

from celery import Celery, current_app

from pgbeat.broker.publishing.transaction import InTransaction, Opened

if TYPE_CHECKING:
    from pgbeat.broker.publishing.async_transaction import AsyncInTransaction, AsyncOpened


@overload
def in_transaction(session: Opened, app: Celery | None = None) -> InTransaction: ...
@overload
def in_transaction(session: "AsyncOpened", app: Celery | None = None) -> "AsyncInTransaction": ...
def in_transaction(
    session: "Opened | AsyncOpened", app: Celery | None = None
) -> "InTransaction | AsyncInTransaction":
    """Returns a connection for `apply_async(connection=…)` that publishes in an open transaction.

    Used as a block, everything that the same thread (greenlet, asyncio task) publishes to that
    broker joins the transaction, through any app. Only remote control and the running task's retry
    are sent at once. The caller must commit.

    With an asyncio session the block is `async with`, and writes the messages when it ends.

    Args:
        session: An SQLAlchemy session or connection to the broker's database, or an asyncio one.
        app: The app with that broker, by default the current one.

    Raises:
        CannotPublish: The app's broker is another database, or not Postgres.
        SchemaError: The database has no broker tables.
        ValueError: The connection is in autocommit mode.
    """
    app = app or current_app._get_current_object()
    if type(session).__module__.startswith("sqlalchemy.ext.asyncio"):
        from pgbeat.broker.publishing.async_transaction import AsyncInTransaction

        return AsyncInTransaction(cast("AsyncOpened", session), app)
    return InTransaction(cast(Opened, session), app)
