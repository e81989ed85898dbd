"""Opens sessions that are one client's alone, by `direct_url` behind a transaction-mode pooler.

Whatever holds a session's lock, listens, or changes its settings needs one.
"""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Engine, text
from sqlalchemy.engine import URL

from pgbeat.config import place
from pgbeat.database import connections, identity
from pgbeat.errors import ConfigError


def connect(
    url: URL,
    name: str,
    *,
    direct_url: URL | None,
    purpose: str,
    connect_args: Mapping[str, Any] | None = None,
    thorough: bool = False,
) -> Connection:
    """Opens a connection, in autocommit mode, whose session is its own.

    It goes to `url`, or to `direct_url` where a transaction-mode pooler answers at `url`.
    `purpose` is what the session is for, as a sentence's beginning: "Beat needs". If `thorough`, a
    second connection makes sure even where the server seems to answer itself.

    Raises:
        ConfigError: A pooler answers at `url`, and `direct_url` is not set, leads to a pooler too,
            or to another database.
    """
    engine = connections.engine(url, name, connect_args)
    connection = _open(engine)
    try:
        if keeps_session(connection, engine, thorough=thorough):
            return connection
        if direct_url is None:
            raise ConfigError(
                f"a transaction-mode pooler answers at {place(url)}, and gives each transaction "
                f"another session. {purpose} its own session, for its lock and its "
                "notifications: set pgbeat_url to the server's own DSN or, with pgbeat's "
                "transport, its DSN in broker_transport_options as direct_url"
            )
        engine = connections.engine(direct_url, name, connect_args)
        direct = _open(engine)
        try:
            check_direct(connection, direct, engine)
        except BaseException:
            connections.close(direct)
            raise
    except BaseException:
        connections.close(connection)
        raise
    connections.close(connection)
    return direct


def keeps_session(connection: Connection, engine: Engine, *, thorough: bool = False) -> bool:
    """Returns whether the connection keeps its session; `engine` opens a second one to tell."""
    if thorough or not connections.has_own_session(connection):
        other = _open(engine)
        try:
            if is_shared(connection, other):
                return False
        finally:
            connections.close(other)
        connections.note_own_session(connection)
    return True


def check_direct(connection: Connection, direct: Connection, engine: Engine) -> None:
    """Raises `ConfigError` unless `direct`, a connection of that engine, is direct.

    It must keep its session, and lead to the same database as `connection` through the pooler.
    """
    url = engine.url
    if not keeps_session(direct, engine):
        raise ConfigError(
            f"direct_url: a transaction-mode pooler answers at {place(url)} too; it must be the "
            "server's own DSN"
        )
    if identity.read(connection) != identity.read(direct):
        raise ConfigError(
            f"direct_url: {place(url)} is not the database that the pooler leads to; it must be "
            "the same one, without the pooler"
        )


def is_shared(one: Connection, other: Connection) -> bool:
    """Returns whether a transaction-mode pooler stands before the server.

    Behind one, two connections (in autocommit mode) that take turns meet the same session, or one
    of them meets several. Session locks, LISTEN, prepared statements and session settings get lost
    behind it, or reach another client's transactions.
    """
    seen: dict[Connection, set[int]] = {one: set(), other: set()}
    # Such that neither a stack nor a queue of sessions gives each its own again, and several times:
    # other clients take turns too.
    for connection in (one, other, other, one, one, other) * 4:
        seen[connection].add(connection.execute(_PID).scalar_one())
    return len(seen[one]) > 1 or len(seen[other]) > 1 or seen[one] == seen[other]


_PID = text("SELECT pg_backend_pid()")


def _open(engine: Engine) -> Connection:
    return engine.connect().execution_options(isolation_level="AUTOCOMMIT")
