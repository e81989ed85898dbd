"""Uses a connection of another library in its open transaction, by SQLAlchemy."""

import os
from contextvars import ContextVar
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary, finalize

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.pq.abc import PGconn
from sqlalchemy import Connection, Engine
from sqlalchemy.engine import make_url

from pgbeat.database import connections


class _Guest(psycopg.Connection[Any]):
    """The same session as its host's, with psycopg's own adapters.

    It neither ends the transaction nor closes the connection: both are the host's.
    """

    def __init__(self, host: "psycopg.Connection[Any]") -> None:
        pgconn = host.pgconn
        handlers = pgconn.notice_handler, pgconn.notify_handler
        super().__init__(pgconn)
        pgconn.notice_handler, pgconn.notify_handler = handlers
        # A host that is forgotten, with its thread, closes the session by itself.
        finalize(host, _finish, pgconn, os.getpid()).atexit = False
        # Both would count the names of their statements from one.
        self.prepare_threshold = None

    def commit(self) -> None:
        """Leaves the transaction open."""

    def rollback(self) -> None:
        """Leaves the transaction open."""

    def close(self) -> None:
        """Leaves the connection open."""

    def __del__(self, *args: Any) -> None:
        """Needs no warning: the host closes the connection."""


def _finish(pgconn: PGconn, pid: int) -> None:
    """Closes the session, which is not a forked child's to close."""
    if os.getpid() == pid:
        pgconn.finish()


_arriving: ContextVar[_Guest] = ContextVar("pgbeat_guest")
_known: "WeakKeyDictionary[psycopg.Connection[Any], Connection]" = WeakKeyDictionary()


@cache
def _engine() -> Engine:
    return connections.engine(
        make_url("postgresql+psycopg://"),
        "pgbeat guest",
        creator=lambda: _arriving.get(),
        isolation_level=None,
        pool_reset_on_return=None,
    )


def connection(host: "psycopg.Connection[Any]") -> Connection:
    """Returns an SQLAlchemy connection in the open transaction of a psycopg connection.

    The host keeps its adapters, its handlers, and the only say in when the transaction ends.
    """
    if host.info.transaction_status == TransactionStatus.IDLE:
        # The host begins it, with its isolation level.
        host.execute("SELECT")
    known = _known.get(host)
    if known is None or known.closed or known.invalidated:
        token = _arriving.set(_Guest(host))
        try:
            known = _known[host] = _engine().connect()
        finally:
            _arriving.reset(token)
    return known
