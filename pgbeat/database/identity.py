"""Tells databases apart by the server's own data, whatever the URL."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, text
from sqlalchemy.engine import URL

from pgbeat.config import place
from pgbeat.database import connections
from pgbeat.errors import ConfigError

Identity = tuple[int, str]

#: Key in a connection's `info`.
_KEY = "pgbeat_database"
#: What this process has read of each URL's database.
_known: dict[URL, Identity] = {}


def read(connection: Connection) -> Identity:
    """Returns what tells this database from every other one.

    It is the database's number on its server, and the microsecond at which that server was started:
    the same through every pooler and by every name of the host, and another one on a copy or
    a replica. It changes with a restart: compare two that were read at the same time.
    """
    number, started = connection.execute(_IDENTITY).one()
    return int(number), str(started)


# A caller's driver may not read times in the session's DateStyle.
_IDENTITY = text(
    "SELECT oid::bigint, extract(epoch FROM pg_postmaster_start_time())::text FROM pg_database "
    "WHERE datname = current_database()"
)


def cached(connection: Connection, *, again: bool = False) -> Identity:
    """Returns the database's identity, read once for each of the driver's connections."""
    if again or _KEY not in connection.info:
        connection.info[_KEY] = read(connection)
    identity: Identity = connection.info[_KEY]
    return identity


def forget() -> None:
    """Forgets what URLs lead to: the next check reads it again."""
    _known.clear()


def require(
    connection: Connection,
    urls: Sequence[URL],
    *,
    whose: str,
    connect_args: Mapping[str, Any] | None = None,
) -> None:
    """Checks that the open transaction is in the database of one of the URLs.

    A second connection, with `connect_args` for libpq, reads which databases these are, once for
    each URL in a process. `whose` says for the message whose they are: "the broker's".

    Raises:
        ConfigError: It is in another database.
        sqlalchemy.exc.OperationalError: None of the URLs can be reached.
    """
    if connection.dialect.name != "postgresql":
        raise ConfigError(
            f"the transaction is in a database of {connection.dialect.name}; it must be in "
            f"{whose}, {place(urls[0])}"
        )
    if is_one_of(connection, urls, connect_args):
        return
    name = connection.exec_driver_sql("SELECT current_database()").scalar_one()
    raise ConfigError(
        f"the transaction is in another database ({name!r}) than {whose}, {place(urls[0])}: what "
        f"it wrote there would reach no worker. Take a session of {whose} database"
    )


def is_one_of(
    connection: Connection, urls: Sequence[URL], connect_args: Mapping[str, Any] | None = None
) -> bool:
    """Returns whether the open transaction is in the database of one of the URLs.

    Raises `sqlalchemy.exc.OperationalError` if none of them can be reached.
    """
    mine = cached(connection)
    if any(_known.get(url) == mine for url in urls):
        return True
    # What is known may be from before a restart of the server.
    mine = cached(connection, again=True)
    for url in urls:
        with connections.engine(url, "pgbeat identity", connect_args).connect() as other:
            _known[url] = read(other)
        if _known[url] == mine:
            return True
    return False
