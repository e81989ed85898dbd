"""`pgbeat.submit_many`: many jobs in one transaction, all or none."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
from celery import Celery, group
from sqlalchemy import Engine
from sqlalchemy.orm import Session

import pgbeat
from pgbeat.errors import InvalidInput, InvalidJob, UnknownTask
from pgbeat.jobs.submitting import submit_many
from tests.support.rows import Sql, make_lane


@pytest.fixture
def add(app: Celery) -> Any:
    return app.tasks["tests.add"]


def stored(sql: Sql) -> list[Any]:
    return [args for (args,) in sql("SELECT args FROM pgbeat.jobs ORDER BY args")]


def test_each_gets_its_message(app: Celery, add: Any, sql: Sql) -> None:
    ids = pgbeat.submit_many([add.s(n, 0) for n in range(2_500)], app=app)
    assert stored(sql) == [[n, 0] for n in range(2_500)]
    rows = sql("SELECT id::text, args FROM pgbeat.jobs ORDER BY args")
    assert [job_id for job_id, _ in rows] == ids
    assert sql("SELECT count(DISTINCT job_id) FROM kombu_message") == [(2_500,)]


def test_they_are_described_as_members_of_a_group_are(app: Celery, add: Any, sql: Sql) -> None:
    jobs = [add, "tests.add", add.s(1, 2), {"task": add, "args": [3, 4], "max_attempts": 2}]
    assert len(pgbeat.submit_many(jobs, app=app)) == 4
    assert stored(sql) == [[], [], [1, 2], [3, 4]]


def test_a_policy_holds_for_all_that_say_nothing_else(app: Celery, add: Any, sql: Sql) -> None:
    make_lane(sql)
    pgbeat.submit_many(
        [add.s(1, 1), {"task": add, "args": [2, 2], "priority": 7}],
        app=app,
        lane="l",
        priority=3,
        tags=["a"],
    )
    found = sql(
        "SELECT lane, priority, tags, dispatched_at IS NOT NULL FROM pgbeat.jobs ORDER BY priority"
    )
    # The lane was dispatched after the commit.
    assert found == [("l", 3, ["a"], False), ("l", 7, ["a"], True)]


def test_all_or_none(app: Celery, add: Any, sql: Sql) -> None:
    def jobs() -> Iterator[Any]:
        for number in range(1_500):
            yield add.s(number, 0)
        yield "no.such.task"

    with pytest.raises(UnknownTask, match="job 1500: "):
        pgbeat.submit_many(jobs(), app=app)
    assert sql("SELECT count(*) FROM pgbeat.jobs") == sql("SELECT count(*) FROM kombu_message")
    assert stored(sql) == []


def test_it_says_which_job_is_wrong(app: Celery, add: Any) -> None:
    with pytest.raises(InvalidJob) as caught:
        pgbeat.submit_many([add.s(1, 2), {"task": add, "max_attempts": 0}], app=app)
    assert [each.field for each in caught.value.problems] == ["jobs[1].max_attempts"]
    with pytest.raises(InvalidJob) as caught:
        pgbeat.submit_many([group(add.s(1, 2))], app=app)
    assert [each.field for each in caught.value.problems] == ["jobs[0].jobs"]
    wrong: Any
    for wrong in ("tests.add", 5):
        with pytest.raises(TypeError):
            pgbeat.submit_many(wrong, app=app)


def test_a_unique_key_is_taken_once(app: Celery, add: Any, sql: Sql) -> None:
    first = pgbeat.submit(add, 1, 2, unique=True, app=app)
    ids = pgbeat.submit_many([add.s(1, 2), add.s(3, 4), add.s(3, 4)], unique=True, app=app)
    assert ids[0] == str(first.id)
    assert ids[1] == ids[2] != ids[0]
    assert stored(sql) == [[1, 2], [3, 4]]
    assert sql("SELECT count(*) FROM kombu_message") == [(2,)]


def test_it_joins_the_callers_transaction(app: Celery, add: Any, sql: Sql, engine: Engine) -> None:
    with Session(engine) as session:
        pgbeat.submit_many([add.s(1, 1), add.s(2, 2)], connection=session, app=app)
        assert stored(sql) == []
        session.rollback()
        pgbeat.submit_many([add.s(3, 3)], connection=session, app=app)
        session.commit()
    assert stored(sql) == [[3, 3]]


def test_what_waits_for_its_time(app: Celery, add: Any, sql: Sql) -> None:
    pgbeat.submit_many([{"task": add, "args": [1, 1], "countdown": 60}, add.s(2, 2)], app=app)
    assert sql("SELECT state FROM pgbeat.jobs ORDER BY args") == [("scheduled",), ("pending",)]


def test_many_have_deadlines(app: Celery, add: Any, sql: Sql) -> None:
    """Also so many that they are written with COPY."""
    pgbeat.submit_many([add] * 150, app=app, must_start_within="1 hour")
    assert sql("SELECT count(must_start_by), count(next_deadline) FROM pgbeat.jobs") == [(150, 150)]


def test_none_at_all(app: Celery, sql: Sql) -> None:
    assert pgbeat.submit_many([], app=app) == []
    assert stored(sql) == []


def rows(sql: Sql) -> list[Any]:
    return sql(
        """
        SELECT to_jsonb(j) - '{id,created_at,dispatched_at,paused_at,position}'::text[],
               dispatched_at = created_at, j.paused_at = created_at, q.name, m.priority,
               replace(m.payload, j.id::text, 'id')
          FROM pgbeat.jobs j LEFT JOIN kombu_message m ON m.job_id = j.id
               LEFT JOIN kombu_queue q ON q.id = m.queue_id
         ORDER BY 1, 6
        """
    )


POLICIES: list[dict[str, Any]] = [
    {},
    {"max_attempts": 4, "retry_base": 0.5, "retry_cap": "2 hours"},
    {"priority": 9, "tags": ['q"\\,{}\t\n', "é"], "resources": {"gpu": 0.5}},
    {"lane": "full"},
    {"requires_approval": True},
    {"unique": True},
]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: " ".join(policy) or "plain")
def test_many_are_written_as_few_are(
    app: Celery, sql: Sql, monkeypatch: pytest.MonkeyPatch, policy: dict[str, Any]
) -> None:
    """What they have in common is checked once, or each is checked for itself."""
    make_lane(sql, "full", limit=0)
    texts = ["", "\\", "\\N", "\t\n\r", 'a"b', "é€😀", "x" * 300, "%s %(id)s"]
    texts += [str(number) for number in range(100)]
    described: list[dict[str, Any]] = [{"task": "tests.note", "args": [text]} for text in texts]
    described += [
        {"task": "tests.add", "kwargs": {"x": None, "y": [1.5, {"a": "\\"}]}},
        {"task": "tests.add", "args": (1,), "queue": "other", "description": "a\tb\\"},
        {"task": "tests.add", "labels": {"team": "a"}, "metadata": {"k": ["\\"]}},
        {"task": "tests.add", "args": [2], "options": {"queue": "other"}},
        {"task": "tests.add", "args": [3], "countdown": -1},
    ]

    def written() -> list[Any]:
        pgbeat.submit_many(described, app=app, **policy)
        found = rows(sql)
        sql("DELETE FROM pgbeat.jobs")
        sql("DELETE FROM kombu_message")
        return found

    written()  # Celery makes the first message of each kind
    many = written()
    assert len(many) == len(described)
    monkeypatch.setattr(submit_many, "_BATCH", 1)
    assert written() == many


def test_many_of_one_task_are_told_apart(app: Celery, sql: Sql) -> None:
    """What they have in common is checked once; what differs, each time."""
    given: list[tuple[Any, str]] = [
        ({"args": [1, 2, 3]}, "args"),
        ({"args": "text"}, "args"),
        ({"kwargs": {"z": 1}}, "kwargs"),
        ({"description": ""}, "description"),
        ({"run_at": datetime(2026, 1, 1)}, "run_at"),  # noqa: DTZ001
        ({"run_at": []}, "run_at"),
        ({"options": {"eta": 1}}, "options"),
        ({"options": {"nope": 1}}, "options"),
        ({"args": ["\0"]}, ""),
        ({"lane": "nope"}, "lane"),
    ]
    for wrong, field in given:
        jobs = [{"task": "tests.add"}] * 3 + [{"task": "tests.add", **wrong}]
        with pytest.raises(InvalidInput) as caught:
            pgbeat.submit_many(jobs, app=app)
        assert [each.field for each in caught.value.problems] == [
            f"jobs[3].{field}" if field else "jobs[3]"
        ]
    assert stored(sql) == []
