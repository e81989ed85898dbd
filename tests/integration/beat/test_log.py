"""Decisions in the log: which have a line, which are summed up, and their fields as JSON."""

import json
import logging
import os
import re
import socket
from collections.abc import Callable
from datetime import timedelta

import psycopg
import pytest
from celery import Celery

from pgbeat import log
from pgbeat.beat import log as decision_log
from pgbeat.testing import Scheduler
from pgbeat.testing.fixtures import MakeScheduler
from tests.support.processes import Processes, until
from tests.support.rows import Sql
from tests.support.schedulers import HOUR, START, Beat, add

MINUTE = timedelta(minutes=1)
Said = Callable[[], list[str]]


@pytest.fixture
def scheduler(
    app: Celery, pgbeat_scheduler: MakeScheduler, caplog: pytest.LogCaptureFixture
) -> Scheduler:
    """One whose log is caught."""
    caplog.set_level(logging.INFO, "celery.beat.pgbeat")
    return pgbeat_scheduler(app, START)


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Said:
    """What was logged since this was last asked."""

    def said() -> list[str]:
        found = [r.getMessage() for r in caplog.records if r.name == "celery.beat.pgbeat"]
        caplog.clear()
        return [line for line in found if line.startswith(("Schedule '", "Skipped ", "Launched "))]

    return said


def count(scheduler: Scheduler) -> None:
    """The time for which skips are counted is over."""
    scheduler._log._began -= decision_log._COUNTED
    scheduler.run_due()


def test_a_skip_is_told_once_and_then_summed_up(said: Said, scheduler: Scheduler, sql: Sql) -> None:
    add(sql, every="1 minute", condition_sql="SELECT count(*) > 1000 FROM pgbeat.ticks")
    scheduler.run_until(START + 10 * MINUTE)
    assert said() == ["Schedule 's' skipped: condition_sql is false"]
    count(scheduler)
    [line] = said()
    assert line.startswith("Skipped 9 times more in 6")
    assert line.endswith(" s: 's' 9 times")
    count(scheduler)
    assert said() == []


def test_numbers_in_a_reason_make_no_new_one(said: Said, scheduler: Scheduler, sql: Sql) -> None:
    """The reason names the job before, which is another one."""
    add(sql, overlap="skip")
    scheduler.run_until(START + 2 * HOUR)
    assert len(said()) == 2
    sql("UPDATE pgbeat.jobs SET id = gen_random_uuid()")
    scheduler.run_until(START + 4 * HOUR)
    assert said() == []


def test_a_launch_between_makes_a_skip_new(said: Said, scheduler: Scheduler, sql: Sql) -> None:
    add(sql, condition_sql="SELECT count(*) = 2 FROM pgbeat.ticks")
    scheduler.run_until(START + 4 * HOUR)
    words = [line.split()[2] for line in said()]
    assert words == ["skipped:", "launched", "skipped:"]


def test_a_thousand_skips_do_not_hide_a_failure(said: Said, scheduler: Scheduler, sql: Sql) -> None:
    sql(
        "INSERT INTO pgbeat.schedules (name, task, every, starts_at, condition_sql) "
        "SELECT 's' || i, 'tests.add', '1 hour', %s, 'SELECT false' "
        "FROM generate_series(1, 1000) AS i",
        START - 24 * HOUR,
    )
    add(sql, "bad", task="tests.gone")
    scheduler.run_until(START + HOUR)
    lines = said()
    assert len([line for line in lines if "' skipped: " in line]) == decision_log._LINES
    [failure] = [line for line in lines if "' skipped: " not in line]
    assert failure.startswith("Schedule 'bad' failed (retry 1/5), retrying in ")
    count(scheduler)
    [line] = [line for line in said() if line.startswith("Skipped")]
    assert line.startswith("Skipped 980 times more in ")
    assert line.endswith(" once, 977 others")


def test_a_large_batch_of_launches_is_summed_up(
    said: Said, scheduler: Scheduler, sql: Sql, caplog: pytest.LogCaptureFixture
) -> None:
    """What is special about one of them has its own line still."""
    for number in range(101):
        add(sql, f"s{number:03}", starts_at=START)
    add(sql, "bad", task="tests.gone")
    add(sql, "once", every=None, starts_at=None, once_at=START + HOUR)
    scheduler.run_until(START + HOUR)
    lines = said()
    [launched] = [line for line in lines if line.startswith("Launched")]
    assert re.fullmatch(r"Launched 10[12] schedules: ('\w+', ){3}(98|99) others", launched)
    assert [line for line in lines if "' launched job" in line] == []
    assert [line for line in lines if line.startswith("Schedule 'bad' failed")]
    assert [line for line in lines if line.startswith("Schedule 'once' is completed")]
    caplog.set_level(logging.DEBUG, "celery.beat.pgbeat")
    scheduler.run_until(START + 2 * HOUR)
    assert len([line for line in said() if "' launched job" in line]) == 101


def test_the_fields_of_a_line(
    scheduler: Scheduler, sql: Sql, caplog: pytest.LogCaptureFixture
) -> None:
    add(sql)
    add(sql, "bad", task="tests.gone")
    scheduler.run_until(START + HOUR)
    written = [log.JsonFormatter().format(record) for record in caplog.records]
    lines = {line.get("schedule"): line for line in map(json.loads, written)}
    [tick] = [tick for tick in scheduler.ticks if tick.schedule == "s"]
    due = {"namespace": "default", "due_at": "2030-01-07T13:00:00+00:00"}
    launched = {"outcome": "launched", "task": "tests.add", "job_id": tick.job_id, "level": "INFO"}
    message = f"Schedule 's' launched job {tick.job_id}"
    assert lines["s"].items() >= (due | launched | {"message": message}).items()
    failed = {"outcome": "failed", "retry_count": 1, "max_retries": 5}
    assert lines["bad"].items() >= (due | failed).items()
    assert "is not registered" in lines["bad"]["error"]


def test_an_exception_in_json() -> None:
    try:
        raise ValueError("line one\nline two")
    except ValueError as error:
        info = (ValueError, error, error.__traceback__)
    record = logging.LogRecord("n", logging.ERROR, "f", 1, "it broke: %s", ("x",), info)
    line = log.JsonFormatter().format(record)
    assert "\n" not in line
    found = json.loads(line)
    assert found["message"] == "it broke: x"
    assert found["exception"].endswith("ValueError: line one\nline two")


@pytest.mark.parametrize("quiet", [[], ["-q"]])
def test_beat_writes_json(processes: Processes, quiet: list[str]) -> None:
    """Also where Celery sets its log up before it knows the scheduler."""
    command = ("beat", "-S", "pgbeat.Scheduler", "-l", "INFO")
    beat = processes.celery(*quiet, *command, PGBEAT_LOG_FORMAT="json")
    beat.says("This beat leads", 60)
    [leads] = [json.loads(line) for line in beat.output.splitlines() if "beat leads" in line]
    assert (leads["level"], leads["logger"]) == ("INFO", "celery.beat.pgbeat")


def test_a_standby_says_which_beat_leads(
    app: Celery, beat: Beat, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once at the start, and when another leads."""
    monkeypatch.setattr("pgbeat.beat.leadership.standby._EVERY", 0.0)
    caplog.set_level(logging.INFO, "celery.beat.pgbeat")
    app.conf.pgbeat_loop_interval = 0.3
    first, second, third = beat(), beat(), beat()
    first.tick()
    here = f"{socket.gethostname()}:{os.getpid()}"
    stands_by = f"Standing by: beat {here} leads (lock 1050)"
    for _ in range(3):
        second.tick()
        third.tick()
    assert caplog.messages == ["This beat leads (lock 1050)", stands_by, stands_by]
    first.close()
    caplog.clear()
    until(lambda: [second.tick(), "This beat leads" in caplog.text][1], 20)
    third.tick()
    leads = f"This beat leads (lock 1050); before it, {here} did"
    assert caplog.messages == [leads, stands_by]


def test_a_beat_says_when_its_lock_is_held_by_something_else(
    app: Celery, beat: Beat, database: str, caplog: pytest.LogCaptureFixture
) -> None:
    app.conf.pgbeat_loop_interval = 0.3
    with psycopg.connect(database, autocommit=True, application_name="report") as other:
        other.execute("SELECT pg_advisory_lock(1050)")
        beat().tick()
        [record] = [each for each in caplog.records if "Standing by" in each.getMessage()]
        pid = other.info.backend_pid
    assert record.levelname == "WARNING"
    assert f"lock 1050 is held by session {pid} (report)" in record.getMessage()
