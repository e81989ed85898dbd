"""The API refuses schedules that are invalid."""

from typing import Any

import pytest

from tests.support.command_line import Sql
from tests.support.web import done, problem
from tests.web.api.made_schedules import PATH, make


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b'{"name": "s"', 422),
        (b"", 422),
        (b'{"name": "\xff"}', 400),
        (b'{"name": "s\\ud800", "task": "tests.add", "cron": "* * * * *"}', 422),
        (b'{"name": "s", "task": "tests.add", "cron": "* * * * *", "kwargs": {"x": NaN}}', 422),
        (b'{"name": "s", "task": "tests.add", "every": 1e999}', 422),
        (b'{"name": "s", "task": "tests.add", "every": 60, "kwargs": {"x": 1e999}}', 422),
        (b'{"name": "s", "every": ' + b"9" * 5000 + b"}", 400),
        (b"[" * 100_000, 400),
    ],
)
def test_what_is_no_json_is_refused(admin: Any, sql: Sql, content: bytes, status: int) -> None:
    headers = {"Content-Type": "application/json"}
    problem(admin.post(PATH, content=content, headers=headers), status)
    assert sql("SELECT 1 FROM pgbeat.schedules") == []


def test_json_has_to_say_that_it_is(admin: Any, sql: Sql) -> None:
    """A form of another site can't send JSON under its own name."""
    body = b'{"name": "s", "task": "tests.add", "cron": "* * * * *"}'
    for kind in ("text/plain", "application/x-www-form-urlencoded"):
        answer = admin.post(PATH, content=body, headers={"Content-Type": kind})
        problem(answer, 422)
    assert sql("SELECT 1 FROM pgbeat.schedules") == []


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"enabled": None},
        {"max_retries": None},
        {"overlap": None},
        {"launcher": None},
        {"cron": None},
        {"task": None},
        {"name": "other"},
    ],
)
def test_what_can_be_no_change_is_refused(admin: Any, body: dict[str, Any]) -> None:
    make(admin)
    before = done(admin.get(f"{PATH}/s"))
    problem(admin.patch(f"{PATH}/s", json=body), 422)
    assert done(admin.get(f"{PATH}/s")) == before
