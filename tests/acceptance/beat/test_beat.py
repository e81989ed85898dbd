"""`celery beat -S pgbeat.Scheduler` as a process, with stock workers."""

import json
import re
import signal
import time
from base64 import b64decode
from pathlib import Path
from typing import Any

import psycopg
import pytest
from celery import Celery
from celery.beat import Service

from pgbeat import Context, Launcher, launcher
from pgbeat.beat.scheduler import Scheduler
from tests.support.processes import Processes, until
from tests.support.rows import Sql, make_schedule
from tests.support.schedulers import Beat


def outcomes(sql: Sql) -> str:
    """The outcomes so far, a letter each: l, s or f."""
    return "".join(row[0][0] for row in sql("SELECT outcome FROM pgbeat.ticks ORDER BY id"))


@pytest.mark.slow
def test_check_often_work_rarely(processes: Processes, sql: Sql) -> None:
    """Skip, skip, … until there is work; launch once; skip again, for the job has done it."""
    sql("CREATE TABLE work (id int, done bool DEFAULT false)")
    sql("CREATE TABLE notes (id text, data jsonb, at timestamptz DEFAULT now())")
    sql(
        "CREATE FUNCTION finish() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN UPDATE work SET done = true; RETURN NEW; END $$"
    )
    sql("CREATE TRIGGER finish AFTER INSERT ON notes FOR EACH ROW EXECUTE FUNCTION finish()")
    make_schedule(sql, "refresh", task=None, launcher="TableLauncher", every="1 second")
    processes.worker()
    beat = processes.beat()
    until(lambda: outcomes(sql).startswith("ss"))
    sql("INSERT INTO work VALUES (1)")
    until(lambda: re.fullmatch("s+l+s+s", outcomes(sql)))
    [(count, job_id, data)] = sql("SELECT count(*), min(id), min(data::text) FROM notes")
    assert outcomes(sql).count("l") == count or count >= 1
    assert json.loads(data)["launch"] == 1
    assert sql("SELECT count(*) FROM pgbeat.ticks WHERE job_id = %s", job_id) == [(1,)]
    assert sql(
        "SELECT enabled, retry_count, last_failure, last_success IS NOT NULL, cursor "
        "FROM pgbeat.schedules"
    ) == [(True, 0, None, True, count)]
    assert sql("SELECT DISTINCT reason FROM pgbeat.ticks WHERE outcome = 'skipped'") == [
        ("no work",)
    ]
    beat.says("Schedule 'refresh' skipped: no work")
    beat.says("Schedule 'refresh' launched job")


def test_celerys_own_entries(processes: Processes, sql: Sql) -> None:
    """Every kind of schedule in code becomes a row, and is launched as Celery would."""
    beat = processes.beat(app="tests.support.apps.schedules_in_code")
    every_second = {"timedelta", "number", "schedule", "relative", "lazy", "after configure"}

    def launched() -> set[str]:
        return {
            row[0]
            for row in sql("SELECT schedule FROM pgbeat.ticks GROUP BY 1 HAVING count(*) > 1")
        }

    until(lambda: launched() >= every_second)
    beat.says("beat_init with")
    rows = {
        row[0]: row[1:]
        for row in sql(
            "SELECT name, cron, every::text, timezone, args, kwargs, options, next_run > now() "
            "FROM pgbeat.schedules WHERE source = 'code'"
        )
    }
    assert rows["crontab"] == ("*/5 1-3 * * *", None, "Europe/Oslo", [1, 2], {}, {}, True)
    assert rows["friday 13th"][:2] == (None, None)
    assert rows["timedelta"][:6] == (None, "00:00:01", None, [], {"x": 3}, {})
    assert rows["number"][5] == {"priority": 4}
    assert rows["lazy"][3] is None
    assert rows["after finalize"][0] == "* 7 * * *"
    assert rows["celery.backend_cleanup"][0] == "0 4 * * *"
    assert rows["solar"][6] is True
    assert sql("SELECT DISTINCT outcome FROM pgbeat.ticks") == [("launched",)]

    messages = [json.loads(row[0]) for row in sql("SELECT payload FROM kombu_message ORDER BY id")]
    lazy = [m for m in messages if str(m["headers"]["id"]) in job_ids(sql, "lazy")]
    assert [json.loads(b64decode(m["body"]))[0] for m in lazy[:2]] == [[1], [2]]
    routed = next(m for m in messages if m["headers"]["task"] == "tests.routed")
    assert routed["properties"]["delivery_info"]["routing_key"] == "elsewhere"
    assert routed["properties"]["priority"] == 4
    assert any(m["headers"]["task"] == "tests.elsewhere" for m in messages)
    assert all(m["headers"]["celery_beat_task"] for m in messages)


def job_ids(sql: Sql, name: str) -> set[str]:
    return {str(row[0]) for row in sql("SELECT job_id FROM pgbeat.ticks WHERE schedule = %s", name)}


@pytest.mark.slow
def test_a_deploy_changes_what_is_in_code_and_nothing_else(processes: Processes, sql: Sql) -> None:
    first = processes.beat(app="tests.support.apps.schedules_in_code")
    first.says("This beat leads")
    make_schedule(sql, "mine", cron="0 0 * * *")
    sql("UPDATE pgbeat.schedules SET paused_at = now() WHERE name = 'crontab'")
    sql("UPDATE pgbeat.schedules SET enabled = false WHERE name = 'schedule'")
    first.send_signal(signal.SIGTERM)
    assert first.wait(20) == 0
    second = processes.beat(app="tests.support.apps.schedules_in_code", TESTS_DEPLOY="second")
    second.says("This beat leads")
    second.says("Schedules removed by the app's code: number")
    second.says("Schedules changed by the app's code: timedelta")
    rows: dict[str, str] = dict(
        sql("SELECT name, (paused_at IS NOT NULL, enabled, kwargs)::text FROM pgbeat.schedules")
    )
    assert "number" not in rows
    assert rows["crontab"].startswith("(t,t")
    assert rows["schedule"].startswith("(f,f")
    assert '""x"": 4' in rows["timedelta"]
    assert "mine" in rows


@pytest.mark.parametrize(
    "env", [{"PGBEAT_LOOP_INTERVAL": "often"}, {"PGBEAT_NAMSPACE": "x"}, {"PGBEAT_URL": "redis://"}]
)
def test_a_wrong_setting_is_one_plain_error(processes: Processes, env: dict[str, str]) -> None:
    beat = processes.beat(**env)
    assert beat.wait(30) == 1
    assert "Traceback" not in beat.output
    [variable] = env
    assert f"pgbeat: pgbeat's settings are wrong:\n  {variable}: " in beat.output


def test_a_change_by_sql_is_honoured_at_once(processes: Processes, sql: Sql) -> None:
    """Long before the loop interval is over: a notification wakes beat."""
    beat = processes.beat("--max-interval", "300")
    beat.says("This beat leads")
    make_schedule(sql, "now", due="0", cron="0 0 1 1 *")
    until(lambda: outcomes(sql) == "l", 10)
    sql("UPDATE pgbeat.schedules SET next_run = now()")
    until(lambda: outcomes(sql) == "ll", 10)
    make_schedule(sql, "later", cron="0 0 1 1 *")
    until(
        lambda: sql("SELECT next_run IS NOT NULL FROM pgbeat.schedules WHERE name = 'later'")[0][0],
        10,
    )
    sql("DELETE FROM pgbeat.schedules")
    assert beat.poll() is None


@pytest.mark.parametrize(
    "sign", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_stops_cleanly(processes: Processes, sql: Sql, sign: signal.Signals) -> None:
    """The leader and a standby both end with 0 at once, and leave no session behind."""
    leader = processes.beat("--max-interval", "300")
    leader.says("This beat leads")
    standby = processes.beat("--max-interval", "300")
    sessions = (
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE application_name LIKE 'pgbeat beat%' AND datname = current_database()"
    )
    until(lambda: sql(sessions) == [(2,)])
    for process in (standby, leader):
        process.send_signal(sign)
        assert process.wait(10) == 0, process.output
        assert "Traceback" not in process.output
    until(lambda: sql(sessions) == [(0,)], 5)


@pytest.mark.parametrize("step", ["before claim", "after conditions", "after commit"])
def test_a_signal_that_python_drops_ends_it_too(app: Celery, sql: Sql, step: str) -> None:
    """Celery's handler closes the scheduler and raises `SystemExit`: in vain, where that happens in
    an object's `__del__`.
    """

    class Interrupted(Scheduler):
        def reached(self, reached: str) -> None:
            if reached == step:
                self.close()

    make_schedule(sql, due="0")
    Service(app, scheduler_cls=Interrupted).start()
    assert sql("SELECT count(*) FROM pgbeat.ticks") == [(int(step == "after commit"),)]


def test_the_banner_shows_the_database_without_its_password(
    processes: Processes, database: str
) -> None:
    from pgbeat.config import postgres_url

    url = postgres_url(database).set(password="s3cret")
    dsn = url.set(drivername="postgresql").render_as_string(hide_password=False)
    beat = processes.beat(TESTS_DATABASE=dsn)
    beat.says("beat: Starting...")
    assert "lock key -> 1050" in beat.output
    assert "database -> postgresql+psycopg://" in beat.output
    assert "s3cret" not in beat.output


def test_the_lazy_instance_touches_nothing(app: Celery) -> None:
    app.conf.pgbeat_url = "postgresql://nobody:secret@127.0.0.1:1/none"
    scheduler = Scheduler(app=app, lazy=True)
    assert "127.0.0.1:1/none" in scheduler.info
    assert "secret" not in scheduler.info
    assert scheduler.max_interval == 5.0
    scheduler.close()


def test_max_interval(app: Celery) -> None:
    assert Scheduler(app=app, lazy=True, max_interval=7).max_interval == 7
    app.conf.beat_max_loop_interval = 9
    assert Scheduler(app=app, lazy=True).max_interval == 9


def test_a_missing_schema_ends_it_with_a_plain_line(
    processes: Processes, empty_database: str
) -> None:
    beat = processes.beat(TESTS_DATABASE=empty_database)
    assert beat.wait(30) == 1
    assert "pgbeat: the database has no pgbeat schema; run `pgbeat migrate`" in beat.output
    assert "Traceback" not in beat.output


@pytest.mark.slow
def test_embedded_in_a_worker(processes: Processes, sql: Sql, tmp_path: Path) -> None:
    """`celery worker -B` runs the scheduler in a process beside the worker's."""
    make_schedule(sql, task="tests.note", every="1 second")
    schedule_file = str(tmp_path / "schedule")
    worker = processes.worker(
        "-P", "prefork", "-c", "1", "-B", "--scheduler", "pgbeat.Scheduler", "-s", schedule_file
    )
    until(lambda: sql("SELECT to_regclass('notes') IS NOT NULL")[0][0])
    until(lambda: sql("SELECT count(*) > 1 FROM notes")[0][0])
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(20) == 0, worker.output


def test_by_its_short_name(processes: Processes) -> None:
    """The entry point makes `-S pgbeat` work."""
    processes.beat(scheduler="pgbeat").says("This beat leads")


@launcher("SlowLauncher")
class SlowLauncher(Launcher):
    """Waits for as long as the test's file exists."""

    task = "tests.add"

    def check_conditions(self, ctx: Context) -> bool:
        while Path(ctx.schedule.kwargs["file"]).exists():
            time.sleep(0.01)
        return False


def test_a_slow_condition_delays_nobody(beat: Beat, sql: Sql, app: Celery, tmp_path: Path) -> None:
    """Eight Python conditions hang, and eight in SQL; plain schedules and a quick condition are
    decided meanwhile, and each of the sixteen is failed once its time is up.
    """
    app.conf.pgbeat_condition_timeout = 3.0
    app.conf.pgbeat_condition_threads = 20
    file = tmp_path / "hold"
    file.touch()
    slow: dict[str, Any] = {"task": None, "launcher": "SlowLauncher", "kwargs": {"file": str(file)}}
    for n in range(1, 9):
        make_schedule(sql, f"slow{n}", due="-1 hour", **slow)
        make_schedule(sql, f"sql{n}", due="-1 hour", condition_sql="SELECT pg_sleep(60)")
    make_schedule(sql, "plain", due="0")
    make_schedule(sql, "quick", due="0", condition_sql="SELECT true")
    scheduler = beat()
    until(lambda: [scheduler.tick(), len(outcomes(sql)) >= 2][1])
    assert set(sql("SELECT schedule, outcome FROM pgbeat.ticks")) == {
        ("plain", "launched"),
        ("quick", "launched"),
    }
    until(lambda: [scheduler.tick(), len(outcomes(sql)) >= 18][1])
    assert outcomes(sql).count("f") == 16
    [(error,)] = sql("SELECT DISTINCT error FROM pgbeat.ticks WHERE outcome = 'failed'")
    assert error == "the condition took longer than 3 s (pgbeat_condition_timeout)"
    # Those that hang in Python still do: asked again, they fail at once and start nothing new.
    sql("UPDATE pgbeat.schedules SET next_run = now() WHERE name = 'slow1'")
    until(lambda: [scheduler.tick(), len(outcomes(sql)) >= 19][1])
    [(error,)] = sql("SELECT error FROM pgbeat.ticks ORDER BY id DESC LIMIT 1")
    assert error == "the condition of an earlier tick was given up and still runs"
    file.unlink()


def test_a_new_row_that_somebody_edits_delays_nobody(beat: Beat, sql: Sql, database: str) -> None:
    make_schedule(sql, "new")
    make_schedule(sql, "due", due="0")
    scheduler = beat()
    next_run = "SELECT next_run > now() FROM pgbeat.schedules WHERE name = 'new'"
    with psycopg.connect(database) as editor:
        editor.execute("UPDATE pgbeat.schedules SET owner = 'me' WHERE name = 'new'")
        assert scheduler.run_due() == 1
        assert sql(next_run) == [(None,)]
    until(lambda: [scheduler.run_due(), sql(next_run) == [(True,)]][1])


def test_a_row_that_somebody_edits_is_left_alone(beat: Beat, sql: Sql, database: str) -> None:
    """An editor's open transaction delays its own row only; the decision sees what it commits."""
    for n in range(1, 4):
        make_schedule(sql, f"s{n}", due="0")
    scheduler = beat()
    with psycopg.connect(database) as editor:
        editor.execute("UPDATE pgbeat.schedules SET kwargs = '{\"x\": 9}' WHERE name = 's2'")
        assert scheduler.run_due() == 2
        assert scheduler.run_due() == 0
    until(scheduler.run_due)
    [(kwargs,)] = sql("SELECT kwargs FROM pgbeat.jobs WHERE schedule = 's2'")
    assert kwargs == {"x": 9}


def test_the_apps_entries_wait_for_an_editor_and_beat_does_not(
    app: Celery, beat: Beat, sql: Sql, database: str
) -> None:
    app.conf.beat_schedule = {"code": {"task": "tests.add", "schedule": 3600}}
    first = beat()
    first.run_due()
    first.close()
    app.conf.beat_schedule["code"]["schedule"] = 7200
    make_schedule(sql, due="0")
    with psycopg.connect(database) as editor:
        editor.execute("SELECT FROM pgbeat.schedules WHERE name = 'code' FOR UPDATE")
        second = beat()
        assert second.run_due() == 1
    changed = "SELECT every = '2 hours' FROM pgbeat.schedules WHERE name = 'code'"
    until(lambda: [second.run_due(), sql(changed)[0][0]][1])
