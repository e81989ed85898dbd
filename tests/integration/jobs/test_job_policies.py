"""Job policies: what may stand in one, and the jobs that schedules make by it."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Celery
from sqlalchemy import Connection
from sqlalchemy.engine import make_url

from pgbeat.access.actors import Actor
from pgbeat.beat.verbs import control
from pgbeat.broker.publishing.unit_of_work import UnitOfWork
from pgbeat.config import Settings
from pgbeat.database import connections
from pgbeat.errors import InvalidJob, InvalidSchedule
from pgbeat.jobs.policy.policies import JobPolicy
from pgbeat.jobs.preparing.defaults import JobDefaults
from pgbeat.schedules import writes
from tests.support.command_line import Sql
from tests.support.jobs import new_job
from tests.support.problems import raises
from tests.support.rows import make_job, make_lane, make_schedule, make_template
from tests.support.schedulers import Beat

DUE = "now() - interval '1 second'"


def add(sql: Sql, name: str = "s", job: str = "{}", **values: Any) -> None:
    make_schedule(sql, name, due="-1 second", job_policy=job, **values)


def make_due(sql: Sql) -> None:
    sql(f"UPDATE pgbeat.schedules SET next_run = {DUE}")


def ticks(sql: Sql) -> dict[str, tuple[str, str | None]]:
    """The last decision on each schedule, and why."""
    rows = sql("SELECT schedule, outcome, coalesce(reason, error) FROM pgbeat.ticks ORDER BY id")
    return {name: (outcome, why) for name, outcome, why in rows}


def jobs(sql: Sql, columns: str, schedule: str = "s") -> list[tuple[Any, ...]]:
    return sql(
        f"SELECT {columns} FROM pgbeat.jobs WHERE schedule = %s ORDER BY created_at", schedule
    )


def messages(sql: Sql) -> int:
    return int(sql("SELECT count(*) FROM kombu_message")[0][0])


@pytest.fixture
def inside(connection: Connection) -> Iterator[Connection]:
    """The session, in a transaction."""
    with connections.transaction(connection):
        yield connection


def test_a_policy_is_kept_as_everybody_reads_it(inside: Connection) -> None:
    row = writes.add(
        inside,
        "s",
        source="sql",
        task="t",
        every=timedelta(1),
        job_policy={"lane": "gpu", "retry_base": "1 min", "tags": ("a",), "priority": None},
    )
    assert row.job_policy == {"lane": "gpu", "retry_base": 60, "tags": ["a"]}
    assert writes.edit(inside, "s", owner="me").job_policy == row.job_policy
    assert writes.edit(inside, "s", job_policy={"priority": 1}).job_policy == {"priority": 1}
    assert writes.edit(inside, "s", job_policy=None).job_policy == {}
    assert writes.add(inside, "u", source="sql", task="t", every=timedelta(1)).job_policy == {}


@pytest.mark.parametrize(
    ("job", "problems"),
    [
        (
            {"lan": 1, "priority": "x"},
            [("job_policy.lan", "unknown_field"), ("job_policy.priority", "malformed")],
        ),
        ([1], [("job_policy", "malformed")]),
        ({"template": "none"}, [("job_policy.template", "unknown")]),
    ],
)
def test_what_makes_no_sense_is_refused(
    inside: Connection, job: Any, problems: list[tuple[str, str]]
) -> None:
    with raises(InvalidSchedule, *problems):
        writes.add(inside, "s", source="sql", every=timedelta(1), job_policy=job)
    writes.add(inside, "s", source="sql", task="t", every=timedelta(1))
    if "template" not in job:  # a row with a task of its own may wait for its template
        with raises(InvalidSchedule, *problems):
            writes.edit(inside, "s", job_policy=job)


def test_a_schedule_without_a_task_gets_its_templates(inside: Connection, sql: Sql) -> None:
    sql("INSERT INTO pgbeat.templates (name, task) VALUES ('x', 't.x'), ('y', 't.y')")
    sql("INSERT INTO pgbeat.templates (namespace, name, task) VALUES ('shop', 'x', 't.shop')")
    each: dict[str, Any] = {"source": "sql", "every": timedelta(1), "job_policy": {"template": "x"}}
    assert writes.add(inside, "s", **each).task == "t.x"
    assert writes.add(inside, "s", namespace="shop", **each).task == "t.shop"
    assert writes.add(inside, "own", task="own", **each).task == "own"
    # Another template has another task only where the row is said to have none.
    assert writes.edit(inside, "s", job_policy={"template": "y"}).task == "t.x"
    assert writes.edit(inside, "s", job_policy={"template": "y"}, task=None).task == "t.y"


def test_a_job_is_as_its_policy_says(beat: Beat, sql: Sql) -> None:
    add(
        sql,
        job='{"priority": 3, "max_attempts": 5, "retry_base": 7, "retry_cap": 70, '
        '"tags": ["a"], "resources": {"gpu": 1}, "unique_key": "k"}',
    )
    add(sql, "plain")
    assert beat().run_due() == 2
    [found] = jobs(
        sql,
        "state, dispatched_at IS NOT NULL, priority, max_attempts, "
        "extract(epoch FROM retry_base)::int, extract(epoch FROM retry_cap)::int, tags, resources, "
        "unique_key, lane, awaits_approval, template, queue",
    )
    assert found == (
        "pending",
        True,
        3,
        5,
        7,
        70,
        ["a"],
        {"gpu": 1},
        "k",
        None,
        False,
        None,
        "celery",
    )
    [found] = jobs(sql, "priority, max_attempts, retry_base, retry_cap, unique_key", "plain")
    assert found == (0, 1, timedelta(minutes=1), timedelta(hours=1), None)
    priorities = sql(
        "SELECT j.schedule, m.priority FROM kombu_message m JOIN pgbeat.jobs j "
        "ON j.id = m.job_id ORDER BY 1"
    )
    assert priorities == [("plain", 0), ("s", 3)]


def test_the_settings_say_the_rest(beat: Beat, sql: Sql, app: Celery) -> None:
    app.conf.update(pgbeat_job_max_attempts=1, pgbeat_job_retry_base=5, pgbeat_job_retry_cap=50)
    add(sql)
    add(sql, "longer", '{"retry_base": 100}')  # the cap gives way
    beat().run_due()
    columns = "max_attempts, extract(epoch FROM retry_base)::int, extract(epoch FROM retry_cap)"
    assert jobs(sql, columns) == [(1, 5, 50)]
    assert jobs(sql, columns, "longer") == [(1, 100, 100)]


def test_a_template_adds_what_the_row_leaves_open(beat: Beat, sql: Sql) -> None:
    call: dict[str, Any] = {"args": "[1]", "kwargs": {"y": 2}, "options": {"expires": 60}}
    policy = {"max_attempts": 7, "priority": 2}
    make_template(sql, "x", **call, queue="slow", job_policy=policy)
    add(sql, "open", '{"template": "x"}', task=None)
    add(
        sql,
        "own",
        '{"template": "x", "priority": 4}',
        args="[5]",
        kwargs='{"y": 3}',
        queue="fast",
        options='{"expires": 5}',
    )
    beat().run_due()
    columns = "task, args, kwargs, queue, options - 'priority', priority, max_attempts, template"
    assert jobs(sql, columns, "open") == [
        ("tests.add", [1], {"y": 2}, "slow", {"expires": 60}, 2, 7, "x")
    ]
    assert jobs(sql, columns, "own") == [
        ("tests.add", [5], {"y": 3}, "fast", {"expires": 5}, 4, 7, "x")
    ]
    # A job has a copy: what becomes of the template changes nothing.
    sql("UPDATE pgbeat.templates SET args = '[9]'")
    assert jobs(sql, "args", "open") == [([1],)]


def test_what_waits_has_no_message(beat: Beat, sql: Sql) -> None:
    make_lane(sql, "full", 0)
    add(sql, "laned", '{"lane": "full"}')
    add(sql, "asked", '{"requires_approval": true}')
    assert beat().run_due() == 2
    assert ticks(sql) == {"laned": ("launched", None), "asked": ("launched", None)}
    columns = "state, awaits_approval, dispatched_at"
    assert jobs(sql, columns, "laned") == [("pending", False, None)]
    assert jobs(sql, columns, "asked") == [("paused", True, None)]
    assert messages(sql) == 0


def test_what_is_free_of_its_lane_is_handed_out_at_once(beat: Beat, sql: Sql) -> None:
    make_lane(sql, "l", 2)
    for name, priority in (("a", 0), ("b", 9), ("c", 5)):
        add(sql, name, f'{{"lane": "l", "priority": {priority}}}')
    scheduler = beat()
    assert scheduler.run_due() == 3
    handed = sql("SELECT schedule FROM pgbeat.jobs WHERE dispatched_at IS NOT NULL ORDER BY 1")
    assert handed == [("b",), ("c",)]
    carried = sql("SELECT j.schedule FROM kombu_message m JOIN pgbeat.jobs j ON j.id = m.job_id")
    assert sorted(carried) == handed


def test_a_paused_lane_skips(beat: Beat, sql: Sql) -> None:
    make_lane(sql, "held", paused_at="now")
    add(sql, job='{"lane": "held"}')
    beat().run_due()
    assert ticks(sql) == {"s": ("skipped", "lane 'held' is paused")}
    assert jobs(sql, "id") == []


def test_a_unique_key_skips(beat: Beat, sql: Sql) -> None:
    other = make_job(sql, task="tests.add", unique_key="k")
    add(sql, "one", '{"unique_key": "k"}')
    add(sql, "content", '{"unique": true}')
    scheduler = beat()
    scheduler.run_due()
    assert ticks(sql) == {
        "one": ("skipped", f"job {other}, which has the same unique key, is pending"),
        "content": ("launched", None),
    }
    make_due(sql)
    sql("UPDATE pgbeat.jobs SET state = 'completed', finished_at = now()")
    scheduler.run_due()
    assert ticks(sql)["one"] == ("launched", None)
    # Within its time, an end doesn't matter.
    sql("""UPDATE pgbeat.schedules SET job_policy = '{"unique_for": "1 hour"}'
            WHERE name = 'content'""")
    sql("UPDATE pgbeat.jobs SET state = 'completed', finished_at = now() WHERE state = 'pending'")
    make_due(sql)
    scheduler.run_due()
    assert ticks(sql)["content"][0] == "skipped"
    sql("UPDATE pgbeat.jobs SET created_at = created_at - interval '2 hours'")
    make_due(sql)
    scheduler.run_due()
    assert ticks(sql)["content"] == ("launched", None)


def test_of_two_with_one_key_at_once_one_is_launched(beat: Beat, sql: Sql) -> None:
    for name in ("a", "b"):
        add(sql, name, '{"unique_key": "k"}')
    beat().run_due()
    outcomes = sorted(ticks(sql).values())
    assert outcomes == [
        ("launched", None),
        ("skipped", "another job with its unique key is made just now"),
    ]


@pytest.mark.parametrize(
    ("job", "named"),
    [
        ('{"lane": "none"}', "'none'"),
        ('{"template": "none"}', "'none'"),
        ('{"priority": "high"}', "'high'"),
        ('{"template": "bad"}', "'lan'"),
    ],
)
def test_what_is_wrong_fails_its_own_tick(beat: Beat, sql: Sql, job: str, named: str) -> None:
    """Written by SQL, past the checks, or gone since."""
    make_template(sql, "bad", job_policy={"lan": "gpu"})
    make_lane(sql, "gpu")
    add(sql, "bad", job)
    add(sql, "good", '{"lane": "gpu"}')
    add(sql, "plain")
    assert beat().run_due() == 3
    found = ticks(sql)
    assert found.pop("bad")[0] == "failed"
    assert found == {"good": ("launched", None), "plain": ("launched", None)}
    [(why,)] = sql("SELECT error FROM pgbeat.ticks WHERE schedule = 'bad'")
    assert named in why


def test_a_trigger_by_hand_hands_out_the_lanes_slot(
    connection: Connection, app: Celery, sql: Sql
) -> None:
    """No beat is needed for that."""
    make_lane(sql, "l", 1)
    add(sql, job='{"lane": "l"}')
    unit = UnitOfWork(connection, Settings.load(app.conf), Actor("user:me"), app=lambda: app)
    for _ in range(2):
        decision = control.trigger(unit, "s", job_source="user_cli")
        assert decision.tick.outcome == "launched"
    columns = "dispatched_at IS NOT NULL, job_source, created_by"
    assert jobs(sql, columns) == [(True, "user_cli", "user:me"), (False, "user_cli", "user:me")]
    assert messages(sql) == 1


def test_a_backfills_jobs_go_through_their_lane(
    connection: Connection, app: Celery, sql: Sql
) -> None:
    make_lane(sql, "l", 2)
    add(sql, job='{"lane": "l", "priority": 1}')
    times = [datetime(2026, 1, 1, hour, tzinfo=UTC) for hour in range(5)]
    unit = UnitOfWork(connection, Settings.load(app.conf), Actor("user:me"), app=lambda: app)
    done = control.backfill(unit, "s", times, job_source="user_cli")
    assert [tick.outcome for tick in done.ticks] == ["launched"] * 5
    assert jobs(sql, "due_at, dispatched_at IS NOT NULL") == [
        (moment, number < 2) for number, moment in enumerate(times)
    ]
    assert messages(sql) == 2


def test_a_job_whose_arguments_are_not_json_needs_a_key(inside: Connection) -> None:
    found = JobDefaults(inside, Settings(make_url("postgresql:///x")), [])
    job = new_job(args=None)
    kept = found.apply(job, JobPolicy(unique_key="k", unique_for=timedelta(hours=1)))
    assert kept.unique_key == "k"
    with raises(InvalidJob, ("unique_key", "required")):
        found.apply(job, JobPolicy(unique_for=timedelta(hours=1)))
