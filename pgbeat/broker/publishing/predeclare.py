"""Creates and commits the queues that messages in a caller's transaction need, beforehand.

If the caller's transaction created a queue, all others that publish to it would have to wait for
that transaction's end. So another connection creates it first, and it stays if the caller rolls
back. Only the messages belong to the caller's transaction.
"""

import logging
from collections.abc import Callable, Hashable, Mapping
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
    """The objects that this process has created, or failed to create."""


def declare(app: Celery, connection: Connection, calls: Mapping[Hashable, Call]) -> None:
    """Makes each call once in this process, on another connection, and commits.

    `connection` is the caller's. If its snapshot would not see the result, or if a call fails, the
    caller's transaction must make the calls itself.
    """
    declared = state_of(app).part(_Declared)
    fresh = {key: call for key, call in calls.items() if key not in declared}
    if not fresh or connection.scalar(_ISOLATION) != "read committed":
        return
    declared.update(fresh)
    try:
        with (
            kept(config.broker_database(app.conf), "pgbeat submit") as other,
            connections.transaction(other),
        ):
            lock_waits.limit_waiting(other, _PATIENCE)
            for call in fresh.values():
                call(other)
    except Exception:
        logger.debug("The caller's transaction creates a queue itself", exc_info=True)


def call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> dict[Hashable, Call]:
    """Returns a call for `declare`, by its key."""
    key = repr((function, args, kwargs))
    return {key: lambda connection: function(connection, *args, **kwargs)}


def queue(name: str | None) -> dict[Hashable, Call]:
    """Returns the call that creates a queue; none without a name."""
    if name is None:
        return {}
    return {("queue", name): lambda connection: messages.declare(connection, [name])}
