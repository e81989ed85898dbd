"""Leases: who leads, by a session's advisory lock."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

#: SQLSTATE of a lock that was not had in time.
_LOCK_NOT_AVAILABLE = "55P03"


def prepare_session(connection: Connection, silence: float) -> None:
    """Makes the server notice soon that this session's owner is gone.

    A vanished host is noticed by keepalives, a dead client of a waiting statement by the check
    interval, a frozen process by its silence (seconds): the session ends, and with it its locks.
    In a transaction, where publishing to a broker elsewhere may take its time, a minute is given.
    """
    connection.execute(
        text(
            """
            SELECT set_config('tcp_keepalives_idle', '2', false),
                   set_config('tcp_keepalives_interval', '1', false),
                   set_config('tcp_keepalives_count', '3', false),
                   set_config('tcp_user_timeout', '5000', false),
                   set_config('client_connection_check_interval', '500', false),
                   set_config('idle_in_transaction_session_timeout', :in_transaction, false),
                   set_config('idle_session_timeout', :silence, false)
            """
        ),
        {
            "silence": f"{int(silence * 1000)}",
            "in_transaction": f"{int(max(silence, 60) * 1000)}",
        },
    )


def acquire(connection: Connection, key: int, wait: float) -> bool:
    """Waits up to `wait` seconds for the session lock; whether it is held now.

    The wait is inside the server, which hands the lock over the moment its holder's session ends.
    """
    connection.execute(
        text("SELECT set_config('lock_timeout', :ms, false)"), {"ms": f"{int(wait * 1000)}"}
    )
    try:
        connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": key})
    except DBAPIError as error:
        if is_lock_timeout(error):
            return False
        raise
    connection.execute(text("SELECT set_config('lock_timeout', '0', false)"))
    return True


def limit_waiting(connection: Connection, seconds: float) -> None:
    """Limits the wait for locks in the open transaction."""
    connection.execute(
        text("SELECT set_config('lock_timeout', :ms, true)"), {"ms": f"{int(seconds * 1000)}"}
    )


def is_lock_timeout(error: DBAPIError) -> bool:
    """Whether a statement waited for a lock longer than it may."""
    return getattr(error.orig, "sqlstate", None) == _LOCK_NOT_AVAILABLE


@dataclass(frozen=True, slots=True)
class Holder:
    """A session that holds, or waits for, the lock."""

    pid: int
    leads: bool
    application_name: str
    client: str | None
    since: datetime


def holders(connection: Connection, key: int) -> list[Holder]:
    """The leader and the standbys, leader first."""
    rows = connection.execute(
        text(
            """
            SELECT a.pid, l.granted, a.application_name, host(a.client_addr), a.backend_start
              FROM pg_locks l JOIN pg_stat_activity a USING (pid)
             WHERE l.locktype = 'advisory' AND l.objsubid = 1
               AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
               AND (l.classid::bigint << 32) | l.objid::bigint = :key
             ORDER BY l.granted DESC, a.backend_start
            """
        ),
        {"key": key},
    )
    return [Holder(*row) for row in rows]
