"""Jobs are found by any filter, in steps where no index helps."""

from datetime import UTC, datetime
from typing import Any

import pytest
from celery import Celery
from psycopg.types.json import Jsonb
from sqlalchemy import Connection

from pgbeat.access.actors import Actor
from pgbeat.access.redaction import Redactor
from pgbeat.jobs.rows.filters import Filter
from pgbeat.jobs.searching import query, search
from tests.support.command_line import Sql
from tests.support.rows import make_job, make_waiting


def find(connection: Connection, text: str) -> list[str]:
    which = query.parse(text).filter("default", datetime.now(UTC))
    found = search.page(connection, which)
    assert found.next is None
    return [row.task for row in found.rows]


def test_each_term_finds(connection: Connection, sql: Sql) -> None:
    make_job(sql, "failed", task="shop.prices", error="HTTPError: 503 Timed out", queue="q")
    job = make_job(sql, "completed", task="shop.stock", tags=["eu", "uk"], args='[7, {"x": "y"}]')
    make_job(sql, "running", task="mail", kwargs='{"site": "x", "order": {"id": 5}, "n": "5"}')
    for text in (
        "state:failed",
        "PRICES",
        "task:*.prices",
        "error:timed",
        "error:*503*",
        "queue:q",
    ):
        assert find(connection, text) == ["shop.prices"], text
    for text in (
        "tag:eu",
        "tag:eu tag:uk",
        "arg.0=7",
        "arg.1.x=y",
        f"{job}"[:8],
        "state:completed",
    ):
        assert find(connection, text) == ["shop.stock"], text
    for text in ("arg.site=x", "arg.order.id=5", "arg.n=5", "mai", "state:running,paused since:1h"):
        assert find(connection, text) == ["mail"], text
    for text in ("arg.n=1e400", "arg.n=" + "[" * 990, r'arg.n="[\"\\u0000\"]"'):
        assert find(connection, text) == [], text
    for text in ("tag:e", "arg.site=y", "arg.0=8", "error:%", "word_", "before:1h", "arg.1=y"):
        assert find(connection, text) == [], text
    assert find(connection, "task:shop.*") == ["shop.stock", "shop.prices"]


def test_a_search_goes_on_where_it_was_cut(
    connection: Connection, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "_WINDOW", 10)
    ids = [
        str(make_job(sql, "failed", error="503" if number % 4 == 0 else "no"))
        for number in range(25)
    ]
    wanted = [each for number, each in enumerate(ids) if number % 4 == 0]
    which = query.parse("error:503").filter("default", datetime.now(UTC))
    found, after, cuts = [], None, 0
    for _ in range(10):
        page = search.page(connection, which, after=after, limit=2)
        found += [str(row.id) for row in page.rows]
        cuts += page.is_cut
        after = page.next
        if after is None:
            break
    assert found == wanted[::-1]
    assert cuts > 0


def test_counts_are_those_of_the_newest(
    connection: Connection, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    for state, task in (("failed", "a"), ("failed", "b"), ("completed", "a"), ("running", "c")):
        make_job(sql, state, task=task)
    which = query.parse("state:failed").filter("default", datetime.now(UTC))
    assert search.counts(connection, which) == (
        {"failed": 2, "completed": 1, "running": 1},
        {"a": 1, "b": 1},
        4,
        False,
    )
    monkeypatch.setattr(search, "_COUNTED", 2)
    assert search.counts(connection, which) == ({"completed": 1, "running": 1}, {}, 2, True)


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("arg.card=1", ["bank.*", "own", "shop.*", "users*"]),
        ("error:secret", ["bank.*", "users*"]),
        ("task:bank.pay", None),
    ],
)
def test_nobody_finds_by_what_is_masked(text: str, hidden: list[str] | None) -> None:
    app = Celery("x", set_as_current=False)
    app.task(_work, name="own", shared=False, pgbeat_redact=["card"])
    app.task(_work, name="free", shared=False)
    rules = {"bank.*": ("*",), "shop.*": ("card",), "users[ab].*": ("*",)}
    which = query.parse(text).filter("default", datetime.now(UTC))
    for actor, expected in ((Actor("user:a"), hidden), (Actor("user:b", is_admin=True), None)):
        redactor = Redactor(actor, rules, app.tasks)
        found: Any = search.visible(actor, redactor, which).not_tasks
        assert found == expected


def _work() -> None:
    """A task."""


def test_masked_jobs_are_not_found(connection: Connection, sql: Sql) -> None:
    for task in ("bank.pay", "free"):
        make_job(sql, "failed", task=task, error="secret", kwargs='{"card": "1"}')
    viewer = Actor("user:a", is_viewer=True)
    redactor = Redactor(viewer, {"Bank.*": ("*",)}, {})
    for text in ("arg.card=1", "error:secret"):
        which = query.parse(text).filter("default", datetime.now(UTC))
        found = search.page(connection, search.visible(viewer, redactor, which))
        assert [row.task for row in found.rows] == ["free"]


def test_lists_leave_out_what_may_be_large(connection: Connection, sql: Sql) -> None:
    large = dict.fromkeys(("args", "kwargs", "options", "metadata", "checkpoint", "canvas"))
    values = {name: Jsonb({"a": [[]] * 1000}) for name in large} | {"args": Jsonb([[]] * 1000)}
    ids = {make_job(sql, **values) for _ in range(5)}
    waiting = make_waiting(sql, "paid/1", created_at="yesterday")
    for by in (Filter(), Filter(words=["add"])):
        page = search.page(connection, by)
        assert {str(row.id) for row in page.rows} == ids | {waiting}
        assert page.rows[-1].waits_for_event == "paid/1"
        for row in page.rows:
            assert not any(getattr(row, name) for name in large)
            assert len(row.message or ()) == (str(row.id) == waiting)
        # Each has some 16,000 characters.
        full, part = search.in_full(connection, page), search.in_full(connection, page, most=40_000)
        assert [row.args for row in full.rows] == [[[]] * 1000] * 5 + [[1]]
        assert (len(full.rows), full.next, full.is_cut) == (6, None, False)
        assert part.rows == full.rows[:3]
        assert (part.next, part.is_cut) == ((part.rows[-1].created_at, part.rows[-1].id), True)
        rest = search.page(connection, by, after=part.next)
        assert [row.id for row in rest.rows] == [row.id for row in full.rows[3:]]
