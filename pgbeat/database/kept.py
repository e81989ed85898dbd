"""Connections that a process keeps for itself, such as those by which it submits jobs."""

import atexit
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from psycopg.pq import TransactionStatus
from sqlalchemy import Connection
from sqlalchemy.engine import URL

from pgbeat.database import connections, forks
from pgbeat.database.watched import is_alive

#: Idle connections that are kept for each use.
_IDLE = 2


class _Use:
    """The connections for one use.

    SQLAlchemy's own pool would make, and reset, another `Connection` each time: that took a sixth
    of the processor's time in which a program submits a job.
    """

    def __init__(self, url: URL, name: str, connect_args: Mapping[str, Any]) -> None:
        self.url, self.connect_args = url, dict(connect_args)
        self.engine = connections.engine(url, name, connect_args, isolation_level="AUTOCOMMIT")
        self.idle: list[Connection] = []

    def take(self) -> Connection:
        """Returns an idle connection whose server is there, as far as known, or a new one."""
        while True:
            try:
                connection = self.idle.pop()
            except IndexError:
                return self.engine.connect()
            if is_alive(connections.driver(connection)):
                return connection
            connections.close(connection)

    def give_back(self, connection: Connection) -> None:
        """Keeps a connection for later, unless it is lost, in a transaction, or one too many."""
        if connection.closed or connection.invalidated:
            connection.close()
            return
        status = connections.driver(connection).pgconn.transaction_status
        if status != TransactionStatus.IDLE or len(self.idle) >= _IDLE:
            connections.close(connection)
            return
        if connection.in_transaction():  # for SQLAlchemy; Postgres has none open
            connection.rollback()
        self.idle.append(connection)


#: By the database, the name and the parameters of libpq.
_uses: dict[tuple[URL, str, str], _Use] = {}
#: No parameters of libpq.
_NONE: Mapping[str, Any] = {}
#: Those of the last database, by name: it takes as long to hash a URL as to take a connection.
_last: dict[str, _Use] = {}


@contextmanager
def kept(url: URL, name: str, connect_args: Mapping[str, Any] = _NONE) -> Iterator[Connection]:
    """Yields a connection in autocommit mode, one of a few that this process keeps for itself.

    `connect_args` are for libpq.
    """
    forks.check_process()
    use = _last.get(name)
    if use is None or use.url is not url or use.connect_args != connect_args:
        key = url, name, repr(sorted(connect_args.items()))
        # Another thread's, if that was quicker.
        use = _uses.get(key) or _uses.setdefault(key, _Use(url, name, connect_args))
        _last[name] = use
    connection = use.take()
    try:
        yield connection
    except Exception as error:
        if connections.is_lost(error):  # or read-only, as the default was when it was opened
            connections.close(connection)
        raise
    finally:
        use.give_back(connection)


def _disown() -> None:
    """Lets go of the parent's connections."""
    for use in _uses.values():
        for connection in use.idle:
            forks.disown(connection, [connections.driver(connection).pgconn.socket])
    _uses.clear()
    _last.clear()


forks.in_child(_disown)


@atexit.register
def _close() -> None:
    for use in _uses.values():
        while use.idle:
            connections.close(use.idle.pop())
