"""Takes session locks, limits waits for locks, and writes around locked rows."""

from pgbeat.database import sql


def held(kind: int) -> str:
    """Returns a query for the ids whose lock (`kind`, id) a session holds: those that are alive."""
    return sql.load("advisory_locks.sql", "held", kind=str(kind))
