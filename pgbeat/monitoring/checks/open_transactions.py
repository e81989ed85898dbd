"""Finds transactions that sessions leave open while they hold locks that a beat may need."""

from sqlalchemy import Connection, text

from pgbeat.database import sql
from pgbeat.monitoring.checks.server_checks import Check

#: Seconds for which a transaction may be idle before it is worth a warning.
_IDLE = 10.0


_FIND = text(sql.load("open_transactions.sql", "find"))


def check(connection: Connection) -> Check | None:
    """Warns of the transaction that has been idle longest; returns `None` without one."""
    transactions = connection.execute(_FIND, {"idle": _IDLE}).all()
    if not transactions:
        return None
    pid, application_name, idle, tables = transactions[0]
    name = f" ({application_name})" if application_name else ""
    others = f", and {len(transactions) - 1} more" if len(transactions) > 1 else ""
    return Check(
        "transactions",
        "warn",
        f"session {pid}{name} has been idle in a transaction for {idle:.0f} s "
        f"that has locks in {', '.join(tables)}{others}",
        "What needs these locks waits: end the transaction, or have the server do it "
        "(idle_in_transaction_session_timeout).",
    )
