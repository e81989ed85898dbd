"""Refuses servers that were left behind, and databases that are copies.

After a failover, the old primary may thaw and take writes that will be lost. It has the new
one's system identifier and an older timeline. A process remembers the latest timeline that it has
seen of each system, and looks every few seconds where a new connection leads: to each host of its
URL. It gives up a session on an older timeline, and connects again. Processes that it forks share
what it remembers.

A restored dump has another system identifier than the servers that it remembers
(`pgbeat.servers`). Nobody leads or consumes there until a person has said what it is.
"""

import mmap
import struct
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import psycopg
from sqlalchemy import Connection, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError

from pgbeat.database import connections, forks, sql
from pgbeat.database.watched import WatchedConnection, avoid, hosts_of
from pgbeat.errors import Fenced

#: Seconds for the connection of a look, and after which servers are looked at once more.
_TIMEOUT, _AGAIN = 2, 15.0

_SQL = "fence.sql"
_LOOK = sql.load(_SQL, "server")
_SERVER, _KNOWN, _NOTE = text(_LOOK), text(sql.load(_SQL, "known")), text(sql.load(_SQL, "note"))
_HAS_SERVERS = text("SELECT to_regclass('pgbeat.servers') IS NOT NULL")


class Server(NamedTuple):
    """A server as the fence sees it; fields are `None` where it doesn't say."""

    system: int | None
    timeline: int | None


#: Key in a connection's `info`.
_KEY = "pgbeat_server"


class _Timelines:
    """The latest timeline seen of each system, in memory that forked processes share."""

    _SLOT, _SLOTS = struct.Struct("=qq"), 16

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, self._SLOT.size * self._SLOTS)

    def latest(self, system: int) -> int:
        """Returns the latest timeline; 0 if none was seen."""
        for known, timeline in self._SLOT.iter_unpack(self._memory[:]):
            if known == system:
                return int(timeline)
        return 0

    def note(self, system: int, timeline: int) -> None:
        """Notes that a timeline was seen. Systems are few: more than 16 are forgotten."""
        for slot, (known, latest) in enumerate(self._SLOT.iter_unpack(self._memory[:])):
            if known in (system, 0):
                if timeline > latest:
                    at = slot * self._SLOT.size
                    self._memory[at : at + self._SLOT.size] = self._SLOT.pack(system, timeline)
                return


_timelines = _Timelines()


def read(connection: Connection) -> Server:
    """Returns the connection's server, and remembers it."""
    return _look(connection)[1]


def _look(connection: Connection) -> tuple[bool, Server]:
    """Returns whether the server refuses to write, and which one it is."""
    try:
        is_read_only, *values = connection.execute(_SERVER).one()
    except DBAPIError as error:
        if connections.is_lost(error):
            raise
        # A service that hides the rest.
        is_read_only, values = connections.is_read_only(connection), [None, None]
    server = connection.info[_KEY] = Server(*values)
    _remember(server)
    return is_read_only, server


def _remember(server: Server) -> None:
    if server.system is not None and server.timeline is not None:
        _timelines.note(server.system, server.timeline)


def require_newest(connection: Connection, connect_args: Mapping[str, Any] | None = None) -> None:
    """Raises `psycopg.OperationalError` for a server that refuses to write, or was left behind.

    The connection, in autocommit mode, is new. If its URL names several servers, looks at them all
    before, with `connect_args` for libpq, unless that was done a moment ago.
    """
    _look_at_several(connection.engine.url, connect_args)
    is_read_only, _ = _look(connection)
    if is_read_only:
        raise psycopg.OperationalError(
            "the server is read-only: it is a standby, or its transactions are by default"
        )
    avoid(connections.driver(connection), is_left_behind(connection))
    require_not_left_behind(connection)


def timeline(connection: Connection) -> int | None:
    """Returns the timeline of the connection's server, if it was looked at and says."""
    server: Server | None = connection.info.get(_KEY)
    return None if server is None else server.timeline


def require_not_left_behind(connection: Connection) -> None:
    """Raises `psycopg.OperationalError` if the server `is_left_behind`."""
    if is_left_behind(connection):
        server = connection.info[_KEY]
        raise psycopg.OperationalError(
            f"the server was left behind: it is on timeline {server.timeline}, and another one "
            f"with its system identifier ({server.system}) is on "
            f"{_timelines.latest(server.system)}; if it is the primary all the same, restart this"
        )


def is_left_behind(connection: Connection) -> bool:
    """Returns whether a newer timeline than the server's was seen since. Executes no statement."""
    server: Server | None = connection.info.get(_KEY)
    if server is None or server.system is None or server.timeline is None:
        return False
    return _timelines.latest(server.system) > server.timeline


def require_original(connection: Connection) -> None:
    """Raises `Fenced` if the database was made on another system, for no known reason.

    `require_newest` was called with the connection.
    """
    server = connection.info.get(_KEY)
    if server is None or server.system is None or not connection.scalar(_HAS_SERVERS):
        return
    is_noted, is_known = connection.execute(_KNOWN, {"system": server.system}).one()
    if is_noted and not is_known:
        raise Fenced(
            "the database is a copy, or was moved: its server's system identifier "
            f"({server.system}) is new to it",
            advice="if it was restored, or its original still works, run `pgbeat fence raise`; if "
            "it was moved with all that it had done, run `pgbeat fence accept`",
        )


def note(connection: Connection) -> int | None:
    """Notes in the database that it lives on the connection's server.

    Returns the latest timeline before, if it has lived on this system on older ones only: the
    server was promoted, or restored to a point in time.
    """
    server = connection.info.get(_KEY) or read(connection)
    if server.system is None or server.timeline is None or not connection.scalar(_HAS_SERVERS):
        return None
    before: int | None = connection.scalar(
        _NOTE, {"system": server.system, "timeline": server.timeline}
    )
    return before


class Lookout:
    """A thread that looks every few seconds where new connections to a URL lead.

    A process that was forked by one with a lookout needs none.
    """

    _running = 0
    _parent_has_one = False

    def __init__(
        self, url: URL, interval: float, connect_args: Mapping[str, Any] | None = None
    ) -> None:
        """`interval` is seconds."""
        self._url, self._interval, self._connect_args = url, interval, connect_args
        self._stopped = threading.Event()
        if not Lookout._parent_has_one:
            Lookout._running += 1
            threading.Thread(target=self._run, name="pgbeat fence", daemon=True).start()

    def stop(self) -> None:
        """Ends the thread, soon."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(self._interval):
            look_around(self._url, self._connect_args)
        Lookout._running -= 1


def _in_child() -> None:
    Lookout._parent_has_one = Lookout._parent_has_one or Lookout._running > 0


forks.in_child(_in_child)

#: When each URL of several servers was looked at, by the monotonic clock.
_looked_at: dict[URL, float] = {}


def _look_at_several(url: URL, connect_args: Mapping[str, Any] | None) -> None:
    if isinstance(url.query.get("host"), tuple) and (
        time.monotonic() > _looked_at.get(url, -_AGAIN) + _AGAIN
    ):
        _looked_at[url] = time.monotonic()
        look_around(url, connect_args)


def look_around(url: URL, connect_args: Mapping[str, Any] | None = None) -> None:
    """Remembers the timeline of each server that the URL names, as far as it answers."""
    for params in _each_host(url, connect_args or {}):
        try:
            with WatchedConnection.open(**params, autocommit=True) as connection:
                row = connection.execute(_LOOK.encode()).fetchone()
        except psycopg.Error:
            continue
        if row is not None:
            _remember(Server(*row[1:]))


def _each_host(url: URL, connect_args: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    _, params = url.get_dialect()().create_connect_args(url)
    params = {**params, **connect_args, "application_name": "pgbeat fence"}
    params["connect_timeout"] = _TIMEOUT
    for name in "target_session_attrs", "assume_role", "prepare_threshold":
        params.pop(name, None)
    for host, port in hosts_of(params):
        yield {**params, **({"host": host} if host else {}), "port": port}
