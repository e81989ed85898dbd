"""Marks unfinished jobs that missed a deadline. One that ends late is marked when it ends."""

from sqlalchemy import Connection, text

from pgbeat.database import sql

_MARK = text(sql.load("deadlines.sql", "mark"))


def mark_late(connection: Connection, namespace: str, *, limit: int = 500) -> int:
    """Marks jobs whose next deadline has passed, the longest passed first.

    Returns how many it looked at: some of them have started or will end in time. Rows that another
    transaction has locked are left for the next time.
    """
    return connection.execute(_MARK, {"namespace": namespace, "limit": limit}).rowcount
