"""Reads what may be a moment old from a replica, while it keeps up; else from the primary."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from math import inf
from typing import Any

from sqlalchemy import Connection, Engine, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError

from pgbeat.database import connections, sql
from pgbeat.database.watched import hosts_of

logger = logging.getLogger("pgbeat")

#: Seconds for which a replica that failed, or is too far behind, is left alone.
_AGAIN = 5.0
#: What a page can wait for: seconds to connect, and until a replica that hangs is given up.
_CONNECT, _PATIENCE = 2, 8
#: Key in a connection's `info`.
_BEHIND = "pgbeat_behind"

_POSITION = text(sql.load("replica.sql", "position"))
_LAG = text(sql.load("replica.sql", "lag"))

Primary = Callable[[], AbstractContextManager[Connection]]


class Replica:
    """The server of `pgbeat_read_url`; its methods are thread-safe. Without a URL, the primary."""

    def __init__(self, url: URL | None, most: float, name: str, **options: Any) -> None:
        """`most` is how many seconds it may be behind; `name` and `options` are an engine's."""
        self._most = most
        self._again_at = 0.0
        self._engine = None if url is None else _engine(url, name, options)
        #: How many seconds it was behind when it was asked last; infinite if it didn't say.
        self.lag: float | None = None
        #: Why it is not used; `None` if it is, or without a replica.
        self.trouble: str | None = None

    @contextmanager
    def session(self, primary: Primary) -> Iterator[Connection]:
        """Opens a connection in autocommit mode to the replica, or else to the primary.

        `primary` opens one to the primary, which is asked where it stands.
        """
        with ExitStack() as stack:
            connection = None
            if self._engine is not None and time.monotonic() >= self._again_at:
                connection = self._open(self._engine, stack, primary)
            if connection is None:
                yield stack.enter_context(primary())
                return
            try:
                yield connection
            except DBAPIError as error:
                if connections.is_lost(error) or connections.sqlstate(error) == _CONFLICT:
                    self._leave(f"the replica failed: {connections.first_line(error)}")
                raise

    def _open(self, engine: Engine, stack: ExitStack, primary: Primary) -> Connection | None:
        """Returns a connection that is not too far behind; `None` without one."""
        with primary() as asked:
            position = asked.execute(_POSITION).one()._asdict()
        try:
            connection = stack.enter_context(engine.connect())
            lag = connection.scalar(_LAG, position)
        except DBAPIError as error:
            self.lag = inf
            self._leave(f"the replica can't be read: {connections.first_line(error)}")
            return None
        self.lag = inf if lag is None else float(lag)
        if lag is None:
            self._leave(
                "the replica doesn't follow the primary, or doesn't say how far behind it is"
            )
            return None
        if self.lag > self._most:
            self._leave(f"the replica is {lag:.0f} s behind; pgbeat_read_lag is {self._most:g} s")
            return None
        if self.trouble is not None:
            logger.warning("Lists are read from the replica again")
            self.trouble = None
        connection.info[_BEHIND] = self.lag
        return connection

    def _leave(self, why: str) -> None:
        """Leaves it alone for some seconds, and logs why unless that is known."""
        if self.trouble is None:
            logger.warning("Lists are read from the primary: %s", why)
        self.trouble = f"lists are read from the primary: {why}"
        self._again_at = time.monotonic() + _AGAIN

    def dispose(self) -> None:
        """Closes the connections."""
        if self._engine is not None:
            self._engine.dispose()


def behind(connection: Connection) -> float | None:
    """Returns how many seconds a replica's connection was behind; `None` for the primary's."""
    lag: float | None = connection.info.get(_BEHIND)
    return lag


#: The SQLSTATE of a statement that was in the way of what the replica had to replay.
_CONFLICT = "40001"


def _engine(url: URL, name: str, options: dict[str, Any]) -> Engine:
    _, params = url.get_dialect()().create_connect_args(url)
    usual: dict[str, Any] = {"connect_timeout": _CONNECT, "tcp_user_timeout": _PATIENCE * 1000}
    if len(hosts_of(params)) > 1:
        usual["target_session_attrs"] = "prefer-standby"
    args = {key: value for key, value in usual.items() if key not in url.query}
    return connections.engine(url, name, args, isolation_level="AUTOCOMMIT", **options)
