"""Looks whether what failed is well again: then its incident ends, and those who knew are told."""

from collections.abc import Collection

from sqlalchemy import Connection, text

from pgbeat.database import connections, sql
from pgbeat.webhooks.incidents.model import QUIET, Key

#: Incidents that are looked at, at once.
_MOST = 500
_START = Key(0, "schedule", "")
_PAGE = text(sql.load("incidents.sql", "page"))
_LOCK = text(sql.load("incidents.sql", "lock"))
_TRY = text(sql.load("incidents.sql", "try"))
_END = text(sql.load("incidents.sql", "end"))


def lock(connection: Connection, namespace: str) -> None:
    """Waits until nobody else changes the namespace's incidents, for the transaction."""
    connection.execute(_LOCK, {"namespace": namespace})


class Recovery:
    """Looks at a namespace's incidents, as many at a time as cost little."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        #: The last one that was looked at.
        self._after = _START

    def look(self, connection: Connection) -> int:
        """Ends incidents that are over; returns how many ends webhooks are told of.

        The connection is in autocommit mode. If another transaction changes incidents, nothing is
        done.
        """
        values = {"namespace": self._namespace, "limit": _MOST, **self._after._asdict()}
        page = [Key(*row) for row in connection.execute(_PAGE, values)]
        self._after = page[-1] if len(page) == _MOST else _START
        if not page:
            return 0
        with connections.transaction(connection):
            if not connection.scalar(_TRY, {"namespace": self._namespace}):
                return 0
            return end(connection, page)


def end(connection: Connection, keys: Collection[Key]) -> int:
    """Does what `look` does, for these incidents, in a transaction that has the lock."""
    values = {"keys": connections.recordset(keys), "quiet": QUIET}
    return connection.execute(_END, values).rowcount
