"""The API refuses schedules that are invalid."""

from typing import Any

import pytest

from tests.support.command_line import Sql
from tests.support.web import done, errors, problem
from tests.web.api.made_schedules import PATH, audited, make


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"cron": "61 * * * *"}, ("cron", "malformed")),
        ({"cron": "every day"}, ("cron", "malformed")),
        ({"cron": 5}, ("cron", "malformed")),
        ({"timezone": "Oslo"}, ("timezone", "unknown")),
        ({"every": "1 month"}, ("every", "malformed")),
        ({"every": True}, ("every", "malformed")),
        ({"every": 1e300}, ("every", "malformed")),
        ({"every": 0}, ("every", "out_of_range")),
        ({"every": -5}, ("every", "out_of_range")),
        ({"every": "1 hour", "solar": "noon 0 0"}, ("solar", "conflict")),
        ({"once_at": "2026-12-24T09:00"}, ("once_at", "malformed")),
        ({"once_at": "0001-01-01T00:00:00+14:00"}, ("once_at", "out_of_range")),
        ({"solar": "lunch 0 0"}, ("solar", "malformed")),
        ({"rrule": "FREQ=SOMETIMES"}, ("rrule", "malformed")),
        ({"task": "tests.ad"}, ("task", "unknown")),
        ({"launcher": "os.system"}, ("launcher", "unknown")),
        ({"args": [1, 2, 3]}, ("args", "malformed")),
        ({"args": {}}, ("args", "malformed")),
        ({"kwargs": {"z": 1}}, ("kwargs", "malformed")),
        ({"options": {"prioriti": 1}}, ("options", "unknown_field")),
        ({"condition_sql": "SELEC 1"}, ("condition_sql", "malformed")),
        ({"condition_sql": "DELETE FROM pgbeat.schedules"}, ("condition_sql", "malformed")),
        ({"max_retries": -1}, ("max_retries", "out_of_range")),
        ({"max_retries": 2**31}, ("max_retries", "out_of_range")),
        ({"max_retries": 2**63}, ("max_retries", "out_of_range")),
        ({"catch_up": "some"}, ("catch_up", "unknown")),
        ({"retry_base": 100, "retry_cap": 99}, ("retry_cap", "out_of_range")),
        ({"job_policy": {"lane": 5}}, ("job_policy.lane", "malformed")),
        ({"job_policy": {"lanes": "x"}}, ("job_policy.lanes", "unknown_field")),
        ({"calendar": "nope"}, ("calendar", "unknown")),
        ({"schedule_crn": "* * * * *"}, ("schedule_crn", "unknown_field")),
        ({"next_run": "2026-01-01T00:00:00Z"}, ("next_run", "unknown_field")),
        ({"owner": "a\0b"}, ("", "invalid")),
        ({"kwargs": {"x": "\0"}}, ("", "invalid_schedule")),
    ],
)
def test_bad_input_is_refused_and_nothing_is_written(
    admin: Any, sql: Sql, change: dict[str, Any], expected: tuple[str, str]
) -> None:
    timetable = {"every", "once_at", "solar", "rrule"} & change.keys()
    base: dict[str, Any] = {"name": "bad", "task": "tests.add"}
    base |= {} if timetable else {"cron": "0 * * * *"}
    assert errors(admin.post(PATH, json=base | change)) == [expected]
    make(admin)
    before = done(admin.get(f"{PATH}/s"))
    assert errors(admin.patch(f"{PATH}/s", json=change)) == [expected]
    assert done(admin.get(f"{PATH}/s")) == before
    assert sql("SELECT name FROM pgbeat.schedules") == [("s",)]
    assert audited(admin) == [("create", "schedule", "s")]


def test_all_mistakes_are_listed(admin: Any) -> None:
    wrong = {
        "cron": "61 * * * *",
        "task": "tests.ad",
        "every": 0,
        "calendar": "nope",
        "job_policy": {"lanes": "x"},
        "condition_sql": "SELEC 1",
    }
    names = {"cron", "task", "every", "calendar", "job_policy.lanes", "condition_sql"}
    found = errors(admin.post(PATH, json={"name": "s", **wrong}))
    assert {field for field, _ in found} == names
    make(admin)
    found = errors(admin.patch(f"{PATH}/s", json={**wrong, "overlap": None}))
    assert {field for field, _ in found} == {*names, "overlap"}


def test_a_wrong_cron_says_how_to_write_it(admin: Any) -> None:
    said = problem(
        admin.post(PATH, json={"name": "s", "task": "tests.add", "cron": "0 25 * *"}), 422
    )
    assert 'for example "*/15 * * * *"' in said


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"task": "tests.add", "cron": "0 * * * *"}, ("name", "required")),
        ({"name": "", "task": "tests.add", "cron": "0 * * * *"}, ("name", "too_short")),
        ({"name": "x" * 201, "task": "tests.add", "cron": "0 * * * *"}, ("name", "too_long")),
        ({"name": "a\0b", "task": "tests.add", "cron": "0 * * * *"}, ("", "invalid")),
        ({"name": "s", "cron": "0 * * * *"}, ("task", "required")),
        ({"name": "s", "task": "tests.add"}, ("", "required")),
        ([], ("", "malformed")),
        (None, ("", "required")),
        ("s", ("", "malformed")),
    ],
)
def test_what_can_be_no_schedule_is_refused(
    admin: Any, sql: Sql, body: Any, expected: tuple[str, str]
) -> None:
    assert errors(admin.post(PATH, json=body)) == [expected]
    assert sql("SELECT 1 FROM pgbeat.schedules") == []


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b'{"name": "s"', 422),
        (b"", 422),
        (b'{"name": "\xff"}', 400),
        (b'{"name": "s\\ud800", "task": "tests.add", "cron": "* * * * *"}', 422),
        (b'{"name": "s", "task": "tests.add", "cron": "* * * * *", "kwargs": {"x": NaN}}', 422),
        (b'{"name": "s", "task": "tests.add", "every": 1e999}', 422),
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
