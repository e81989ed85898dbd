"""Connects to a database, and writes its DSN as the URLs that Celery and SQLAlchemy want."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import psycopg
from psycopg.pq import ExecStatus
from sqlalchemy import Connection
from sqlalchemy.engine import URL

from pgbeat.config import postgres_url
from pgbeat.database import connections
from pgbeat.testing.databases import in_database
from tests.support.rows import Sql


def _url(dsn: str) -> URL:
    url = postgres_url(dsn)
    return url if url.password else url._replace(password=None)


def broker_url(dsn: str) -> str:
    """Returns the DSN as kombu's SQLAlchemy transport wants it."""
    return f"sqla+{sqlalchemy_url(dsn)}"


def sqlalchemy_url(dsn: str) -> str:
    """Returns the DSN with SQLAlchemy's name of the driver."""
    return _url(dsn).render_as_string(hide_password=False)


@contextmanager
def connected(dsn: str) -> Iterator[Connection]:
    """Opens a connection in autocommit mode."""
    engine = connections.engine(postgres_url(dsn), "tests", isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        yield connection


@contextmanager
def copied(server: str, template: str) -> Iterator[str]:
    """Makes a copy of a database to which nobody is connected; yields the copy's DSN."""
    name = f"pgbeat_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server, autocommit=True) as admin:
        admin.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
        yield in_database(server, name)
        admin.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


class Role(NamedTuple):
    """A role of the server, and a DSN that uses it."""

    name: str
    dsn: str


@contextmanager
def ordinary(dsn: str, sql: Sql) -> Iterator[Role]:
    """Makes a role without permissions, dropped at the end."""
    name = f"ordinary_{uuid.uuid4().hex[:12]}"
    sql(f"CREATE ROLE {name}")
    yield Role(name, f"{dsn}{'&' if '?' in dsn else '?'}options=-crole%3D{name}")
    sql(f"RESET ROLE; DROP OWNED BY {name}; DROP ROLE {name}")


@contextmanager
def statements(dsn: str) -> Iterator[Sql]:
    """Opens a session, autocommitted; yields what runs a statement in it and returns its rows."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield partial(executed, connection)


def executed(connection: Any, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
    """Runs a statement, with parameters by position or one mapping of them; returns its rows."""
    is_mapping = parameters and isinstance(parameters[0], dict)
    return rows_of(
        connection.execute(statement, parameters[0] if is_mapping else parameters or None)
    )


def rows_of(cursor: psycopg.Cursor[Any]) -> list[tuple[Any, ...]]:
    """Returns the rows of a statement; none of one that yields none, such as an UPDATE.

    A row may have no columns (`SELECT FROM …`): psycopg describes such a result as none at all.
    """
    result = cursor.pgresult
    return cursor.fetchall() if result and result.status == ExecStatus.TUPLES_OK else []


def end_sessions(sql: Sql, name: str) -> bool:
    """Ends the sessions in the test's database with a name like that; returns if there were any."""
    query = (
        "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
        "WHERE datname = current_database() AND application_name LIKE %s"
    )
    return bool(sql(query, name))
