"""Connections to Postgres: engines, the explicit transaction, what counts as a lost connection."""

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus
from sqlalchemy import Connection, Engine, create_engine, event, func, select, text
from sqlalchemy.engine import URL, ExceptionContext
from sqlalchemy.exc import DBAPIError, DisconnectionError
from sqlalchemy.pool import ConnectionPoolEntry, NullPool

from pgbeat.database.watched import WatchedConnection, is_alive, is_direct
from pgbeat.storable import TooDeep

logger = logging.getLogger("pgbeat")

#: Raised by SQLAlchemy or psycopg when the server is gone, is starting, or cut the connection.
LOST = (psycopg.OperationalError, psycopg.InterfaceError)


def engine(
    url: URL, name: str, connect_args: Mapping[str, Any] | None = None, **options: Any
) -> Engine:
    """Returns an engine whose sessions say `name` in pg_stat_activity.

    It has no pool unless `options` (those of SQLAlchemy's `create_engine`) ask for one. The driver
    prepares statements only in sessions that are certainly not shared: it names them by
    counting, and behind a pooler the same name may be another client's statement.

    Errors quote no values, which may be secrets: neither parameters nor the rows of a DETAIL.

    Transactions read what is committed, whatever the default of the server, the database or the
    role: under another isolation level they would have to be repeated. A session that is certainly
    its own compiles no statements (`jit`): with a month's partitions, that takes seconds for each.
    """
    new = create_engine(
        url,
        connect_args={"application_name": name, **(connect_args or {})},
        json_deserializer=_decode,
        hide_parameters=True,
        use_native_hstore=False,  # else each new engine asks the server for it
        **{"poolclass": NullPool, "isolation_level": "READ COMMITTED", **options},
    )
    event.listen(new, "do_connect", _connect)
    # A creator lends a session that stays somebody else's.
    event.listen(new, "connect", partial(_connected, is_lent="creator" in options))
    event.listen(new, "checkout", _check_socket)
    event.listen(new, "handle_error", _leave_out_values)
    return new


def _connect(
    dialect: Any, record: Any, conninfo: Sequence[str], params: Mapping[str, Any]
) -> WatchedConnection:
    return WatchedConnection.open(*conninfo, **params)


def _connected(
    raw: "psycopg.Connection[Any]", record: ConnectionPoolEntry, *, is_lent: bool
) -> None:
    record.info[_OWN] = is_direct(raw, configures=not is_lent)
    if not record.info[_OWN]:
        raw.prepare_threshold = None


def _leave_out_values(context: ExceptionContext) -> None:
    """Leaves out an error's detail, such as "Failing row contains …"; `diag` keeps it."""
    cause, error = context.original_exception, context.sqlalchemy_exception
    diagnosis = getattr(cause, "diag", None)
    if error is not None and diagnosis is not None and diagnosis.message_detail:
        with_values, primary = str(cause), diagnosis.message_primary
        cause.args = (primary,)
        error.args = (error.args[0].replace(with_values, primary),)


def _check_socket(raw: "psycopg.Connection[Any]", record: Any, proxy: Any) -> None:
    """Replaces a connection whose server is gone; a query would take a round trip."""
    if not is_alive(raw):
        raise DisconnectionError


def now(connection: Connection) -> datetime:
    """Returns the database's clock, at the start of the open transaction."""
    moment: datetime = connection.execute(select(func.now())).scalar_one()
    return moment.astimezone(UTC)


def clock(connection: Connection) -> datetime:
    """Returns the database's clock at this moment, also in a transaction."""
    moment: datetime = connection.execute(select(func.clock_timestamp())).scalar_one()
    return moment.astimezone(UTC)


def isolate(connection: Connection) -> bool:
    """Makes statements outside a transaction read what is committed, as inside one.

    Returns whether that is so now. Where the session is others' too, the default of the server, the
    database or the role stays: under another one, each statement needs a transaction.
    """
    if has_own_session(connection):
        configure(connection, {"default_transaction_isolation": "read committed"})
        return True
    return bool(connection.scalar(_DEFAULT_ISOLATION) == "read committed")


_DEFAULT_ISOLATION = text("SHOW default_transaction_isolation")


def driver(connection: Connection) -> "psycopg.Connection[Any]":
    """Returns the driver's connection beneath SQLAlchemy's."""
    raw: Any = connection.connection.driver_connection
    return raw  # type: ignore[no-any-return]


def is_autocommit(connection: Connection) -> bool:
    """Returns whether a connection, of whatever driver, commits each statement."""
    return bool(getattr(connection.connection.dbapi_connection, "autocommit", False))


def close(connection: Connection) -> None:
    """Closes a connection at once, whatever it is doing: the server rolls back."""
    if connection.closed:
        return
    try:
        driver(connection).close()
        connection.invalidate()
    except Exception:
        logger.debug("The connection was gone before it was closed", exc_info=True)
    connection.close()


def sqlstate(error: BaseException) -> str:
    """Returns an error's SQLSTATE; an empty text if it has none."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    return getattr(cause, "sqlstate", None) or ""


def is_lost(error: BaseException) -> bool:
    """Returns whether an error means that another connection is needed, not another statement.

    So it is with a server that refuses to write, too: it is a standby, or has been replaced, and
    the next connection may lead to the primary. In a transaction that is read-only by itself,
    `server_errors.is_read_only` must be asked first.
    """
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return True
    state = sqlstate(error)
    # A read-only server; a session that was idle in a transaction, or was in it, too long.
    if state in {"25006", "25P03", "25P04"}:
        return True
    if not isinstance(error.orig if isinstance(error, DBAPIError) else error, LOST):
        return False
    # Statement errors of the operational classes keep the connection: 55P03 lock timeout,
    # 53xxx resources, 57014 cancelled. Those with no code never reached the server.
    return not state or state.startswith("08") or state in _ENDED


#: The session was ended, or never began: the server shuts down, crashed, starts, has too many
#: connections, or dropped the database; the session was idle for too long.
_ENDED = {"57P01", "57P02", "57P03", "57P04", "57P05", "53300"}


def is_read_only(connection: Connection) -> bool:
    """Returns whether the server refuses to write: it is a standby, or its default is so."""
    return bool(connection.scalar(_READ_ONLY) == "on")


_READ_ONLY = text("SHOW transaction_read_only")


def is_refused(error: DBAPIError) -> bool:
    """Returns whether the database refuses the values: by a constraint, or as no such value."""
    return sqlstate(error)[:2] in {"22", "23"}


def first_line(error: BaseException) -> str:
    """Returns what the server or the driver says, without its hints."""
    cause = getattr(error, "orig", None) or error
    message = getattr(getattr(cause, "diag", None), "message_primary", None) or str(cause)
    return (message.strip().splitlines() or [type(cause).__name__])[0]


def has_own_session(connection: Connection) -> bool:
    """Returns whether the session is known to be this connection's alone.

    That is so without a pooler, and after `note_own_session`.
    """
    return bool(connection.info.get(_OWN))


def note_own_session(connection: Connection) -> None:
    """Notes that the session is this connection's alone, though a pooler may stand in between."""
    connection.info[_OWN] = True


def configure(connection: Connection, settings: Mapping[str, str]) -> None:
    """Sets server settings for what this connection (in autocommit mode) does.

    Where the session is its own, they are the session's. Behind a pooler that would change other
    clients' transactions: there each `db.transaction` sets them for itself, and a statement outside
    of one goes without.
    """
    if has_own_session(connection):
        connection.execute(_SET_CONFIG, {"settings": _encode(settings), "is_local": False})
    else:
        connection.info[_LOCAL] = {**connection.info.get(_LOCAL, {}), **settings}


def configure_transaction(connection: Connection, more: Mapping[str, str] | None = None) -> None:
    """Applies the settings of `configure`, unless the session has them, to the open transaction.

    Applies `more` settings, too.
    """
    settings = {**connection.info.get(_LOCAL, {}), **(more or {})}
    if settings:
        connection.execute(_SET_CONFIG, {"settings": _encode(settings), "is_local": True})


def prepare_session(connection: Connection, silence: float = 0.0) -> None:
    """Makes the server notice soon that this session's owner is gone.

    A vanished host is noticed by keepalives, a dead client of a waiting statement by the check
    interval, a frozen process by its silence (seconds; 0: never): the session ends, and with it
    its locks.
    Its statements outside a transaction read what is committed, as those inside do.
    In a transaction, where publishing to a broker elsewhere may take its time, a minute is given.

    Behind a pooler, whose sessions are other clients' too, each `transaction` sets those of
    these settings that a transaction can have.
    """
    configure(
        connection,
        {
            **UNLIMITED,
            "lock_timeout": "0",
            "jit": "off",
            "idle_in_transaction_session_timeout": f"{int(max(silence, 60) * 1000)}",
        },
    )
    if not has_own_session(connection):
        return
    configure(
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
        configure(connection, {"client_connection_check_interval": "500"})


#: The settings of what may take its time, however soon the role's statements must end. A Postgres
#: older than 17 doesn't know the second.
UNLIMITED = {"statement_timeout": "0", "transaction_timeout": "0"}
#: Keys in a connection's `info`.
_OWN, _LOCAL = "pgbeat_own_session", "pgbeat_local_settings"
_SET_CONFIG = text(
    "SELECT set_config(key, value, :is_local) FROM json_each_text(CAST(:settings AS json)) "
    "WHERE current_setting(key, true) IS NOT NULL"
)


@contextmanager
def transaction(connection: Connection) -> Iterator[Connection]:
    """Begins a transaction in autocommit mode; commits it, or rolls back if the block raises.

    The leader's connection lives in autocommit mode, so that a look at what is due costs one round
    trip; what must be atomic says so with this block.
    """
    connection.execute(_BEGIN)
    try:
        configure_transaction(connection)
        yield connection
    except BaseException:
        _roll_back(connection)
        raise
    connection.execute(_COMMIT)


def _roll_back(connection: Connection) -> None:
    """Rolls back, unless the connection is gone.

    An interruption, such as a time limit, leaves a connection in the midst of a statement: it is
    closed, and the server rolls back.
    """
    if connection.closed or connection.invalidated:
        return
    raw = connection.connection.driver_connection
    if raw is None or raw.closed:
        return
    if driver(connection).info.transaction_status == TransactionStatus.ACTIVE:
        raw.close()
        connection.invalidate()
    else:
        connection.execute(_ROLLBACK)


#: The styles in which psycopg reads times and intervals.
_READABLE = {"DateStyle": "ISO", "IntervalStyle": "postgres"}


@contextmanager
def readable(connection: Connection) -> Iterator[None]:
    """Gives a caller's open transaction styles that its driver reads, until the block ends."""
    info: Any = getattr(driver(connection), "info", None)  # asyncpg has none, and needs none
    others: dict[str, str] = {}
    for name, style in _READABLE.items() if info is not None else ():
        value = info.parameter_status(name) or style
        if value.partition(",")[0] != style:
            others[name] = value
    if not others:
        yield
        return
    ours = {name: _READABLE[name] for name in others}
    connection.execute(_SET_CONFIG, {"settings": _encode(ours), "is_local": True})
    try:
        yield
    finally:
        if info.transaction_status == TransactionStatus.INTRANS:
            connection.execute(_SET_CONFIG, {"settings": _encode(others), "is_local": True})


@contextmanager
def savepoint(connection: Connection) -> Iterator[None]:
    """Undoes what the block wrote in the open transaction if it raises an error."""
    connection.execute(_SAVEPOINT)
    try:
        yield
    except Exception as error:
        if not is_lost(error):
            connection.execute(_ROLLBACK_TO)
        raise
    connection.execute(_RELEASE)


_SAVEPOINT, _ROLLBACK_TO, _RELEASE = (
    text(f"{verb} SAVEPOINT pgbeat") for verb in ("", "ROLLBACK TO", "RELEASE")
)
#: Begins a transaction that doesn't depend on the session's default isolation level.
BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED"
_BEGIN, _COMMIT, _ROLLBACK = text(BEGIN), text("COMMIT"), text("ROLLBACK")


def recordset(batch: Iterable[Any]) -> str:
    """Returns named tuples as one JSON document, for `json_to_recordset`.

    One parameter for a batch of any size: several times quicker to send than arrays, whose every
    quote the driver escapes by itself. Times and UUIDs go as text; what is `None` is left out, and
    arrives as NULL.
    """
    return _encode(
        [{k: v for k, v in zip(row._fields, row, strict=True) if v is not None} for row in batch]
    )


def _decode(data: bytes | str) -> Any:
    """Decodes a JSON value of the driver's; most rows' arguments are empty.

    No value may keep others from being read.
    """
    if data == b"{}":
        return {}
    if data == b"[]":
        return []
    try:
        try:
            return json.loads(data)
        except ValueError:  # more digits than Python turns into an int
            return json.loads(data, parse_int=float)
    except RecursionError:
        return TooDeep()


_encode = json.JSONEncoder(default=str).encode
