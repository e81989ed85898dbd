"""Connections whose waits end: the server answers, is known to be at work, or is given up.

A server that hangs keeps its sockets open, and its kernel still acknowledges packets, so neither
keepalives nor TCP's timeouts notice. But a statement may also take hours, or wait for a lock, so
its duration proves nothing. So whenever a session has been silent for some seconds, a second
connection asks the same server. Only if that gets no answer, or if the server can't write, pgbeat
gives up the session.
"""

import select
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from typing import Any, Self, TypeVar

import psycopg
from psycopg import generators, sql
from psycopg.abc import AdaptContext, Buffer
from psycopg.adapt import Loader
from psycopg.pq import ExecStatus, TransactionStatus

T = TypeVar("T")

#: Seconds after which a server that hangs is given up, unless the DSN has a `tcp_user_timeout`.
PATIENCE = 25
#: The shares of that: until the server is asked, for the second connection, and for its answer.
_SILENCE, _CONNECTING, _ANSWERING = 0.4, 0.3, 0.3
#: Seconds for an attempt to connect, unless the DSN says otherwise: to a server, and to each of
#: several.
_CONNECT, _CONNECT_EACH = 10, 3
_DEFAULTS = {
    # A server that vanished is noticed after the same time, whether its answer is awaited or
    # something is sent to it, instead of after the kernel's quarter of an hour. (libpq leaves them
    # out of Unix sockets; the last is in milliseconds, and overrides the number of probes.)
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": PATIENCE * 1000,
    "connect_timeout": _CONNECT,
}
#: Those besides where the DSN names several servers, of which one is the primary.
_OF_SEVERAL = {"connect_timeout": _CONNECT_EACH, "target_session_attrs": "read-write"}
#: What statements are written for, and answers read by; databases and roles may set it otherwise.
#: PgBouncer gives each client its own of these.
_STYLE = {"client_encoding": "UTF8", "DateStyle": "ISO", "standard_conforming_strings": "on"}
#: Zones whose clocks never change. Python reckons with times of others as those clocks show them.
_WITHOUT_CHANGES = {"UTC", "Etc/UTC", "GMT"}
#: Of each list of servers, the one that a connection reached last.
_last_good: dict[str, tuple[str, str]] = {}
#: Servers to try last, though they answer: they were left behind.
_avoided: set[tuple[str, str]] = set()


class _UtcLoader(Loader):
    """Reads times in UTC, whatever the session's zone."""

    def __init__(self, oid: int, context: AdaptContext | None = None) -> None:
        super().__init__(oid, context)
        read = psycopg.adapters.get_loader(oid, self.format)
        assert read is not None  # noqa: S101  (for the type)
        self._read = read(oid, context).load

    def load(self, data: Buffer) -> datetime:
        """Returns the time."""
        moment: datetime = self._read(data)
        return moment.astimezone(UTC)


class WatchedConnection(psycopg.Connection[Any]):
    """A connection that raises `psycopg.OperationalError`, closed, if its server hangs."""

    #: By which the server knows the session, its process and its start; `None` behind a pooler.
    session: tuple[int, bytes] | None = None
    _params: Mapping[str, Any]
    _patience = float(PATIENCE)
    #: When (`time.monotonic()`) to ask the server, if it is silent until then.
    _ask_at = 0.0
    #: Where its work stood when the server was asked last, if it could not write.
    _stuck: str | None = None

    @classmethod
    def open(cls, conninfo: str = "", **params: Any) -> Self:
        """Connects, with defaults for what libpq's parameters leave out.

        Of several servers, the one that was reached last is tried first. `assume_role`, which libpq
        doesn't know, is the role of the session's statements.
        """
        role = params.pop("assume_role", None)
        hosts = hosts_of(params)
        params = {**_DEFAULTS, **(_OF_SEVERAL if len(hosts) > 1 else {}), **params}
        key = repr(hosts)
        if len(hosts) > 1:
            good = _last_good.get(key)
            hosts.sort(key=lambda host: (host in _avoided, host != good))
            params["host"] = ",".join(host for host, _ in hosts)
            params["port"] = ",".join(port for _, port in hosts)
        watched = cls.connect(conninfo, **params)
        if len(hosts) > 1:
            _last_good[key] = (watched.info.host, str(watched.info.port))
        if watched.info.parameter_status("TimeZone") not in _WITHOUT_CHANGES:
            watched.adapters.register_loader("timestamptz", _UtcLoader)
        commands = watched._restyle()
        if role is not None:
            commands.append(sql.SQL("SET ROLE {}").format(sql.Identifier(role)))
        if commands:
            watched.set_autocommit(True)
            watched.execute(sql.SQL("; ").join(commands))
            watched.set_autocommit(False)
        watched._params = params
        watched._patience = int(params["tcp_user_timeout"]) / 1000 or PATIENCE
        return watched

    def _restyle(self) -> list[sql.Composable]:
        """Returns commands that set what the server reports to be otherwise than `_STYLE`."""
        return [
            sql.SQL("SET {} = {}").format(sql.Identifier(name), value)
            for name, value in _STYLE.items()
            if (self.info.parameter_status(name) or value).partition(",")[0] != value
        ]

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **kwargs: Any) -> T:
        """Waits for the server, as all of psycopg's statements do."""
        return super().wait(self._watched(gen), *args, **kwargs)

    def _watched(self, gen: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
        # psycopg resumes a generator whenever the socket is ready, and ten times a second.
        self.expect()
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if ready:
                    self.expect()
                elif self.is_silent:
                    self.check()
                wanted = gen.send(ready)
        except StopIteration as end:
            result: T = end.value
            return result

    def expect(self) -> None:
        """Notes that the server is at work from now on."""
        self._ask_at = time.monotonic() + _SILENCE * self._patience
        self._stuck = None

    @property
    def is_silent(self) -> bool:
        """Whether it is time to ask whether the server is alive."""
        return time.monotonic() >= self._ask_at

    def check(self) -> None:
        """Asks by a second connection whether the server is alive, when the session `is_silent`.

        Raises `psycopg.OperationalError`, and closes the connection, if it is not.
        """
        began, before = self._ask_at - _SILENCE * self._patience, self._stuck
        try:
            stuck = self._look()
        except _GoneError as gone:
            if readable([self.pgconn.socket], 0):  # meanwhile it has answered after all
                self.expect()
                return
            why = str(gone)
        else:
            self._ask_at, self._stuck = time.monotonic() + _SILENCE * self._patience, stuck
            if not stuck or stuck != before:
                return
            began -= _SILENCE * self._patience
            why = "it can't write, or waits for a synchronous standby"
        self.close()
        silence = time.monotonic() - began
        raise psycopg.OperationalError(f"the server has not answered for {silence:.0f} s: {why}")

    def _look(self) -> str:
        """Returns where the session's work stands if it can't write, else an empty text.

        Raises `_GoneError` if the server does not answer, or has no such session.
        """
        left_out = {"tcp_user_timeout", "target_session_attrs"}
        params = {key: value for key, value in self._params.items() if key not in left_out}
        params |= {
            "host": self.info.host,
            "port": self.info.port,
            "hostaddr": self.info.hostaddr or None,
            "application_name": "pgbeat probe",
            "connect_timeout": max(2, int(_CONNECTING * self._patience)),
        }
        try:
            probe = psycopg.connect(**params)
        except psycopg.errors.ConnectionTimeout:
            raise _GoneError("it accepts no new connection") from None
        except psycopg.Error:
            return ""  # it answers: there are too many connections, say
        with closing(probe):
            return self._state(probe)

    def _state(self, probe: "psycopg.Connection[Any]") -> str:
        pgconn, until = probe.pgconn, time.monotonic() + _ANSWERING * self._patience
        pgconn.send_query(_STATE % (self.session or (0, b"0")))
        pgconn.flush()
        try:
            while pgconn.is_busy():
                left = until - time.monotonic()
                if left <= 0 or not readable([pgconn.socket], left):
                    raise _GoneError("it does not answer a new connection either")
                pgconn.consume_input()
            result = pgconn.get_result()
        except psycopg.Error:
            return ""
        if self.session is None or result is None or result.status != ExecStatus.TUPLES_OK:
            return ""
        if not result.ntuples:  # another server has taken over the address
            raise _GoneError("it has ended the session")
        return (result.get_value(0, 0) or b"").decode()


class _GoneError(Exception):
    """Why a server is given up."""


# A commit that waits for a disk, or for a standby, waits in one place. Other work that writes, such
# as making an index, moves the end of the log between two looks.
_STATE = b"""
    SELECT CASE WHEN wait_event = 'SyncRep' THEN concat_ws(' ', wait_event, query_start)
                WHEN wait_event IN ('WALSync', 'WALWrite', 'WALInitSync', 'WALInitWrite')
                THEN concat_ws(' ', query_start, pg_current_wal_flush_lsn()) END
      FROM pg_stat_activity WHERE pid = %d AND extract(epoch FROM backend_start)::text = '%s'
"""


def avoid(raw: "psycopg.Connection[Any]", avoids: bool) -> None:
    """Notes whether to try a connection's server last, where a DSN names several."""
    server = raw.info.host, str(raw.info.port)
    if avoids:
        _avoided.add(server)
    else:
        _avoided.discard(server)


def is_direct(raw: "psycopg.Connection[Any]", *, configures: bool = False) -> bool:
    """Returns whether the connection leads to the server with no pooler in between.

    A server says at the start which process serves the session; a pooler, which has to route
    requests to cancel, gives its client another number instead. If it `configures`, a direct
    session compiles nothing (`jit`), and reads and writes values as the driver does, from the same
    round trip on.
    """
    raw.pgconn.send_query(_SESSION % (raw.info.backend_pid if configures else 0))
    result = raw.wait(generators.execute(raw.pgconn))[-1]
    if result.status != ExecStatus.TUPLES_OK:
        raise psycopg.errors.error_from_result(result)
    is_own = int(result.get_value(0, 0) or 0) == raw.info.backend_pid
    began = result.get_value(0, 1)
    if is_own and began and isinstance(raw, WatchedConnection):
        raw.session = raw.info.backend_pid, began
    return is_own


_SESSION = b"""
    SELECT pid, extract(epoch FROM backend_start)::text,
           CASE WHEN pid = %d THEN set_config('jit', 'off', false)
                                || set_config('IntervalStyle', 'postgres', false)
                                || set_config('array_nulls', 'on', false) END
      FROM pg_stat_get_activity(pg_backend_pid())
"""


def readable(files: Sequence[int], seconds: float) -> list[int]:
    """Waits up to so many seconds, and returns the file descriptors that can be read.

    Eventlet leaves only `select.select`, which takes no file above 1023, and none for which another
    greenlet waits. So it is used to wait, but not to look.
    """
    if hasattr(select, "poll"):
        poll = select.poll()
    elif seconds > 0:
        return select.select(files, [], [], seconds)[0]
    else:
        time.sleep(0)  # as elsewhere, other greenlets come first
        poll = sys.modules["eventlet.patcher"].original("select").poll()
    for file in files:
        poll.register(file, select.POLLIN)
    return [file for file, _ in poll.poll(seconds * 1000)]


def is_alive(connection: "psycopg.Connection[Any]") -> bool:
    """Returns whether an idle connection is good, as far as known without asking the server."""
    pgconn = connection.pgconn
    if connection.closed or pgconn.transaction_status == TransactionStatus.UNKNOWN:
        return False
    if not readable([pgconn.socket], 0):
        return True
    try:
        # First come the last words of a server that ends, then the end.
        pgconn.consume_input()
        pgconn.consume_input()
    except psycopg.OperationalError:
        return False
    return True


def hosts_of(params: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns the hosts and ports that libpq's parameters name."""
    hosts = str(params.get("host") or "").split(",")
    ports = str(params.get("port") or "").split(",")
    if len(ports) != len(hosts):
        ports = ports[:1] * len(hosts)
    return [(host, port or "5432") for host, port in zip(hosts, ports, strict=True)]
