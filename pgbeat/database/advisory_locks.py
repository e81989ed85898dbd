"""Leases: who leads, by a session's advisory lock."""

import select
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

import psycopg
from psycopg.pq import ExecStatus, TransactionStatus
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from pgbeat.database import connections

#: SQLSTATE of a lock that was not had in time.
_LOCK_NOT_AVAILABLE = "55P03"


def prepare_session(connection: Connection, silence: float = 0.0) -> None:
    """Makes the server notice soon that this session's owner is gone.

    A vanished host is noticed by keepalives, a dead client of a waiting statement by the check
    interval, a frozen process by its silence (seconds; 0: never): the session ends, and with it
    its locks.
    Its statements outside a transaction read what is committed, as those inside do.
    In a transaction, where publishing to a broker elsewhere may take its time, a minute is given.

    Behind a pooler, whose sessions are other clients' too, each `db.transaction` sets those of
    these settings that a transaction can have.
    """
    connections.configure(
        connection,
        {
            "statement_timeout": "0",
            "lock_timeout": "0",
            "idle_in_transaction_session_timeout": f"{int(max(silence, 60) * 1000)}",
        },
    )
    if not connections.has_own_session(connection):
        return
    connections.configure(
        connection,
        {
            "default_transaction_isolation": "read committed",
            "tcp_keepalives_idle": "2",
            "tcp_keepalives_interval": "1",
            "tcp_keepalives_count": "3",
            "tcp_user_timeout": "5000",
            "idle_session_timeout": f"{int(silence * 1000)}",
        },
    )
    with suppress(DBAPIError):  # refused by servers on systems that can't tell
        connections.configure(connection, {"client_connection_check_interval": "500"})


def acquire(connection: Connection, key: int, wait: float) -> bool:
    """Waits up to `wait` seconds for the session lock; whether it is held now.

    The wait is inside the server, which hands the lock over the moment its holder's session ends.
    It goes on there when the time is up: until it is granted, the connection is for calling this
    again and nothing else. Raises `psycopg.OperationalError` when the connection is lost.
    """
    driver = connections.driver(connection)
    request = driver.pgconn
    if request.transaction_status != TransactionStatus.ACTIVE:
        request.send_query(b"SELECT pg_advisory_lock(%d)" % key)
        request.flush()
    deadline = time.monotonic() + wait
    while True:
        while not request.is_busy():
            result = request.get_result()
            if result is None:
                return True
            if result.status != ExecStatus.TUPLES_OK:
                while request.get_result() is not None:
                    continue
                raise psycopg.errors.error_from_result(result)
        seconds = max(0.0, deadline - time.monotonic())
        readable, _, _ = select.select([driver.fileno()], [], [], seconds)
        if not readable:
            return False
        request.consume_input()


def limit_waiting(connection: Connection, seconds: float) -> None:
    """Limits the wait for locks in the open transaction."""
    connection.execute(
        text("SELECT set_config('lock_timeout', :ms, true)"), {"ms": f"{int(seconds * 1000)}"}
    )


def is_lock_timeout(error: BaseException) -> bool:
    """Returns whether a statement was refused because another transaction holds a lock that it
    needs: it waited longer than it may, or may not wait."""
    if not isinstance(error, DBAPIError):
        return False
    return getattr(error.orig, "sqlstate", None) == _LOCK_NOT_AVAILABLE


@dataclass(frozen=True, slots=True)
class Holder:
    """A session that holds, or waits for, the lock."""

    pid: int
    leads: bool
    application_name: str
    client: str | None
    since: datetime
    #: When it last asked for something; `None` where the role may not see that.
    active_at: datetime | None = None


def holders(connection: Connection, key: int) -> list[Holder]:
    """The leader and the standbys, leader first."""
    rows = connection.execute(
        text(
            """
            SELECT a.pid, l.granted, a.application_name, host(a.client_addr), a.backend_start,
                   a.query_start
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
