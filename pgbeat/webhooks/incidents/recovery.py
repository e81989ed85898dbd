"""Looks whether what failed is well again: then its incident ends, and those who knew are told."""

from sqlalchemy import Connection, text

from pgbeat.database import connections, sql
from pgbeat.webhooks.incidents.model import QUIET

#: Incidents that are looked at, at once.
_MOST = 500
_ANY = text("SELECT EXISTS (SELECT FROM pgbeat.incidents)")
_LOCK = text(sql.load("incidents.sql", "lock"))
_TRY = text(sql.load("incidents.sql", "try"))
_END = text(sql.load("incidents.sql", "end"))


def lock(connection: Connection, namespace: str) -> None:
    """Waits until nobody else changes the namespace's incidents, for the transaction."""
    connection.execute(_LOCK, {"namespace": namespace})


def look(connection: Connection, namespace: str) -> int:
    """Ends the incidents that are over; returns how many recoveries webhooks are told of.

    The connection is in autocommit mode. If another transaction changes incidents, it does nothing.
    """
    if not connection.scalar(_ANY):
        return 0
    with connections.transaction(connection):
        if not connection.scalar(_TRY, {"namespace": namespace}):
            return 0
        return end(connection, namespace)


def end(connection: Connection, namespace: str) -> int:
    """Does what `look` does, in a transaction that has the lock."""
    values = {"namespace": namespace, "limit": _MOST, "quiet": QUIET}
    return connection.execute(_END, values).rowcount
