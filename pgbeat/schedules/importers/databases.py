"""Opens the databases that other schedulers keep their schedules in."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, MetaData, Table, create_engine
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchTableError
from sqlalchemy.pool import NullPool
from sqlalchemy.schema import Column

from pgbeat import config
from pgbeat.database import connections
from pgbeat.errors import ConfigError, PgbeatError


@contextmanager
def connected(url: str | URL) -> Iterator[Connection]:
    """Yields a connection to any database that SQLAlchemy can open.

    Raises `PgbeatError`, also for errors of the database in the block.
    """
    parsed = _parsed(url)
    try:
        if config.is_postgres(parsed.render_as_string(hide_password=False)):
            engine = connections.engine(
                parsed.set(drivername="postgresql+psycopg"), "pgbeat import"
            )
        else:
            engine = create_engine(parsed, poolclass=NullPool, hide_parameters=True)
        with engine.connect() as connection:
            yield connection
    except ArgumentError as error:
        raise ConfigError(f"the URL {place(parsed)} can't be used: {error}") from None
    except ModuleNotFoundError as error:
        raise PgbeatError(
            f"reading {place(parsed)} needs the package {error.name}, which is not installed"
        ) from None
    except DBAPIError as error:
        raise PgbeatError(f"can't read {place(parsed)}: {connections.first_line(error)}") from None


def _parsed(url: str | URL) -> URL:
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise ConfigError(
            "the database URL can't be parsed; expected for example "
            "mysql+pymysql://user:password@host:3306/name or sqlite:///file.db"
        ) from None
    name = parsed.database
    is_file = parsed.get_backend_name() == "sqlite" and name and not name.startswith("file:")
    if name and is_file and not Path(name).exists():
        raise PgbeatError(f"there is no file {name}")  # connecting would create it
    return parsed


def place(url: str | URL) -> str:
    """Returns the database's location for a sentence, without a password."""
    parsed = make_url(url)
    if config.is_postgres(parsed.render_as_string(hide_password=False)):
        return f"database {config.place(parsed)}"
    return config.redacted(parsed)


def reflected(
    connection: Connection,
    schema: str | None,
    name: str,
    *columns: Column[Any],
    hint: str = "--from names another database, --schema another schema",
) -> Table:
    """Returns the table as it is in the database: older versions have fewer columns.

    `columns` are those whose types are others here. Raises `PgbeatError` if there is no table.
    """
    options: dict[str, Any] = {"schema": schema, "autoload_with": connection, "resolve_fks": False}
    try:
        return Table(name, MetaData(), *columns, **options)
    except NoSuchTableError:
        full = f"{schema}.{name}" if schema else name
        raise PgbeatError(
            f"there is no table {full} in {place(connection.engine.url)}; {hint}"
        ) from None
