"""Creates and commits the queues that messages in a caller's transaction need, beforehand.

If the caller's transaction created a queue, all others that publish to it would have to wait for
that transaction's end. So another connection creates it first, and it stays if the caller rolls
back. Only the messages belong to the caller's transaction.
"""

import logging
from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import partial
from typing import Any

from celery import Celery
from sqlalchemy import Connection, text

from pgbeat import config
from pgbeat.broker import messages
from pgbeat.config.app_state import state_of
from pgbeat.database import connections
from pgbeat.database.kept import kept
from pgbeat.database.locks import lock_waits

logger = logging.getLogger("pgbeat")

Call = Callable[[Connection], Any]

#: Seconds to wait for locks.
_PATIENCE = 1.0
_ISOLATION = text("SELECT current_setting('transaction_isolation')")


class _Declared(set[Hashable]):
    """The exchanges and bindings that this process has declared, or failed to declare."""


def creator(app: Celery | None) -> messages.Create:
    """Returns what creates queues: with an app, in the transaction of its caller."""
    return messages.declare if app is None else partial(create, app)


def create(app: Celery, connection: Connection, queues: Iterable[str]) -> None:
    """Creates the queues that are missing, on another connection, and commits.

    `connection` is the caller's. Its transaction must itself create those that it doesn't see then.
    """
    wanted = set(queues)
    missing = wanted - messages.known(connection, wanted)
    if not missing:
        return
    if _sees_commits(connection):
        state_of(app).part(_Declared).clear()  # bindings are deleted with their queue
        _commit(app, [partial(messages.declare, queues=missing)])
    messages.declare(connection, missing)


def declare(app: Celery, connection: Connection, calls: Mapping[Hashable, Call]) -> None:
    """Declares exchanges and bindings once in this process, on another connection, and commits.

    `connection` is the caller's. Its transaction must make the calls, too, in case that one failed.
    """
    declared = state_of(app).part(_Declared)
    fresh = {key: call for key, call in calls.items() if key not in declared}
    if fresh and _sees_commits(connection):
        declared.update(fresh)
        _commit(app, fresh.values())


def _sees_commits(connection: Connection) -> bool:
    return bool(connection.scalar(_ISOLATION) == "read committed")


def _commit(app: Celery, calls: Iterable[Call]) -> None:
    url, connect_args = config.broker_database(app.conf), config.connect_args(app.conf)
    try:
        with kept(url, "pgbeat submit", connect_args) as other, connections.transaction(other):
            lock_waits.limit_waiting(other, _PATIENCE)
            for call in calls:
                call(other)
    except Exception:
        logger.debug("The caller's transaction creates a queue itself", exc_info=True)


def call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> dict[Hashable, Call]:
    """Returns a call for `declare`, by its key."""
    key = repr((function, args, kwargs))
    return {key: lambda connection: function(connection, *args, **kwargs)}
