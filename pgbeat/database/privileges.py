"""Tells what a session may do, before it tries."""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from pgbeat.database import connections, server_errors
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


def lacks(error: BaseException) -> bool:
    """Returns whether the schema lacks something for a statement, or the role a privilege."""
    return is_denied(error) or server_errors.code_of(error) == SchemaError.code


def is_refused(error: BaseException) -> bool:
    """Returns whether a session is good, and the statement can't be done now: try again later.

    The server can't do it, or an administrator may give what the schema or the role lacks.
    """
    return (server_errors.is_passing(error) or lacks(error)) and not connections.is_lost(error)


@contextmanager
def required() -> Iterator[None]:
    """Raises `SchemaError` where the schema lacks something, or the role a privilege for it."""
    try:
        yield
    except DBAPIError as error:
        if not lacks(error):
            raise
        problem, advice = "pgbeat's schema is not whole", "run `pgbeat migrate`"
        if is_denied(error):
            problem, advice = "the role may not use pgbeat's schema", _GRANT
        raise SchemaError(f"{problem}: {connections.first_line(error)}", advice=advice) from None


_GRANT = "as the schema's owner, run `pgbeat grant` for it, also after each upgrade"
_WRITES_JOBS = text("SELECT has_table_privilege('pgbeat.unfinished_jobs', 'INSERT')")
_MAY_READ = text("SELECT coalesce(has_table_privilege(to_regclass(:table), 'SELECT'), false)")
_MAY_CHANGE = text(
    """
    SELECT current_setting('transaction_read_only') = 'off'
           AND has_table_privilege(:table, 'INSERT') AND has_table_privilege(:table, 'UPDATE')
           AND has_table_privilege(:table, 'DELETE')
    """
)
