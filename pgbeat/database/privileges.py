"""Tells what a session may do, before it tries."""

from sqlalchemy import Connection, text


def may_change(connection: Connection, table: str) -> bool:
    """Returns whether the server and the role allow changes to the rows of a table of pgbeat's."""
    return bool(connection.scalar(_MAY_CHANGE, {"table": f"pgbeat.{table}"}))


_MAY_CHANGE = text(
    """
    SELECT current_setting('transaction_read_only') = 'off'
           AND has_table_privilege(:table, 'INSERT') AND has_table_privilege(:table, 'UPDATE')
           AND has_table_privilege(:table, 'DELETE')
    """
)
