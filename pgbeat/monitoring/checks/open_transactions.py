"""Finds transactions that sessions leave open while they hold locks that a beat may need."""

from typing import NamedTuple

from sqlalchemy import Connection, text

from pgbeat.database import sql

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


_FIND = text(sql.load("open_transactions.sql", "find"))


def find(connection: Connection, *, idle: float) -> list[OpenTransaction]:
    """Returns transactions that have been idle for so many seconds, the longest first."""
    return [OpenTransaction(*row) for row in connection.execute(_FIND, {"idle": idle})]


def problem(connection: Connection) -> tuple[str, str] | None:
    """Returns what is wrong with the one that has been idle longest, and what to do about it."""
    transactions = find(connection, idle=_IDLE)
    if not transactions:
        return None
    oldest = transactions[0]
    name = f" ({oldest.application_name})" if oldest.application_name else ""
    others = f", and {len(transactions) - 1} more" if len(transactions) > 1 else ""
    return (
        f"session {oldest.pid}{name} has been idle in a transaction for {oldest.idle:.0f} s "
        f"that has locks in {', '.join(oldest.tables)}{others}",
        "What needs these locks waits: end the transaction, or have the server do it "
        "(idle_in_transaction_session_timeout).",
    )
