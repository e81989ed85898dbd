"""What existed before a move to pgbeat runs once, as on Celery, whichever way it comes."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery
from celery.beat import PersistentScheduler

import pgbeat
from pgbeat.jobs.running.executions import ExecutionRecord
from tests.support.command_line import run, run_with
from tests.support.jobs import JobControl
from tests.support.rows import Sql, make_schedule
from tests.support.schedulers import Beat
from tests.support.transport_workers import transport_url

TASK = "tests.add"
ENTRY = {"task": TASK, "schedule": timedelta(hours=1), "args": (1, 2)}


@pytest.fixture
def app(app: Celery, database: str) -> Celery:
    """The app, on pgbeat's transport."""
    app.conf.update(broker_url=transport_url(database), pgbeat_url=database)
    return app


def done(app: Celery, *arguments: str) -> None:
    answer = run_with(app, *arguments)
    assert answer.exit_code == 0, answer.output


def import_celery(app: Celery, folder: Path) -> None:
    """All imports make rows by the same plan; this one reads a file of Celery's own beat."""
    old = Celery("old", broker="memory://", set_as_current=False)
    old.conf.update(beat_schedule={"s": ENTRY}, result_expires=None)
    theirs = PersistentScheduler(app=old, schedule_filename=str(folder / "beat"))
    theirs.schedule["s"] = theirs.schedule["s"].next(last_run_at=datetime.now(UTC))
    theirs.close()
    imported = run(app.conf.pgbeat_url, "import", "celery", "--from", str(folder / "beat"))
    assert imported.exit_code == 0, imported.output


def file_entry(app: Celery, folder: Path) -> None:
    app.conf.pgbeat_allowed_functions = {"add": TASK}
    path = folder / "schedules.yml"
    path.write_text("schedulers:\n- {name: s, interval_minutes: 15, function: add}\n")
    done(app, "sync", str(path))


#: Ways to make schedules: of each, a beat launches a job.
SCHEDULES: dict[str, Callable[[Celery, Path, Sql], object]] = {
    "beat_schedule": lambda app, folder, sql: app.conf.update(beat_schedule={"s": ENTRY}),
    "import": lambda app, folder, sql: import_celery(app, folder),
    "file": lambda app, folder, sql: file_entry(app, folder),
    "command": lambda app, folder, sql: done(app, "add", "s", "--task", TASK, "--every", "1 h"),
    "sql": lambda app, folder, sql: make_schedule(sql),
    "launcher": lambda app, folder, sql: make_schedule(sql, condition_sql="SELECT true"),
    "policy": lambda app, folder, sql: make_schedule(sql, job_policy={"priority": 5}),
}
#: Ways to make jobs without a schedule.
JOBS: dict[str, Callable[[Celery, Sql], object]] = {
    "submit": lambda app, sql: pgbeat.submit(TASK, 1, app=app),
    "submit_many": lambda app, sql: pgbeat.submit_many([TASK], app=app),
    "submit_group": lambda app, sql: pgbeat.submit_group([{"task": TASK}], app=app),
    "jobs run": lambda app, sql: done(app, "jobs", "run", TASK),
    "SQL": lambda app, sql: sql(f"SELECT pgbeat.submit('{TASK}')"),
    "a task's policy": lambda app, sql: app.tasks["tests.note"].delay(),
}


def fails_once(job_control: JobControl, sql: Sql) -> None:
    """Has a worker tell that the only job failed, and checks that nothing follows."""
    [(job, state, most)] = sql("SELECT id, state, max_attempts FROM pgbeat.jobs")
    assert (state in ("pending", "scheduled"), most) == (True, 1)
    sql("DELETE FROM kombu_message")
    failed: Any = ExecutionRecord(str(uuid4()), str(job), True, "failed", "failed", worker="w")
    job_control.record(failed)
    assert sql("SELECT state, retried_by FROM pgbeat.jobs") == [("failed", None)]
    assert sql("SELECT count(*) FROM kombu_message") == [(0,)]


@pytest.mark.parametrize("way", SCHEDULES)
def test_a_job_of_a_schedule_that_fails_is_not_run_again(
    app: Celery, beat: Beat, job_control: JobControl, sql: Sql, tmp_path: Path, way: str
) -> None:
    SCHEDULES[way](app, tmp_path, sql)
    scheduler = beat()
    scheduler.run_due()
    sql("UPDATE pgbeat.schedules SET next_run = now() WHERE name = 's'")
    scheduler.run_due()
    fails_once(job_control, sql)


def test_a_job_that_fails_is_not_run_again(app: Celery, job_control: JobControl, sql: Sql) -> None:
    app.conf.pgbeat_task_policies = {"tests.note": {"priority": 5}}
    for way in JOBS.values():
        way(app, sql)
        fails_once(job_control, sql)
        sql("DELETE FROM pgbeat.jobs")
