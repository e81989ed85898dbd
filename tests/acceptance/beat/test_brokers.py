"""Beats and their broker: in the same database, elsewhere, and away."""

import json
from pathlib import Path

import psycopg
import pytest
from celery import Celery

from pgbeat.beat.maintenance import leader_maintenance
from pgbeat.beat.scheduler import Scheduler
from tests.support.processes import Processes
from tests.support.rows import Sql, make_job, make_schedule
from tests.support.schedulers import Beat


@pytest.mark.slow
def test_migrating_with_the_app_makes_the_broker_too(
    processes: Processes, empty_database: str
) -> None:
    migrating = [
        processes.celery("pgbeat", "migrate", TESTS_DATABASE=empty_database) for _ in range(3)
    ]
    assert [process.wait(60) for process in migrating] == [0, 0, 0]
    assert "The broker's tables and queues are there." in migrating[0].output
    with psycopg.connect(empty_database) as connection:
        assert connection.execute("SELECT name FROM kombu_queue").fetchall() == [("celery",)]


def publish_elsewhere(app: Celery, sql: Sql, database: str, folder: Path) -> None:
    """Gives the app kombu's broker on the file system, and makes a schedule that is due."""
    app.conf.pgbeat_url = database
    app.conf.broker_url = "filesystem://"
    app.conf.broker_transport_options = dict.fromkeys(
        ("data_folder_in", "data_folder_out", "control_folder"), str(folder)
    )
    make_schedule(sql, due="0")


def test_a_broker_elsewhere(
    app: Celery, beat: Beat, sql: Sql, database: str, tmp_path: Path
) -> None:
    """Another broker (here kombu's on the file system) gets the message; all else is the same."""
    publish_elsewhere(app, sql, database, tmp_path)
    assert beat().run_due() == 1
    [(outcome, job_id)] = sql("SELECT outcome, job_id FROM pgbeat.ticks")
    assert outcome == "launched"
    [message] = [json.loads(file.read_text()) for file in tmp_path.glob("*.msg")]
    assert message["headers"]["id"] == str(job_id)
    assert sql("SELECT count(*) FROM kombu_message") == [(0,)]


def test_a_beat_that_dies_after_it_published_elsewhere_publishes_again_under_the_same_id(
    app: Celery, beat: Beat, sql: Sql, database: str, tmp_path: Path
) -> None:
    """At least once: the message has gone out, and its transaction has not committed."""

    class Dying(Scheduler):
        def reached(self, step: str) -> None:
            if step == "before commit":
                raise KeyboardInterrupt

    publish_elsewhere(app, sql, database, tmp_path)
    first = Dying(app=app)
    with pytest.raises(KeyboardInterrupt):
        first.run_due()
    first.close()
    assert sql("SELECT count(*) FROM pgbeat.ticks") == [(0,)]
    assert beat().run_due() == 1
    [(job_id,)] = sql("SELECT job_id::text FROM pgbeat.ticks")
    messages = [json.loads(file.read_text()) for file in tmp_path.glob("*.msg")]
    assert [message["headers"]["id"] for message in messages] == [job_id] * 2


def test_a_broker_that_is_away_fails_the_tick(
    app: Celery, beat: Beat, sql: Sql, database: str
) -> None:
    app.conf.pgbeat_url = database
    app.conf.broker_url = "amqp://127.0.0.1:1//"
    app.conf.broker_connection_max_retries = 1
    app.conf.task_publish_retry = False
    make_schedule(sql, due="0")
    assert beat().run_due() == 1
    [(outcome, error)] = sql("SELECT outcome, error FROM pgbeat.ticks")
    assert outcome == "failed" and "refused" in error.lower()
    assert sql("SELECT count(*) FROM pgbeat.jobs") == [(0,)]


def test_jobs_that_wait_for_a_broker_that_is_away_are_logged_once(
    app: Celery,
    beat: Beat,
    sql: Sql,
    database: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(leader_maintenance, "_PATIENCE", 0.0)
    app.conf.pgbeat_url = database
    app.conf.broker_url = "amqp://127.0.0.1:1//"
    app.conf.broker_connection_max_retries = 1
    app.conf.task_publish_retry = False
    make_job(sql, "scheduled", run_at="now")
    scheduler = beat()
    for _ in range(3):
        scheduler.run_due()
    [said] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert said.startswith("Jobs wait until the broker is back: ")
