"""Trees of jobs that are written by SQL: groups, retries, folding, and who sees what."""

from typing import Any
from uuid import uuid4

import pytest
from psycopg.types.json import Jsonb
from sqlalchemy import Connection

from pgbeat.access.actors import Actor
from pgbeat.access.redaction import Redactor
from pgbeat.errors import NotFound
from pgbeat.jobs.explaining import tree
from pgbeat.jobs.explaining.tree import Node
from pgbeat.jobs.rows import model
from tests.support.rows import Sql, make_group, make_job

ADMIN, ALICE = Actor("user:root", is_admin=True), Actor("user:alice")


def made(sql: Sql, state: str = "completed", **values: Any) -> str:
    """Writes a job, whose place in the canvas may be given."""
    if "canvas" in values:
        values["canvas"] = Jsonb(values["canvas"])
    return make_job(sql, state, **values)


def tree_of(connection: Connection, job_id: str, actor: Actor = ADMIN, **more: Any) -> Node:
    job = model.get(connection, job_id)
    return tree.of_job(connection, Redactor(actor, {}, {}), job, **more).root


def shape(node: Node) -> Any:
    """Returns a tree as nested tuples of kinds, relations and states."""
    head = " ".join(filter(None, (node.relation, node.kind, node.state)))
    return (head, *map(shape, node.children)) if node.children else head


def test_a_job_by_itself(sql: Sql, connection: Connection) -> None:
    """Is a tree of one."""
    job_id = made(sql)
    made(sql)
    root = tree_of(connection, job_id)
    assert shape(root) == "job completed" and root.is_asked and root.id == job_id


def test_a_job_that_is_deleted_meanwhile_has_none(sql: Sql, connection: Connection) -> None:
    """Its row was read before."""
    job = model.get(connection, made(sql))
    sql("DELETE FROM pgbeat.jobs")
    with pytest.raises(NotFound):
        tree.of_job(connection, Redactor(ADMIN, {}, {}), job)


def test_retries_are_below_the_first_job(sql: Sql, connection: Connection) -> None:
    """One after the other, also with what each of them sent."""
    first = made(sql, "failed", error="on purpose")
    second = made(sql, "failed", retry_of=first, attempt=2)
    third = made(sql, "running", retry_of=second, attempt=3)
    child = made(sql, root_id=second, parent_id=second)
    expected = ("job failed", ("retry job failed", "job completed"), "retry job running")
    assert [shape(tree_of(connection, each)) for each in (first, third, child)] == [expected] * 3
    assert tree_of(connection, first).outcome() == "running"


def test_a_group_says_who_waits_for_whom(sql: Sql, connection: Connection) -> None:
    """In a sequential one, each for the one before it."""
    group_id = make_group(sql, name="nightly", mode="sequential")
    done, waiting = made(sql, group_id=group_id, group_position=0), {"is_blocked": True}
    runs = made(sql, "running", group_id=group_id, group_position=1)
    next_one = made(sql, "pending", group_id=group_id, group_position=2, **waiting)
    made(sql, "paused", group_id=group_id, group_position=3, awaits_approval=True, **waiting)
    root = tree_of(connection, done)
    assert (root.kind, root.name, root.state) == ("job_group", "nightly", "running")
    assert [each.waits_for for each in root.children] == [[], [], [runs], [next_one]]
    assert root.children[2].where == f"waits for the job before it in group {group_id}"
    assert root.children[3].where == "awaits a person's approval"
    assert root.counts == {"completed": 1, "running": 1, "pending": 1, "paused": 1}


def test_steps_to_come_and_not_sent(sql: Sql, connection: Connection) -> None:
    """What follows a running step comes; what follows a failed one is not sent."""
    coming, never = str(uuid4()), str(uuid4())
    runs = made(sql, "running", canvas={"next": {"id": coming, "task": "t.b"}})
    failed = made(sql, "failed", canvas={"next": {"id": never, "task": "t.b"}})
    after = tree_of(connection, runs).children[1]
    assert (after.id, after.name, after.state) == (coming, "t.b", None)
    assert (after.where, after.waits_for) == ("comes after the one before", [runs])
    assert tree_of(connection, failed).children[1].where == "is not sent"


def test_a_root_that_is_no_job(sql: Sql, connection: Connection) -> None:
    """It is there, with what its result says, if anything."""
    root_id, sender = str(uuid4()), str(uuid4())
    job_id = made(sql, root_id=root_id, parent_id=sender)
    assert shape(tree_of(connection, job_id)) == (
        "task not tracked",
        ("task not tracked", "job completed"),
    )
    sql(
        "INSERT INTO pgbeat.results (task_id, status, content_type, content_encoding) "
        "VALUES (%s, 'SUCCESS', 'application/json', 'utf-8')",
        sender,
    )
    assert tree_of(connection, job_id).children[0].state == "completed"
    sql("UPDATE pgbeat.jobs SET created_by = 'user:alice'")
    assert tree_of(connection, job_id, ALICE).children[0].state == "not tracked"


def test_many_siblings_are_folded(sql: Sql, connection: Connection) -> None:
    """Failed ones and the job itself stay; the rest is counted."""
    root = made(sql)
    sql(
        "INSERT INTO pgbeat.jobs (id, task, job_source, created_by, is_system_job, state, "
        "finished_at, root_id, parent_id) SELECT gen_random_uuid(), 't', 'system', 'me', true, "
        "CASE WHEN n %% 100 = 0 THEN 'failed' ELSE 'completed' END, now(), %s, %s "
        "FROM generate_series(1, 500) AS n",
        root,
        root,
    )
    asked = made(sql, root_id=root, parent_id=root)
    found = tree_of(connection, asked, siblings=10)
    assert len(found.children) == 11
    assert sum(each.state == "failed" for each in found.children) == 5
    assert any(each.is_asked for each in found.children)
    assert found.children[-1].counts == {"completed": 491}
    assert sum(1 for _ in tree_of(connection, asked, siblings=1000).all()) == 502


def test_others_jobs_have_no_names(sql: Sql, connection: Connection) -> None:
    """Users see that there is one, in which state; other namespaces don't exist."""
    root = made(sql)
    made(sql, "failed", root_id=root, parent_id=root, created_by="user:bob", error="secret")
    made(sql, root_id=root, parent_id=root, namespace="other")
    found = tree_of(connection, root, ALICE)
    assert shape(found) == ("job completed", "hidden failed")
    assert (found.children[0].id, found.children[0].name, found.children[0].error) == (
        None,
        "",
        None,
    )
    assert shape(tree_of(connection, root)) == ("job completed", "job failed")


def test_ids_in_a_circle_end(sql: Sql, connection: Connection) -> None:
    """Messages may say anything."""
    one, other = str(uuid4()), str(uuid4())
    following = {"next": {"id": one, "task": "t"}}
    made(sql, id=one, root_id=other, parent_id=other, canvas={"next": {"id": other, "task": "t"}})
    made(sql, id=other, root_id=one, parent_id=one, canvas=following)
    assert tree_of(connection, one) is not None
