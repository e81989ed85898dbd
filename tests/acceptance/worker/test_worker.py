"""A worker records its executions in any app with pgbeat, and recording never fails a task."""

import json
import logging
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery, signals

import pgbeat
from pgbeat.config import postgres_url
from pgbeat.database import connections
from pgbeat.jobs.running import job_reports, workers
from pgbeat.jobs.running.job_reports import JobReport
from pgbeat.worker import signals as worker
from pgbeat.worker.recording import process_recorder
from tests.support.command_line import Sql, read
from tests.support.databases import sqlalchemy_url
from tests.support.processes import Processes, shell, until
from tests.support.rows import insert, make_job, make_schedule
from tests.support.schedulers import Beat


@pytest.mark.parametrize(
    "pool",
    ["prefork", *(pytest.param(pool, marks=pytest.mark.slow) for pool in ("solo", "threads"))],
)
def test_jobs_of_schedules_are_followed(processes: Processes, sql: Sql, pool: str) -> None:
    """On a stock transport too."""
    for name in ("add", "fail", "retry"):
        make_schedule(sql, name, due="0", task=f"tests.{name}", job_policy={"max_attempts": 1})
    processes.worker("-P", pool, "-c", "2", app="tests.support.apps.recorded")
    processes.beat(app="tests.support.apps.recorded")
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


def test_what_a_task_logs_in_json_has_its_id(processes: Processes, sql: Sql) -> None:
    make_schedule(sql, task="tests.log", due="0")
    worker = processes.worker(app="tests.support.apps.recorded", PGBEAT_LOG_FORMAT="json")
    processes.beat(app="tests.support.apps.recorded")
    worker.says('"message": "twice?"')
    [(job_id,)] = sql("SELECT id FROM pgbeat.jobs")
    lines = [json.loads(line) for line in worker.output.splitlines() if line.startswith('{"time"')]
    [line] = [line for line in lines if line["message"] == "twice?"]
    assert (line["task"], line["task_id"]) == ("tests.log", str(job_id))
    assert all("task_id" not in line for line in lines if line["message"].endswith("ready."))


def test_a_task_that_no_worker_has_registered(
    processes: Processes, app: Celery, beat: Beat, database: str, sql: Sql
) -> None:
    """Its jobs fail with its name and the nearest, without retries; `doctor` warns."""

    @app.task(name="tests.failing", shared=False)
    def failing() -> None:
        """Known to beat alone."""

    make_schedule(sql, due="0", task="tests.failing", job_policy='{"max_attempts": 3}')
    processes.worker("-P", "solo", app="tests.support.apps.recorded")
    until(lambda: sql("SELECT 1 FROM pgbeat.workers WHERE tasks @> '{tests.fail}'"))
    assert beat().run_due() == 1
    until(lambda: sql("SELECT state FROM pgbeat.jobs") == [("failed",)])
    [(error, worker)] = sql("SELECT j.error, w.name FROM pgbeat.jobs j, pgbeat.workers w")
    assert error == (
        f"NotRegistered: worker {worker} has not registered task 'tests.failing'; "
        "did you mean 'tests.fail'?"
    )
    checks = {check["check"]: check for check in read(database, "doctor")["checks"]}
    assert (checks["tasks"]["result"], checks["jobs"]["result"]) == ("warn", "warn")
    assert checks["tasks"]["detail"] == (
        "no worker has task 'tests.failing' of schedule 's'; did you mean 'tests.fail'?"
    )
    assert "s (1 in a row; last: NotRegistered" in checks["jobs"]["detail"]


@pytest.mark.parametrize(
    ("tasks", "is_retried"),
    [(None, False), (["jobs.other"], False), (["jobs.add"], True), ("unsaid", True)],
)
def test_an_unknown_task_is_retried_where_another_worker_may_know_it(
    database: str, sql: Sql, tasks: Any, is_retried: bool
) -> None:
    """As while a new version is rolled out; a worker of an older version doesn't say."""
    if tasks is not None:
        said = None if tasks == "unsaid" else tasks
        sql(
            "INSERT INTO pgbeat.workers (name, pid, tasks, alive_until) "
            "VALUES ('w2', 2, %s, now() + interval '1 minute')",
            said,
        )
    sql("INSERT INTO pgbeat.workers (name, pid, tasks) VALUES ('w1', 1, '{}')")
    job = make_job(sql, dispatched_at="now", max_attempts=2)
    with connections.engine(postgres_url(database), "tests").begin() as connection:
        report = JobReport(
            job, "failed", "NotRegistered", "failed", lost=False, began=False, is_unknown=True
        )
        job_reports.record(connection, 1, [report])
    [(state, retried_by)] = sql("SELECT state, retried_by FROM pgbeat.jobs WHERE id = %s", job)
    assert (state, retried_by is not None) == ("failed", is_retried)


@pytest.mark.parametrize(
    ("columns", "found"),
    [
        ({"tasks": ["a", "t"]}, True),
        ({}, True),  # it doesn't say
        ({"tasks": ["t"], "queues": ["q"], "namespace": "default"}, True),
        ({"tasks": ["t"], "queues": ["other"]}, None),
        ({"tasks": ["t"], "namespace": "other"}, None),
        ({"tasks": ["t"], "alive_until": "2020-01-01Z"}, None),
        ({"tasks": ["a"]}, None),
        ({"tasks": ["a"], "started_at": "now"}, False),
        ({"tasks": ["a"], "started_at": "now", "queues": ["other"]}, None),
    ],
)
def test_who_may_know_a_task(
    database: str, sql: Sql, columns: dict[str, Any], found: bool | None
) -> None:
    row = {"alive_until": "infinity", "started_at": "2020-01-01Z"} | columns
    insert(sql, "workers", {"name": "w", "pid": 1} | row)
    with connections.engine(postgres_url(database), "tests").connect() as connection:
        worker = workers.may_know_task(connection, "default", "t", "q", window=60)
    assert (worker and worker.knows) is found


@pytest.mark.slow
def test_recording_that_fails_does_not_fail_the_task(processes: Processes, sql: Sql) -> None:
    make_schedule(sql, due="0", task="tests.note")
    worker = processes.worker(
        app="tests.support.apps.recorded", PGBEAT_URL="postgresql://nobody@127.0.0.1:1/none"
    )
    processes.beat()
    until(lambda: sql("SELECT to_regclass('notes') IS NOT NULL")[0][0])
    until(lambda: sql("SELECT count(*) FROM notes") == [(1,)])
    worker.says("succeeded in")
    assert worker.output.count("Can't record executions") == 1


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["pgbeat", "sqla"])
def test_the_app_need_not_import_anything(
    scheme: str, database: str, processes: Processes, sql: Sql, tmp_path: Path
) -> None:
    (tmp_path / "plain_app.py").write_text(
        "from celery import Celery\n"
        f"app = Celery('plain', broker='{scheme}+{sqlalchemy_url(database)}')\n"
        "@app.task(name='plain.task')\ndef task(): ...\n"
    )
    processes.celery(
        "worker", "-P", "solo", "-l", "INFO", app="plain_app", PYTHONPATH=str(tmp_path)
    )
    app = Celery("plain", broker=f"{scheme}+{sqlalchemy_url(database)}", set_as_current=False)

    @app.task(name="plain.task", shared=False)
    def task() -> None: ...

    until(lambda: sql("SELECT 1 FROM pgbeat.workers"))
    pgbeat.submit("plain.task", app=app)
    until(lambda: sql("SELECT 1 FROM pgbeat.executions WHERE state = 'completed'"))
    assert sql("SELECT state FROM pgbeat.jobs") == [("completed",)]


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
    """Imports by kombu happen during its own or Celery's import, and by the command line again."""
    code = (
        f"{order}\nimport celery.bin.celery, celery.signals, sys\n"
        "print(len([1 for key, _ in celery.signals.worker_init.receivers "
        "if key[0] == 'pgbeat.worker']), 'pgbeat.worker' in sys.modules)"
    )
    done = shell(sys.executable, "-c", code)
    assert (done.stdout, done.stderr) == ("1 False\n", "")


def a_worker(broker: str, **settings: Any) -> Any:
    """Returns a worker as the receivers of its signal see it."""
    app = Celery("some", broker=broker, set_as_current=False)
    app.conf.update(settings)
    values = {"pool_cls": "prefork", "concurrency": 2, "hostname": "w@x"}
    return SimpleNamespace(app=app, **values, time_limit=None, soft_time_limit=None)


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
    monkeypatch.setattr(process_recorder, "_recorder", None)
    for name in [each for each in os.environ if each.startswith("PGBEAT_")]:
        monkeypatch.delenv(name)  # of tests on another server: PGBEAT_TEST_URL
    with caplog.at_level(logging.WARNING):
        worker.set_up(a_worker(broker, **settings))
    assert is_tracked() is tracked
    assert bool(caplog.records) is warned
    assert process_recorder._recorder is None  # nothing is connected yet


@pytest.mark.parametrize(
    ("broker", "options", "said"),
    [
        ("pgbeat+postgresql://h/d", {"batch_sise": 1}, "batch_sise: no such option; "),
        ("pgbeat+postgresql://h:port/d", {}, "the database URL can't be parsed"),
    ],
)
def test_a_wrong_broker_is_one_plain_error(
    processes: Processes, tmp_path: Path, broker: str, options: dict[str, Any], said: str
) -> None:
    (tmp_path / "wrong_app.py").write_text(
        f"from celery import Celery\napp = Celery('wrong', broker={broker!r})\n"
        f"app.conf.broker_transport_options = {options!r}\n"
    )
    worker = processes.worker(app="wrong_app", PYTHONPATH=str(tmp_path))
    assert worker.wait(30) == 1
    assert "Traceback" not in worker.output
    assert said in worker.output.partition("pgbeat: ")[2]


def test_outside_of_a_task_nothing_is_recorded() -> None:
    pgbeat.progress(1, 2, "x")
    pgbeat.report(x=1)
    pgbeat.artifacts("x")
    pgbeat.checkpoint({"x": 1})
    assert pgbeat.checkpoint() is None
    assert not pgbeat.is_cancelled()
    with pytest.raises(TypeError):
        pgbeat.checkpoint({1, 2})
    with pytest.raises(TypeError, match="artifact"):
        pgbeat.artifacts(3)  # type: ignore[arg-type]
