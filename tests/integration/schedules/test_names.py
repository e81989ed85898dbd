"""Names that no address can end with are refused, whoever gives them."""

from itertools import product
from typing import Any

import psycopg
import pytest

from tests.support.command_line import Sql
from tests.support.web import Web, problem

#: By the API: path and body.
ASKED: list[tuple[str, dict[str, Any]]] = [
    ("/admin/scheduled-jobs", {"task": "tests.add", "every": 5}),
    ("/templates", {"task": "tests.add"}),
    ("/webhooks", {"url": "https://a.test/", "events": ["job.failed"]}),
]
#: By SQL: table, and what else a row needs.
TABLES = [
    ("schedules", "task, every", "'tests.add', '5 s'"),
    ("calendars", "definition", "'{}'"),
    ("templates", "task", "'tests.add'"),
    ("webhooks", "url, events, secret", "'https://a.test/', '{job.failed}', 'x'"),
    ("lanes", "max_running", "1"),
]


def test_dots_are_no_name(web: Web) -> None:
    for (path, body), name in product(ASKED, (".", "..")):
        said = problem(web.admin.post(path, json=body | {"name": name}), 422)
        assert f"a name is not '{name}', which browsers take out of an address" in said


def test_dots_are_no_name_in_sql(sql: Sql) -> None:
    for (table, columns, values), name in product(TABLES, (".", "..")):
        with pytest.raises(psycopg.errors.CheckViolation, match="name"):
            sql(f"INSERT INTO pgbeat.{table} (name, {columns}) VALUES (%s, {values})", name)
