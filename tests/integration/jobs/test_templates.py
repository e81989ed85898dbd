"""Templates: made, replaced, removed; what is wrong with one is all told."""

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection
from sqlalchemy.engine import make_url

from pgbeat.access.actors import Actor
from pgbeat.broker.publishing.unit_of_work import UnitOfWork
from pgbeat.config import Settings
from pgbeat.errors import InvalidJob, NotFound
from pgbeat.jobs.policy import templates
from pgbeat.jobs.policy.templates import Template
from pgbeat.jobs.verbs import template_control
from pgbeat.schedules import control, writes
from tests.support.command_line import Sql
from tests.support.databases import connected
from tests.support.problems import raises
from tests.support.rows import make_lane, make_schedule
from tests.support.threads import waiting


def unit(connection: Connection, by: str = "user:me", namespace: str = "default") -> UnitOfWork:
    settings = Settings(make_url("postgresql:///x"), namespace=namespace)
    return UnitOfWork(connection, settings, Actor(by))


def put(
    connection: Connection,
    name: str = "t",
    *,
    by: str = "user:me",
    namespace: str = "default",
    **values: Any,
) -> Template:
    """Makes a template of `jobs.add`, unless told otherwise."""
    with unit(connection, by, namespace).transaction() as opened:
        made = template_control.put(opened, name, **{"task": "jobs.add", **values})
    return made.template


def test_made_and_replaced(connection: Connection, sql: Sql) -> None:
    make_lane(sql)
    made = put(
        connection,
        args=[1],
        kwargs={"y": 2},
        queue="q",
        options={"expires": 60},
        job_policy={"lane": "l", "max_attempts": 5},
        description="adds",
        by="user:alice",
    )
    assert (made.task, made.args, made.kwargs, made.options) == (
        "jobs.add",
        [1],
        {"y": 2},
        {"expires": 60},
    )
    assert (made.policy.lane, made.policy.max_attempts) == ("l", 5)
    assert templates.get(connection, "t", namespace="default") == made
    replaced = put(connection, by="user:bob")
    assert (replaced.args, replaced.kwargs, replaced.job_policy, replaced.description) == (
        [],
        {},
        {},
        None,
    )
    assert (replaced.created_at, replaced.created_by) == (made.created_at, "user:alice")
    assert replaced.updated_at > made.updated_at


def test_each_namespace_has_its_own(connection: Connection) -> None:
    put(connection, "b")
    put(connection, "a")
    put(connection, "c", namespace="other")
    assert [row.name for row in templates.listing(connection, namespace="default")] == ["a", "b"]
    assert set(templates.load(connection, ["a", "c"], namespace="default")) == {"a"}
    with raises(NotFound, ("template", "not_found")):
        templates.get(connection, "c", namespace="default")
    put(connection, "nightly")
    with pytest.raises(NotFound, match="there is no template 'nightli'; did you mean 'nightly'"):
        templates.get(connection, "nightli", namespace="default")


def test_every_mistake_is_told(connection: Connection, sql: Sql) -> None:
    problems = (
        ("name", "malformed"),
        ("task", "required"),
        ("args", "malformed"),
        ("kwargs", "malformed"),
        ("options.eta", "conflict"),
        ("job_policy.priority", "out_of_range"),
        ("job_policy.lan", "unknown_field"),
        ("job_policy.template", "conflict"),
        ("job_policy.lane", "unknown"),
    )
    with raises(InvalidJob, *problems):
        put(
            connection,
            "a/b",
            task="",
            args={"x": 1},
            kwargs={"x": {1}},
            options={"eta": "2030"},
            job_policy={"lane": "none", "priority": 1000, "lan": 1, "template": "t"},
        )
    assert sql("SELECT count(*) FROM pgbeat.templates") == [(0,)]


def test_removed(connection: Connection, sql: Sql) -> None:
    put(connection)
    for n in range(1, 8):
        make_schedule(sql, f"s{n}", task=None, job_policy={"template": "t"})
    assert templates.users(connection, namespace="default") == {"t": [f"s{n}" for n in range(1, 8)]}
    with pytest.raises(InvalidJob) as error:
        template_control.remove(unit(connection), "t")
    assert str(error.value) == (
        "template 't' is used by 's1', 's2', 's3', 's4', 's5' and 2 more; "
        "give them another one, or none, first"
    )
    sql("DELETE FROM pgbeat.schedules")
    template_control.remove(unit(connection), "t")
    with pytest.raises(NotFound):
        template_control.remove(unit(connection), "t")


def test_schedules_go_on_with_another_task(connection: Connection, sql: Sql) -> None:
    put(connection)
    make_schedule(sql, "from", task=None, every="1h", job_policy='{"template": "t"}')
    make_schedule(sql, "own", task="jobs.own", every="1h", job_policy='{"template": "t"}')
    make_schedule(sql, "other", task="jobs.add", every="1h")
    put(connection, task="jobs.sub")
    assert sql("SELECT name, task FROM pgbeat.schedules ORDER BY name") == [
        ("from", "jobs.sub"),
        ("other", "jobs.add"),
        ("own", "jobs.own"),
    ]


def test_two_give_it_another_task_at_once(connection: Connection, sql: Sql, database: str) -> None:
    """Its schedules have the last one, too."""
    put(connection)
    make_schedule(sql, task=None, job_policy='{"template": "t"}')
    with connected(database) as own:
        own.exec_driver_sql("BEGIN")
        template_control.put(unit(own), "t", task="jobs.first")
        with waiting(sql, lambda: put(connection, task="jobs.second")):
            own.exec_driver_sql("COMMIT")
    tasks = "SELECT task FROM pgbeat.schedules UNION ALL SELECT task FROM pgbeat.templates"
    assert sql(tasks) == [("jobs.second",)] * 2


def test_its_task_is_changed_while_a_schedule_is_that_names_it(
    connection: Connection, sql: Sql, database: str
) -> None:
    put(connection)
    make_schedule(sql, task=None, job_policy='{"template": "t"}')

    def edit() -> None:
        with unit(connection).transaction() as opened:
            control.edit(opened, "s", {"job_policy": {"template": "t", "priority": 3}})

    with connected(database) as own:
        own.exec_driver_sql("BEGIN")
        templates.get(own, "t", for_update=True)
        with waiting(sql, edit):
            template_control.put(unit(own), "t", task="jobs.other")
            own.exec_driver_sql("COMMIT")
    changed = sql("SELECT task, job_policy ->> 'priority' FROM pgbeat.schedules")
    assert changed == [("jobs.other", "3")]


def test_its_task_is_changed_while_all_schedules_are(
    connection: Connection, sql: Sql, database: str
) -> None:
    put(connection)
    for name in ("z", "a"):
        make_schedule(sql, name, task=None, job_policy='{"template": "t"}')
    sql("UPDATE pgbeat.schedules SET description = 'moved' WHERE name = 'z'")
    with connected(database) as own:
        own.exec_driver_sql("BEGIN")
        control.pause(unit(own), "z")
        with waiting(sql, lambda: put(connection, task="jobs.other")):
            control.pause(unit(own), "a")
            own.exec_driver_sql("COMMIT")
    assert sql("SELECT DISTINCT task, paused_at IS NULL FROM pgbeat.schedules") == [
        ("jobs.other", False)
    ]


@pytest.mark.parametrize("task", [None, "jobs.own"])
def test_one_that_an_open_transaction_names_is_not_removed(
    connection: Connection, sql: Sql, database: str, task: str | None
) -> None:
    put(connection)
    with connected(database) as own:
        own.exec_driver_sql("BEGIN")
        named: dict[str, Any] = {"task": task, "job_policy": {"template": "t"}}
        writes.add(own, "s", source="cli", every=timedelta(1), **named)
        with (
            pytest.raises(InvalidJob, match="is used by 's'"),
            waiting(sql, lambda: template_control.remove(unit(connection), "t")),
        ):
            own.exec_driver_sql("COMMIT")
