"""Tells what a session may do, before it tries."""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from pgbeat.database import connections
from pgbeat.errors import SchemaError


def may_change(connection: Connection, table: str) -> bool:
    """Returns whether the server and the role allow changes to the rows of a table of pgbeat's."""
    return bool(connection.scalar(_MAY_CHANGE, {"table": f"pgbeat.{table}"}))


def may_read(connection: Connection, table: str) -> bool:
    """Returns whether the role may read all columns of a table of pgbeat's, if it is there."""
    return bool(connection.scalar(_MAY_READ, {"table": f"pgbeat.{table}"}))


def submits_as_owner(connection: Connection) -> bool:
    """Returns whether the role makes jobs by functions, since it may not write them (0002)."""
    return not connection.scalar(_WRITES_JOBS)


def is_denied(error: BaseException) -> bool:
    """Returns whether the role lacks a privilege for a statement."""
    return connections.sqlstate(error) == "42501"


@contextmanager
def required() -> Iterator[None]:
    """Raises `SchemaError` where the role lacks a privilege for the schema, as after an upgrade."""
    try:
        yield
    except DBAPIError as error:
        if not is_denied(error):
            raise
        raise SchemaError(
            f"the role may not use pgbeat's schema: {connections.first_line(error)}",
            advice="as the schema's owner, run `pgbeat grant` for it, also after each upgrade",
        ) from None


_WRITES_JOBS = text("SELECT has_table_privilege('pgbeat.unfinished_jobs', 'INSERT')")
_MAY_READ = text("SELECT coalesce(has_table_privilege(to_regclass(:table), 'SELECT'), false)")
_MAY_CHANGE = text(
    """
    SELECT current_setting('transaction_read_only') = 'off'
           AND has_table_privilege(:table, 'INSERT') AND has_table_privilege(:table, 'UPDATE')
           AND has_table_privilege(:table, 'DELETE')
    """
)
