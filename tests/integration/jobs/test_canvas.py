"""Jobs keep their place in Celery's canvas, whatever sends them."""

import json
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery, chain, chord, group
from celery._state import _task_stack

import pgbeat
from pgbeat.jobs.messages import canvas
from tests.support.jobs import opened_app
from tests.support.rows import Sql

G, H, B, N = (str(uuid4()) for _ in range(4))


@pytest.fixture
def app(database: str) -> Iterator[Celery]:
    """An app each task of which becomes a job."""
    policies = {"*": {"tags": ["x"]}}
    url = f"pgbeat+{database}"
    with opened_app(database, result_backend=url, pgbeat_task_policies=policies) as app:
        yield app


def sent(app: Celery, name: str, *args: Any) -> Any:
    return app.signature(name, args=args)


def places(sql: Sql) -> dict[str, tuple[Any, Any, Any]]:
    """Returns the places of all jobs by their tasks."""
    rows = sql("SELECT task, root_id::text, parent_id::text, canvas FROM pgbeat.jobs")
    return {task: tuple(rest) for task, *rest in rows}


def test_a_chain_says_what_comes_next(app: Celery, sql: Sql) -> None:
    """By its id, under which it will be a job."""
    last = chain(sent(app, "a"), sent(app, "b"), sent(app, "c")).apply_async()
    following = {"id": last.parent.id, "task": "b"}
    assert places(sql) == {"a": (None, None, {"next": following})}


def test_members_sent_together_have_their_group_at_the_top(app: Celery, sql: Sql) -> None:
    """Celery makes each its own root."""
    made = group(sent(app, "a"), chain(sent(app, "b"), sent(app, "c"))).apply_async()
    found = places(sql)
    assert found["a"] == (made.id, None, {"group": made.id, "index": 0})
    assert found["b"][2] == {
        "group": made.id,
        "index": 1,
        "next": {"id": made.results[1].id, "task": "c"},
    }
    assert found["b"][0] == made.id


def test_members_of_a_chord_know_its_body(app: Celery, sql: Sql) -> None:
    """The first task of it, if that is a chain."""
    result = chord([sent(app, "a")], chain(sent(app, "b"), sent(app, "c"))).apply_async()
    [(root, parent, kept)] = places(sql).values()
    assert (root, parent) == (kept["group"], None)
    assert kept["chord"]["task"] == "b" and kept["chord"]["id"] != result.id


def task(options: dict[str, Any], kind: str | None = None, **kwargs: Any) -> dict[str, Any]:
    """Returns a signature as messages have it."""
    return {"task": "t", "options": options, "subtask_type": kind, "kwargs": kwargs}


@pytest.mark.parametrize(
    ("headers", "embedded", "expected"),
    [
        ({"id": N, "root_id": N}, {}, canvas.NOWHERE),
        ({"id": N}, {"chain": None, "chord": None}, canvas.NOWHERE),
        ({"id": N, "root_id": G, "parent_id": H}, {}, (G, H, None)),
        ({"id": N, "root_id": N, "group": "mine"}, {}, (None, None, None)),
        ({"id": "mine", "root_id": "other", "parent_id": "p"}, {}, (None, None, None)),
        # The chord is a member of a group, by its body.
        (
            {"id": N, "root_id": N, "group": H, "group_index": 2},
            {"chord": task({"task_id": B, "group_id": G})},
            (G, None, {"group": H, "index": 2, "chord": {"id": B, "task": "t"}}),
        ),
        # Its place is that of the chain that it begins.
        (
            {"id": N, "root_id": N},
            {"chain": [task({"task_id": B, "group_id": G, "group_index": 1})]},
            (G, None, {"group": G, "index": 1, "next": {"id": B, "task": "t"}}),
        ),
        (
            {"id": N, "root_id": N},
            {"chain": [task({}, "chain", tasks=[task({"task_id": B}), task({"group_id": G})])]},
            (G, None, {"group": G, "next": {"id": B, "task": "t"}}),
        ),
        ({"id": N}, {"chain": [task({"task_id": "mine"})]}, (None, None, None)),
    ],
)
def test_places(headers: dict[str, Any], embedded: dict[str, Any], expected: Any) -> None:
    """What messages say, with ids that are no UUIDs left out."""
    assert canvas.of_message(headers, embedded) == expected
    json.dumps(expected)


@pytest.mark.parametrize("way", ["submit", "step by step", "many", "group"])
def test_a_task_is_the_parent_of_what_it_submits(app: Celery, sql: Sql, way: str) -> None:
    """In each way to write jobs."""

    @app.task(name="child", shared=False)
    def child(*args: Any) -> None:
        """Does nothing."""

    @app.task(name="parent", shared=False)
    def parent() -> None:
        if way == "submit":
            made = pgbeat.submit(child)
            assert (str(made.root_id), str(made.parent_id)) == (G, H)
        elif way == "step by step":
            pgbeat.submit(child, must_end_within="1 hour")
        elif way == "many":
            pgbeat.submit_many([child] * 200)
        else:
            pgbeat.submit_group([child.s()])

    parent.push_request(id=H, root_id=G, called_directly=False)
    _task_stack.push(parent)
    try:
        parent.run()
    finally:
        _task_stack.pop()
        parent.pop_request()
    found = sql("SELECT DISTINCT root_id::text, parent_id::text FROM pgbeat.jobs")
    assert found == [(G, H)]
