"""Session advisory locks, by which a leader leads, and workers and reservations are alive."""

import time
from dataclasses import dataclass
from datetime import datetime

import psycopg
from psycopg.pq import ExecStatus, TransactionStatus
from sqlalchemy import Connection, text

from pgbeat.database import connections, sql
from pgbeat.database.watched import WatchedConnection, readable

#: Seconds between two looks whether the server has been silent for long.
_LOOK = 1.0


def acquire(connection: Connection, key: int, wait: float) -> bool:
    """Waits up to `wait` seconds for the session lock; returns whether it is held now.

    The wait is inside the server, which hands the lock over the moment its holder's session ends.
    The server still waits when the time is up: until it grants the lock, the connection may only
    call this again. Raises `psycopg.OperationalError` when the connection is lost.
    """
    driver = connections.driver(connection)
    request = driver.pgconn
    if request.transaction_status != TransactionStatus.ACTIVE:
        if isinstance(driver, WatchedConnection):
            driver.expect()
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
        left = deadline - time.monotonic()
        if readable([driver.fileno()], max(0.0, min(left, _LOOK))):
            request.consume_input()
        elif isinstance(driver, WatchedConnection) and driver.is_silent:
            driver.check()  # the holder may lead for weeks, or this server may hang
        elif left <= _LOOK:
            return False


@dataclass(frozen=True, slots=True)
class LockHolder:
    """A session that holds, or waits for, the lock."""

    pid: int
    leads: bool
    application_name: str
    client: str | None
    #: When it connected, and last asked for something; `None` where the role may not see that.
    since: datetime | None
    active_at: datetime | None = None


#: The rows of `pg_locks` of the lock `:leader_key`, by holder and waiter.
OF_LEADER = sql.load("advisory_locks.sql", "of_leader")
_HOLDERS = text(sql.load("advisory_locks.sql", "holders"))


def holders(connection: Connection, key: int) -> list[LockHolder]:
    """Returns the leader and the standbys, leader first."""
    return [LockHolder(*row) for row in connection.execute(_HOLDERS, {"leader_key": key})]
