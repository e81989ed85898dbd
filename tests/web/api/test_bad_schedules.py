"""The API refuses schedules that are invalid."""

from typing import Any

import pytest

from tests.support.command_line import Sql
from tests.support.web import done, problem

PATH = "/admin/scheduled-jobs"

CRON = {"task": "tests.add", "cron": "0 */6 * * *"}


def make(admin: Any, name: str = "s", **values: Any) -> Any:
    """A schedule of every six hours, unless told otherwise."""
    return done(admin.post(PATH, json={"name": name, **CRON, **values}), 201)


def audited(admin: Any) -> list[tuple[str, str, str]]:
    """Verb, kind and subject of the changes, the oldest first."""
    found = done(admin.get("/audit"))["changes"]
    return [(each["verb"], each["kind"], each["subject"]) for each in reversed(found)]


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        ({"cron": "61 * * * *"}, "cron '61 * * * *'"),
        ({"cron": "every day"}, "cron 'every day'"),
        ({"cron": 5}, "cron: Input should be a valid string"),
        ({"timezone": "Oslo"}, "timezone 'Oslo'"),
        ({"every": "1 month"}, "months and years have no fixed length"),
        ({"every": True}, "not true or false"),
        ({"every": 1e300}, "at most 999,999,999 days"),
        ({"every": 0}, "every"),
        ({"every": -5}, "every"),
        ({"every": "1 hour", "solar": "noon 0 0"}, "it has both every and solar; keep one"),
        ({"once_at": "2026-12-24T09:00"}, "once_at: Input should have timezone info"),
        ({"once_at": "0001-01-01T00:00:00+14:00"}, ""),
        ({"solar": "lunch 0 0"}, "lunch"),
        ({"rrule": "FREQ=SOMETIMES"}, "rrule"),
        ({"task": "tests.ad"}, "did you mean 'tests.add'?"),
        ({"launcher": "os.system"}, "launcher 'os.system' is not registered"),
        ({"args": [1, 2, 3]}, "the arguments don't fit task 'tests.add'"),
        ({"args": {}}, "args: Input should be a valid list"),
        ({"kwargs": {"z": 1}}, "the arguments don't fit task 'tests.add'"),
        ({"options": {"prioriti": 1}}, "no publish option"),
        ({"condition_sql": "SELEC 1"}, "write one SELECT"),
        ({"condition_sql": "DELETE FROM pgbeat.schedules"}, "write one SELECT"),
        ({"max_retries": -1}, "greater than or equal to 0"),
        ({"max_retries": 2**31}, "less than or equal to"),
        ({"max_retries": 2**63}, "less than or equal to"),
        ({"catch_up": "some"}, "catch_up: Input should be"),
        ({"retry_base": 100, "retry_cap": 99}, "retry_cap"),
        ({"job_policy": {"lane": 5}}, "lane"),
        ({"job_policy": {"lanes": "x"}}, "lane"),
        ({"calendar": "nope"}, "calendar"),
        ({"schedule_crn": "* * * * *"}, "there is no field 'schedule_crn'; did you mean"),
        ({"next_run": "2026-01-01T00:00:00Z"}, "there is no field 'next_run'"),
        ({"owner": "a\0b"}, "NUL"),
        ({"kwargs": {"x": "\0"}}, ""),
    ],
)
def test_bad_input_is_refused_and_nothing_is_written(
    admin: Any, sql: Sql, change: dict[str, Any], refusal: str
) -> None:
    timetable = {"every", "once_at", "solar", "rrule"} & change.keys()
    base: dict[str, Any] = {"name": "bad", "task": "tests.add"}
    base |= {} if timetable else {"cron": "0 * * * *"}
    assert refusal in problem(admin.post(PATH, json=base | change), 422)
    make(admin)
    before = done(admin.get(f"{PATH}/s"))
    assert refusal in problem(admin.patch(f"{PATH}/s", json=change), 422)
    assert done(admin.get(f"{PATH}/s")) == before
    assert sql("SELECT name FROM pgbeat.schedules") == [("s",)]
    assert audited(admin) == [("create", "schedule", "s")]


def test_a_wrong_cron_says_how_to_write_it(admin: Any) -> None:
    said = problem(
        admin.post(PATH, json={"name": "s", "task": "tests.add", "cron": "0 25 * *"}), 422
    )
    assert "cron '0 25 * *': it has 4 fields, not 5" in said
    assert 'for example "*/15 * * * *"' in said


@pytest.mark.parametrize(
    ("body", "refusal"),
    [
        ({"task": "tests.add", "cron": "0 * * * *"}, "name: Field required"),
        ({"name": "", "task": "tests.add", "cron": "0 * * * *"}, "at least 1 character"),
        ({"name": "x" * 201, "task": "tests.add", "cron": "0 * * * *"}, "at most 200 characters"),
        ({"name": "a\0b", "task": "tests.add", "cron": "0 * * * *"}, "NUL"),
        ({"name": "s", "cron": "0 * * * *"}, "task"),
        ({"name": "s", "task": "tests.add"}, "it has no timetable; set cron"),
        ([], "valid dictionary"),
        (None, "Field required"),
        ("s", "valid dictionary"),
    ],
)
def test_what_can_be_no_schedule_is_refused(admin: Any, sql: Sql, body: Any, refusal: str) -> None:
    assert refusal in problem(admin.post(PATH, json=body), 422)
    assert sql("SELECT 1 FROM pgbeat.schedules") == []


@pytest.mark.parametrize(
    ("content", "status", "refusal"),
    [
        (b'{"name": "s"', 422, "JSON decode error"),
        (b"", 422, "Field required"),
        (b'{"name": "\xff"}', 400, "parsing the body"),
        (b'{"name": "s\\ud800", "task": "tests.add", "cron": "* * * * *"}', 422, ""),
        (b'{"name": "s", "task": "tests.add", "cron": "* * * * *", "kwargs": {"x": NaN}}', 422, ""),
        (b'{"name": "s", "task": "tests.add", "every": 1e999}', 422, ""),
        (b'{"name": "s", "every": ' + b"9" * 5000 + b"}", 400, ""),
        (b"[" * 100_000, 400, "parsing the body"),
    ],
)
def test_what_is_no_json_is_refused(
    admin: Any, sql: Sql, content: bytes, status: int, refusal: str
) -> None:
    headers = {"Content-Type": "application/json"}
    assert refusal in problem(admin.post(PATH, content=content, headers=headers), status)
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
