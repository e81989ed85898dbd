"""The audit: changes as they are noted, and how they are found again."""

from datetime import timedelta
from typing import Any, NamedTuple

import pytest
from sqlalchemy import Connection

from pgbeat.access import audit
from pgbeat.config import postgres_url
from pgbeat.database import connections
from tests.support.command_line import Sql, read, run
from tests.support.web import Web, done, problem


def record(connection: Connection, **values: Any) -> None:
    """A change of schedule `s`, by alice, unless told otherwise."""
    by = {"namespace": "default", "name": "user:alice", "origin": "api"}
    author = audit.Author(**{name: values.pop(name, value) for name, value in by.items()})
    given = {"verb": "pause", "kind": "schedule", "subject": "s", **values}
    audit.record_action(connection, author, **given)


@pytest.mark.parametrize(
    ("before", "after", "old", "new"),
    [
        ({"a": 1, "b": 2}, {"a": 1, "b": 3}, {"b": 2}, {"b": 3}),
        ({"a": None}, {"a": 1}, {"a": None}, {"a": 1}),
        (None, {"a": 1, "b": None}, None, {"a": 1}),
        ({"a": 1, "b": None}, None, {"a": 1}, None),
        ({"a": 1}, {"a": 1}, None, None),
        (None, None, None, None),
    ],
)
def test_what_is_the_same_is_left_out(before: Any, after: Any, old: Any, new: Any) -> None:
    assert audit.differing(before, after) == (old, new)


class Thing(NamedTuple):
    """A row as others have it."""

    name: str
    at: timedelta | None = None

    @property
    def audited(self) -> tuple[str, str, dict[str, Any]]:
        return "thing", self.name, {"at": self.at}


@pytest.mark.parametrize(
    ("before", "after", "rows"),
    [
        (None, Thing("a", timedelta(seconds=1.5)), [("a", None, {"at": 1.5})]),
        (Thing("a", timedelta(0)), None, [("a", {"at": 0}, None)]),
        (Thing("a"), Thing("a", timedelta(1)), [("a", {"at": None}, {"at": 86400})]),
        (Thing("a"), Thing("a"), []),
        (Thing("a", timedelta(1)), Thing("b"), [("a", None, {"id": "b"})]),
        (Thing("a"), None, [("a", None, None)]),
    ],
    ids=["new", "deleted", "changed", "unchanged", "become another", "deleted, without values"],
)
def test_what_became_of_a_row_is_recorded(
    before: Thing | None, after: Thing | None, rows: list[Any], connection: Connection, sql: Sql
) -> None:
    audit.record(connection, audit.Author("default", "user:alice", "api"), "do", before, after)
    assert sql("SELECT subject, before, after FROM pgbeat.audit") == rows


def test_a_change_is_undone_with_its_transaction(database: str, sql: Sql) -> None:
    with connections.engine(postgres_url(database), "tests").connect() as connection:
        record(connection)
        connection.rollback()
    assert sql("SELECT 1 FROM pgbeat.audit") == []


def test_changes_are_found_by_what_they_are_of(connection: Connection) -> None:
    record(connection)
    record(connection, subject="t")
    record(connection, name="user:bob", verb="resume")
    record(connection, kind="job")
    record(connection, namespace="other")
    cases: list[tuple[dict[str, Any], list[int]]] = [
        ({}, [4, 3, 2, 1]),
        ({"kind": "job"}, [4]),
        ({"kind": "schedule", "subject": "t"}, [2]),
        ({"actor": "user:bob"}, [3]),
        ({"verb": "resume"}, [3]),
        ({"before": 3}, [2, 1]),
        ({"limit": 2}, [4, 3]),
        ({"kind": "lane"}, []),
    ]
    for which, found in cases:
        rows = audit.listing(connection, namespace="default", **which)
        assert [row.id for row in rows] == found, which


def test_pages_hold_all_once(web: Web, connection: Connection) -> None:
    for number in range(5):
        record(connection, subject=str(number))
    admin, seen, after = web.admin, [], None
    while True:
        page = done(admin.get("/audit", params={"limit": 2, **({"after": after} if after else {})}))
        seen += [each["subject"] for each in page["changes"]]
        after = page["next"]
        record(connection, subject="meanwhile")
        if after is None:
            break
    assert seen == ["4", "3", "2", "1", "0"]


def test_a_cursor_of_ones_own_is_refused(web: Web) -> None:
    huge = "Wzk5OTk5OTk5OTk5OTk5OTk5OTk5XQ"
    for after in ("x", "W10", "WyJhIl0", "WzFd.", "WzFd\u00e9", "W3RydWVd", huge):
        refusal = problem(web.admin.get("/audit", params={"after": after}), 422)
        assert "is not the `next` of a page" in refusal


def test_the_command_line_shows_them(database: str, connection: Connection) -> None:
    assert run(database, "audit").stdout == "No such change is recorded.\n"
    record(connection, before={"max_retries": 5}, after={"max_retries": 7})
    record(connection, subject="evil\x1b[31m\n", verb="create", after={"task": "t", "cron": None})
    [_, newest, oldest] = run(database, "audit").stdout.splitlines()
    assert "\x1b" not in newest
    assert newest.endswith("task: t")
    assert oldest.split()[0] == "1"
    assert oldest.split()[3:8] == ["user:alice", "api", "pause", "schedule", "s"]
    assert oldest.endswith("max_retries: 5 → 7")
    [row] = read(database, "audit", "--actor", "alice", "--verb", "pause")
    assert (row["id"], row["before"], row["after"]) == (1, {"max_retries": 5}, {"max_retries": 7})
    assert read(database, "audit", "--before", "1") == []
