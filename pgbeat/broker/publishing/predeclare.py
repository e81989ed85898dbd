"""Makes what a message in a caller's transaction needs, in a transaction of its own, before.

A queue that the caller's transaction made would keep all others that publish to it waiting for that
transaction's end: they can't know whether the queue will be there. So it is made and committed on
another connection first, and stays if the caller rolls back; only messages are the transaction's.
"""

import logging
from collections.abc import Callable, Hashable, Mapping
from typing import Any

from celery import Celery
from sqlalchemy import Connection, text

from pgbeat import config
from pgbeat.broker.messages import BrokerTables
from pgbeat.database import connections, lock_waits

logger = logging.getLogger("pgbeat")

Call = Callable[[Connection, BrokerTables], Any]

#: Where an app notes what this process has made, or could not make.
_MADE = "_pgbeat_declared_ahead"
#: Seconds for which others' locks are waited for.
_PATIENCE = 1.0
_ISOLATION = text("SELECT current_setting('transaction_isolation')")


def declare(
    app: Celery, connection: Connection, tables: BrokerTables, calls: Mapping[Hashable, Call]
) -> None:
    """Makes these calls, each once in a process, on another connection, and commits.

    `connection` is the caller's. Where its snapshot would not see what another transaction makes,
    and where making it fails, nothing is done: it is made in the caller's transaction then.
    """
    made: set[Hashable] = vars(app).setdefault(_MADE, set())
    fresh = {key: call for key, call in calls.items() if (tables, key) not in made}
    if not fresh or connection.scalar(_ISOLATION) != "read committed":
        return
    made.update((tables, key) for key in fresh)
    try:
        with (
            connections.kept(config.broker_database(app.conf), "pgbeat submit") as own,
            connections.transaction(own),
        ):
            lock_waits.limit_waiting(own, _PATIENCE)
            for call in fresh.values():
                call(own, tables)
    except Exception:
        logger.debug("A queue is made in the caller's transaction", exc_info=True)


def queue(name: str | None) -> dict[Hashable, Call]:
    """Returns the call that makes a queue, or none."""
    if name is None:
        return {}
    return {("queue", name): lambda connection, tables: tables.declare(connection, [name])}
