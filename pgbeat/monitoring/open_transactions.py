"""Finds transactions that sessions leave open while they hold locks that a beat may need."""

from typing import NamedTuple

from sqlalchemy import Connection, text

#: Seconds for which a transaction may be idle before it is worth a warning.
_IDLE = 10.0


class OpenTransaction(NamedTuple):
    """A transaction that has been idle."""

    #: The session's process on the server.
    pid: int
    application_name: str
    #: Seconds for which it has been idle.
    idle: float
    #: Tables of pgbeat's that it has written to or locked.
    tables: list[str]


# A read takes AccessShareLock, which only a migration waits for.
_FIND = text(
    """
    SELECT a.pid, coalesce(a.application_name, ''),
           extract(epoch FROM clock_timestamp() - a.state_change)::float8,
           array_agg(DISTINCT c.relname ORDER BY c.relname)
      FROM pg_stat_activity a
           JOIN pg_locks l ON l.pid = a.pid AND l.granted AND l.locktype = 'relation'
                AND l.database = a.datid AND l.mode <> 'AccessShareLock'
           JOIN pg_class c ON c.oid = l.relation AND c.relkind IN ('r', 'p')
           JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE a.datname = current_database() AND a.state LIKE 'idle in transaction%'
       AND a.state_change < clock_timestamp() - make_interval(secs => :idle)
       AND (n.nspname = 'pgbeat' OR c.relname LIKE 'kombu%')
     GROUP BY a.pid, a.application_name, a.state_change
     ORDER BY a.state_change
    """
)


def find(connection: Connection, *, idle: float) -> list[OpenTransaction]:
    """Returns transactions that have been idle for so many seconds, the longest first."""
    return [OpenTransaction(*row) for row in connection.execute(_FIND, {"idle": idle})]


def problem(connection: Connection) -> tuple[str, str] | None:
    """Returns what is wrong with the one that has been idle longest, and what to do about it."""
    found = find(connection, idle=_IDLE)
    if not found:
        return None
    oldest = found[0]
    name = f" ({oldest.application_name})" if oldest.application_name else ""
    others = f", and {len(found) - 1} more" if len(found) > 1 else ""
    return (
        f"session {oldest.pid}{name} has been idle in a transaction for {oldest.idle:.0f} s "
        f"that has locks in {', '.join(oldest.tables)}{others}",
        "What needs these locks waits: end the transaction, or have the server do it "
        "(idle_in_transaction_session_timeout).",
    )
