"""`/events`: emits events, and lists them."""

from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.support.command_line import Sql
from tests.support.web import done, errors

Kept = Callable[[], list[tuple[Any, ...]]]


@pytest.fixture
def kept(sql: Sql) -> Kept:
    """Returns what reads the events that are kept."""
    return lambda: sql("SELECT key, value, emitted_by FROM pgbeat.events ORDER BY id")


def test_a_key_has_one_event(admin: TestClient, kept: Kept, sql: Sql) -> None:
    """The first stays; the audit has it alone, without its value."""
    first = done(admin.post("/events", json={"key": "paid/12", "value": {"n": [1]}}), 201)
    again = done(admin.post("/events", json={"key": "paid/12", "value": 2}))
    assert (first.pop("is_new"), again.pop("is_new")) == (True, False)
    assert first == again
    assert first["value"] == {"n": [1]}
    assert kept() == [("paid/12", {"n": [1]}, "user:root")]
    audited = sql("SELECT actor, origin, verb, kind, subject, before, after FROM pgbeat.audit")
    assert audited == [("user:root", "api", "emit", "event", "paid/12", None, None)]


def test_events_are_listed_in_pages(admin: TestClient) -> None:
    for key in ("a/1", "b/1", "a/2", "a_3", "a%4"):
        done(admin.post("/events", json={"key": key}), 201)
    keys: list[str] = []
    query: dict[str, Any] = {"limit": 2}
    while True:
        page = done(admin.get("/events", params=query))
        keys += [event["key"] for event in page["events"]]
        if page["next"] is None:
            break
        query["after"] = page["next"]
    assert keys == ["a%4", "a_3", "a/2", "b/1", "a/1"]
    for prefix, found in (("a/", ["a/2", "a/1"]), ("a_", ["a_3"]), ("%", []), ("", keys)):
        page = done(admin.get("/events", params={"prefix": prefix}))
        assert [event["key"] for event in page["events"]] == found


@pytest.mark.parametrize(
    ("body", "field", "code"),
    [
        ({}, "key", "required"),
        ({"key": " k"}, "key", "malformed"),
        ({"key": ""}, "key", "malformed"),
        ({"key": "a\nb"}, "key", "malformed"),
        ({"key": "k" * 201}, "key", "too_long"),
        ({"key": "k", "value": "\0"}, "value", "malformed"),
        ({"key": "k", "value": {"__type__": "datetime", "__value__": "no"}}, "value", "malformed"),
        ({"key": "k", "value": {"__type__": "uuid", "__value__": 1}}, "value", "malformed"),
        ({"key": "k", "value": {"__type__": "decimal", "__value__": "x"}}, "value", "malformed"),
        ({"key": "k", "worth": 1}, "worth", "unknown_field"),
    ],
)
def test_what_no_job_could_get_is_refused(
    admin: TestClient, kept: Kept, body: Any, field: str, code: str
) -> None:
    assert errors(admin.post("/events", json=body)) == [(field, code)]
    assert kept() == []


def test_a_value_has_limits(admin: TestClient, kept: Kept) -> None:
    deep = '{"key": "k", "value": ' + "[" * 101 + "]" * 101 + "}"
    headers = {"Content-Type": "application/json"}
    assert errors(admin.post("/events", content=deep, headers=headers)) == [("value", "malformed")]
    large = {"key": "k", "value": "x" * 1_000_000}
    assert admin.post("/events", json=large).status_code == 413
    assert kept() == []
