"""Looks for stale schedules: none of their jobs completes. The next that does ends that itself."""

from sqlalchemy import Connection, text

from pgbeat.database import sql

_LOOK = text(sql.load("freshness.sql", "look"))


def look(connection: Connection, namespace: str, *, limit: int = 500) -> int:
    """Judges the schedules that it is time to look at, the longest overdue first.

    Returns how many. Rows that another transaction has locked are left for the next time.
    """
    return connection.execute(_LOOK, {"namespace": namespace, "limit": limit}).rowcount
