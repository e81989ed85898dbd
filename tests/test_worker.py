"""What workers tell about launched jobs, and that telling never fails a task."""

from collections.abc import Callable
from typing import Any

import pytest

from pgbeat.scheduler import Scheduler
from tests.processes import Processes, until

Beat = Callable[..., Scheduler]
Sql = Callable[..., list[tuple[Any, ...]]]


@pytest.mark.parametrize(
    "pool",
    ["prefork", *(pytest.param(pool, marks=pytest.mark.slow) for pool in ("solo", "threads"))],
)
def test_jobs_are_followed(processes: Processes, sql: Sql, pool: str) -> None:
    sql(
        "INSERT INTO pgbeat.schedules (name, task, every, next_run) "
        "SELECT t, 'tests.' || t, '1 hour', now() FROM unnest(ARRAY['add', 'fail', 'retry']) t"
    )
    processes.worker("-P", pool, "-c", "2", app="tests.tracked_app")
    processes.beat(app="tests.tracked_app")
    ended = (
        "SELECT schedule, state, error, finished_at >= started_at, worker <> '' FROM pgbeat.jobs"
    )
    expected = {
        ("add", "completed", None, True, True),
        ("fail", "failed", "ValueError: no such thing", True, True),
        ("retry", "completed", None, True, True),
    }
    until(lambda: set(sql(ended)) == expected, what=str(expected))


@pytest.mark.slow
def test_a_killed_child_is_told_by_its_parent(processes: Processes, sql: Sql) -> None:
    sql(
        "INSERT INTO pgbeat.schedules (name, task, every, next_run) "
        "VALUES ('die', 'tests.die', '1 hour', now())"
    )
    processes.worker("-P", "prefork", "-c", "1", app="tests.tracked_app")
    processes.beat(app="tests.tracked_app")
    until(lambda: sql("SELECT state FROM pgbeat.jobs") == [("failed",)])
    [(error,)] = sql("SELECT error FROM pgbeat.jobs")
    assert error.startswith("WorkerLostError")


@pytest.mark.slow
def test_telling_that_fails_does_not_fail_the_task(processes: Processes, sql: Sql) -> None:
    sql(
        "INSERT INTO pgbeat.schedules (name, task, every, next_run) "
        "VALUES ('s', 'tests.note', '1 hour', now())"
    )
    worker = processes.worker(
        app="tests.tracked_app", PGBEAT_URL="postgresql://nobody@127.0.0.1:1/none"
    )
    processes.beat()
    until(lambda: sql("SELECT to_regclass('notes') IS NOT NULL")[0][0])
    until(lambda: sql("SELECT count(*) FROM notes") == [(1,)])
    worker.says("succeeded in")
    assert worker.output.count("Can't write how jobs fare") == 1
