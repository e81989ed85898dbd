"""A worker tells of its executions wherever pgbeat is, and telling never fails a task."""

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery, signals

import pgbeat
from pgbeat import recorders, worker
from pgbeat.scheduler import Scheduler
from tests.processes import Processes, until

Beat = Callable[..., Scheduler]
Sql = Callable[..., list[tuple[Any, ...]]]


@pytest.mark.parametrize(
    "pool",
    ["prefork", *(pytest.param(pool, marks=pytest.mark.slow) for pool in ("solo", "threads"))],
)
def test_jobs_of_schedules_are_followed(processes: Processes, sql: Sql, pool: str) -> None:
    """On a stock transport too."""
    sql(
        "INSERT INTO pgbeat.schedules (name, task, every, next_run, job) "
        "SELECT t, 'tests.' || t, '1 hour', now(), '{\"max_attempts\": 1}' "
        "FROM unnest(ARRAY['add', 'fail', 'retry']) t"
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
    runs = (
        "SELECT s.name, count(*) FROM pgbeat.executions e JOIN pgbeat.schedules s "
        "ON s.id = e.schedule_id GROUP BY 1"
    )
    assert dict(sql(runs)) == {"add": 1, "fail": 1, "retry": 2}


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


@pytest.mark.parametrize(
    "order",
    [
        "import pgbeat, celery",
        "import celery, pgbeat",
        "import kombu.serialization, celery",
        "import celery.bin.celery",
        "import celery.signals, pgbeat",
        "import celery.exceptions",
    ],
)
def test_no_order_of_imports_is_wrong(order: str) -> None:
    """kombu imports us while it, or Celery, is being imported; and the command line once more."""
    code = (
        f"{order}\nimport celery.bin.celery, celery.signals, sys\n"
        "print(len([1 for key, _ in celery.signals.worker_init.receivers "
        "if key[0] == 'pgbeat.worker']), 'pgbeat.worker' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("1 False\n", "")


def a_worker(broker: str, **settings: Any) -> Any:
    """What a worker is to those who get its signal."""
    app = Celery("some", broker=broker, set_as_current=False)
    app.conf.update(settings)
    return SimpleNamespace(app=app, pool_cls="prefork", concurrency=2, hostname="w@x")


@pytest.fixture
def unhooked() -> Any:
    """Signals are as before afterwards."""
    yield
    worker.set_up(a_worker("redis://"))
    assert not is_tracked()


def is_tracked() -> bool:
    """Whether tasks' signals have our receivers."""
    return any(key[0] == id(worker._begin) for key, _ in signals.task_prerun.receivers)


@pytest.mark.usefixtures("unhooked")
@pytest.mark.parametrize(
    ("broker", "settings", "tracked", "warned"),
    [
        ("pgbeat+postgresql://h/d", {}, True, False),
        ("redis://h", {"pgbeat_url": "postgresql://h/d"}, True, False),
        ("pgbeat+postgresql://h/d", {"pgbeat_track": "off"}, False, False),
        ("redis://h", {}, False, False),  # pgbeat happens to be installed
        ("pgbeat+postgresql://h/d", {"pgbeat_track": "some"}, False, True),
    ],
)
def test_where_it_is_on(
    broker: str,
    settings: dict[str, Any],
    tracked: bool,
    warned: bool,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recorders, "_recorder", None)
    for name in [each for each in os.environ if each.startswith("PGBEAT_")]:
        monkeypatch.delenv(name)  # of tests on another server: PGBEAT_TEST_URL
    with caplog.at_level(logging.WARNING):
        worker.set_up(a_worker(broker, **settings))
    assert is_tracked() is tracked
    assert bool(caplog.records) is warned
    assert recorders._recorder is None  # nothing is connected yet


def test_outside_of_a_task_nothing_is_told() -> None:
    pgbeat.progress(1, 2, "x")
    pgbeat.report(x=1)
    pgbeat.checkpoint({"x": 1})
    assert pgbeat.checkpoint() is None
    assert not pgbeat.is_cancelled()
    with pytest.raises(TypeError):
        pgbeat.checkpoint({1, 2})
