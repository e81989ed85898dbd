"""Names that no address can end with are refused by the database, too."""

from itertools import product

import psycopg
import pytest

from tests.support.command_line import Sql

#: A table, and what else a row needs.
TABLES = [
    ("schedules", "task, every", "'tests.add', '5 s'"),
    ("calendars", "definition", "'{}'"),
    ("templates", "task", "'tests.add'"),
    ("webhooks", "url, events, secret", "'https://a.test/', '{job.failed}', 'x'"),
    ("lanes", "max_running", "1"),
]


def test_dots_are_no_name(sql: Sql) -> None:
    for (table, columns, values), name in product(TABLES, (".", "..")):
        with pytest.raises(psycopg.errors.CheckViolation, match="name"):
            sql(f"INSERT INTO pgbeat.{table} (name, {columns}) VALUES (%s, {values})", name)
