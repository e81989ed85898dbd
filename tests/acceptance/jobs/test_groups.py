"""Groups with real workers: order, failure policies, retries, workers that are killed."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from pgbeat.jobs.submitting.submit_group import SubmittedGroup, submit_group
from tests.support.command_line import Sql
from tests.support.databases import sqlalchemy_url
from tests.support.jobs import any_arguments
from tests.support.processes import Process, Processes, until

Start = Callable[..., Process]
Submit = Callable[..., SubmittedGroup]


@pytest.fixture
def app(app: Celery, database: str) -> Celery:
    """The app, its broker pgbeat's transport, with the tasks of `tests.support.apps.recorded`."""
    app.conf.broker_url = f"pgbeat+{sqlalchemy_url(database)}"
    for name in ("fail", "hold", "remember", "leave"):
        app.task(any_arguments, name=f"tests.{name}", shared=False)
    return app


@pytest.fixture
def submit(app: Celery) -> Submit:
    """Submits a group; its jobs are tried once, unless told otherwise."""

    def members(*jobs: Any, **options: Any) -> SubmittedGroup:
        given = [{"task": f"tests.{job}"} if isinstance(job, str) else job for job in jobs]
        return submit_group([{"max_attempts": 1, **job} for job in given], app=app, **options)

    return members


@pytest.fixture
def worker(app: Celery, processes: Processes, tmp_path: Path) -> Start:
    """Starts a worker of two processes, which takes no more than two messages."""
    env = {"TESTS_BROKER": str(app.conf.broker_url), "TESTS_FOLDER": str(tmp_path)}
    options = ("-P", "prefork", "-c", "2", "--prefetch-multiplier", "1")
    return lambda: processes.worker(*options, app="tests.support.apps.recorded", **env)


def end(sql: Sql, seconds: float = 60) -> tuple[str, list[str]]:
    """Waits for the group's end; how it ended, and its members by position and attempt."""
    [(state,)] = until(
        lambda: sql("SELECT state FROM pgbeat.groups WHERE finished_at IS NOT NULL"), seconds
    )
    rows = sql("SELECT state FROM pgbeat.jobs ORDER BY group_position, attempt, created_at")
    return state, [each for (each,) in rows]


def overlaps(sql: Sql) -> list[tuple[Any, ...]]:
    """Executions that began before those of the positions before them had ended."""
    return sql(
        """
        SELECT a.group_position, b.group_position
          FROM pgbeat.executions x JOIN pgbeat.jobs a ON a.id = x.job_id
               JOIN pgbeat.jobs b ON b.group_position > a.group_position
               JOIN pgbeat.executions y ON y.job_id = b.id
         WHERE y.started_at < x.finished_at
        """
    )


def test_a_sequence_with_a_member_that_fails(worker: Start, submit: Submit, sql: Sql) -> None:
    worker()
    submit("add", "fail", "add", "add", mode="sequential")
    assert end(sql) == ("failed", ["completed", "failed", "cancelled", "cancelled"])
    failed = sql("SELECT error FROM pgbeat.jobs WHERE state = 'failed'")
    assert failed == [("ValueError: no such thing",)]
    assert sql("SELECT count(*) FROM pgbeat.executions") == [(2,)]
    assert overlaps(sql) == []
    assert sql("SELECT count(*) FROM kombu_message WHERE job_id IS NOT NULL") == [(0,)]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_workers_that_are_killed_lose_no_turn(worker: Start, submit: Submit, sql: Sql) -> None:
    tried = {"task": "tests.add", "max_attempts": 9, "retry_base": 0}
    submit(*[tried] * 40, mode="sequential")
    for kill in range(4):
        running = worker()
        until(partial(sql, f"SELECT 1 FROM pgbeat.jobs WHERE state = 'completed' OFFSET {kill}4"))
        running.kill_group()
    worker()
    state, members = end(sql, 120)
    assert state == "completed"
    assert members.count("completed") == 40
    assert set(members) <= {"completed", "failed"}
    unretried = "SELECT id FROM pgbeat.jobs WHERE state = 'failed' AND retried_by IS NULL"
    assert sql(unretried) == []
    assert overlaps(sql) == []


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_workers_that_are_killed_lose_no_edge_and_call_back_once(
    worker: Start, submit: Submit, sql: Sql
) -> None:
    """Ten rows of four members, each of which depends on the whole row before it."""
    tried = {"task": "tests.add", "max_attempts": 9, "retry_base": 0}
    rows = [[f"{row}.{column}" for column in range(4)] for row in range(10)]
    members = [
        {**tried, "key": key, "depends_on": rows[row - 1] if row else []}
        for row, keys in enumerate(rows)
        for key in keys
    ]
    made = submit(*members, callback=tried)
    for kill in range(4):
        running = worker()
        until(partial(sql, f"SELECT 1 FROM pgbeat.jobs WHERE state = 'completed' OFFSET {kill}4"))
        running.kill_group()
    worker()
    until(lambda: sql("SELECT 1 FROM pgbeat.groups WHERE state = 'completed'"), 120)
    assert made.callback is not None
    completed = "SELECT count(*) FROM pgbeat.jobs WHERE state = 'completed' AND callback_of IS "
    until(lambda: sql(completed + "NOT NULL") == [(1,)])
    assert sql(completed + "NULL") == [(40,)]
    # None began before all of the row before it had completed.
    assert (
        sql(
            """
        SELECT j.id FROM pgbeat.jobs j JOIN pgbeat.executions e ON e.job_id = j.id
               JOIN pgbeat.dependencies d ON d.job_id = j.id AND d.outcome = 'completed'
               JOIN pgbeat.jobs p ON p.id = d.parent_id
         WHERE e.started_at < p.finished_at
        """
        )
        == []
    )
    assert sql("SELECT count(*) FROM pgbeat.dependencies WHERE outcome IS NULL") == [(0,)]
