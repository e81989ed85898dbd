"""`pgbeat trigger` and `history`: decide a schedule now, and show its ticks."""

import getpass
import json
import os
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery

from tests.support.command_line import Sql, read, refused, run, run_with
from tests.support.launchers import Meddling, register
from tests.support.rows import make_job, make_schedule, make_tick
from tests.support.schedulers import Beat

#: Adds a schedule that is due in an hour.
add = partial(make_schedule, due="1 hour")


def test_launched(app: Celery, sql: Sql) -> None:
    add(sql, kwargs='{"x": 40}', retry_count=3)
    before = sql("SELECT next_run, every FROM pgbeat.schedules")
    shown = run_with(app, "trigger", "s")
    [(job_id, source, creator, state)] = sql(
        "SELECT id, job_source, created_by, state FROM pgbeat.jobs"
    )
    assert (shown.exit_code, shown.stdout) == (0, f"launched: job {job_id}\n")
    assert (source, creator, state) == ("user_cli", f"user:{getpass.getuser()}", "pending")
    assert sql("SELECT outcome, trigger, job_id FROM pgbeat.ticks") == [
        ("launched", "manual", job_id)
    ]
    [(payload,)] = sql("SELECT payload FROM kombu_message")
    assert json.loads(payload)["headers"]["id"] == str(job_id)
    # The timetable goes on as before, and the retry comes, as if it were the first.
    assert sql("SELECT next_run, every FROM pgbeat.schedules") == before
    assert sql("SELECT retry_count, last_success = last_run FROM pgbeat.schedules") == [(1, True)]


def test_skipped(app: Celery, sql: Sql) -> None:
    add(sql, condition_sql="SELECT false", retry_count=3)
    shown = run_with(app, "trigger", "s")
    assert (shown.exit_code, shown.stdout) == (3, "skipped: condition_sql is false\n")
    assert sql("SELECT retry_count FROM pgbeat.schedules") == [(3,)]
    assert sql("SELECT outcome, trigger FROM pgbeat.ticks") == [("skipped", "manual")]
    shown = run_with(app, "trigger", "s", "--json")
    assert shown.exit_code == 3
    tick = json.loads(shown.stdout)
    assert (tick["schedule"], tick["trigger"], tick["outcome"]) == ("s", "manual", "skipped")
    assert (tick["reason"], tick["job_ids"]) == ("condition_sql is false", [])


def test_failed(app: Celery, sql: Sql) -> None:
    add(sql, condition_sql="SELECT 1/0", retry_count=4)
    shown = run_with(app, "trigger", "s")
    assert (shown.exit_code, shown.stdout) == (1, "failed: DivisionByZero: division by zero\n")
    # A person's attempt is no failure in a row: the fifth would have disabled it.
    assert sql("SELECT retry_count, enabled FROM pgbeat.schedules") == [(4, True)]


@pytest.mark.parametrize("state", [{"enabled": False}, {"paused_at": "2030-01-01Z"}])
def test_out_of_service(app: Celery, sql: Sql, state: dict[str, Any]) -> None:
    add(sql, **state)
    assert run_with(app, "trigger", "s").exit_code == 0
    assert sql("SELECT enabled, paused_at IS NOT NULL FROM pgbeat.schedules") == [
        (state.get("enabled", True), "paused_at" in state)
    ]


def test_it_needs_the_app(database: str, sql: Sql) -> None:
    add(sql)
    said = refused(run(database, "trigger", "s"))
    assert said == "a trigger needs the app, whose launchers and tasks it runs; give it with -A APP"


def test_an_unknown_task(app: Celery, sql: Sql) -> None:
    add(sql, task="tests.ad")
    shown = run_with(app, "trigger", "s")
    assert shown.exit_code == 1
    assert shown.stdout.startswith(
        "failed: task 'tests.ad' is not registered; did you mean 'tests.add'?"
    )


def test_what_stays_in_code(app: Celery, sql: Sql) -> None:
    app.conf.beat_schedule = {
        "c": {"task": "tests.add", "schedule": 60, "kwargs": {"x": 5, "y": frozenset({1})}}
    }
    app.conf.task_serializer = "pickle"
    add(sql, "c", source="code", args=None)
    assert run_with(app, "trigger", "c").exit_code == 0
    [(payload,)] = sql("SELECT payload FROM kombu_message")
    assert json.loads(payload)["content-type"] == "application/x-python-serialize"


def test_a_broker_elsewhere(database: str, app: Celery, sql: Sql) -> None:
    app.conf.broker_url = "memory://"
    app.conf.pgbeat_url = database
    add(sql, queue="elsewhere")
    shown = run_with(app, "trigger", "s")
    assert shown.exit_code == 0, shown.output
    [(job_id,)] = sql("SELECT job_id FROM pgbeat.ticks")
    with app.connection_for_read() as broker, broker.SimpleQueue("elsewhere") as queue:
        message = queue.get(block=False)
        assert message.headers["id"] == str(job_id)
        message.ack()


@pytest.mark.slow
def test_a_broker_that_is_away(database: str, app: Celery, sql: Sql) -> None:
    app.conf.broker_url = "amqp://127.0.0.1:1//"
    app.conf.pgbeat_url = database
    app.conf.task_publish_retry = False
    add(sql)
    shown = run_with(app, "trigger", "s")
    assert (shown.exit_code, shown.stdout[:8]) == (1, "failed: ")
    assert "Connection refused" in shown.stdout


def test_a_launcher_that_hangs(app: Celery, sql: Sql) -> None:
    reading, writing = os.pipe()

    register("hanging", lambda ctx: not os.read(reading, 1))
    app.conf.pgbeat_condition_timeout = 0.1
    add(sql, launcher="hanging")
    shown = run_with(app, "trigger", "s")
    os.write(writing, b"x")
    assert (shown.exit_code, shown.stdout) == (
        1,
        "failed: the condition took longer than 0.1 s (pgbeat_condition_timeout)\n",
    )


@pytest.mark.parametrize("times", [1, 2])
def test_a_row_that_changes_meanwhile(
    app: Celery, database: str, sql: Sql, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgbeat.schedules.launchers._registry", {"Meddling": Meddling})
    Meddling.database, Meddling.times, Meddling.asked = database, times, 0
    add(sql, launcher="Meddling")
    shown = run_with(app, "trigger", "s")
    assert Meddling.asked == 2
    if times == 1:
        assert shown.exit_code == 0
        # It was decided anew, with what the row says now.
        assert sql("SELECT kwargs FROM pgbeat.jobs") == [({"x": 9},)]
    else:
        said = refused(shown, 1)
        assert said == "schedule 's' changed while it was being decided; try again"
        assert sql("SELECT count(*) FROM pgbeat.ticks") == [(0,)]


def test_the_beats_own_tick_is_not_lost(app: Celery, beat: Beat, sql: Sql) -> None:
    add(sql)
    sql("UPDATE pgbeat.schedules SET next_run = created_at")
    assert run_with(app, "trigger", "s").exit_code == 0
    assert beat().run_due() == 1
    assert sql("SELECT trigger FROM pgbeat.ticks ORDER BY id") == [("manual",), ("timetable",)]
    assert sql("SELECT count(*) FROM kombu_message") == [(2,)]


JOB = "a9f3548e-aea4-5160-b886-692061c99fec"
PENDING = "b9f3548e-aea4-5160-b886-692061c99fec"


@pytest.fixture
def ticks(sql: Sql) -> None:
    """Writes a schedule with four ticks: launched, skipped, failed, and one with a pending job."""
    schedule = add(sql)
    decided: list[tuple[str, dict[str, Any]]] = [
        ("launched", {"job_id": JOB}),
        ("skipped", {}),
        ("failed", {"error": "E: too\nbad"}),
        ("launched", {"job_id": PENDING}),
    ]
    for minute, (outcome, given) in enumerate(decided, 1):
        at = f"2026-01-01 00:0{minute}Z"
        make_tick(sql, schedule, outcome, due_at=at, decided_at=at, **given)
    make_job(sql, "failed", id=JOB, error="ValueError: x", schedule_id=schedule)
    make_job(sql, id=PENDING, schedule_id=schedule)


@pytest.mark.usefixtures("ticks")
def test_history(database: str) -> None:
    shown = run(database, "history", "s")
    lines = [" ".join(text.split()) for text in shown.stdout.splitlines()]
    assert lines == [
        "due (UTC) outcome trigger why job how it ended",
        f"2026-01-01 00:04:00 launched timetable {PENDING} pending",
        "2026-01-01 00:03:00 failed timetable E: too bad",
        "2026-01-01 00:02:00 skipped timetable no work",
        f"2026-01-01 00:01:00 launched timetable {JOB} failed: ValueError: x",
        "",
        "4 ticks: 2 launched, 1 skipped, 1 failed; of its jobs 0 completed, 1 failed; "
        "success rate 0% (skips aside)",
    ]
    assert shown.stderr == (
        "Note: 1 of the jobs seem pending: no worker took them, or it doesn't track "
        "(pgbeat_track; --results asks the result backend).\n"
    )


@pytest.mark.usefixtures("ticks")
def test_history_tells_what_a_tick_accounts_for(database: str, sql: Sql) -> None:
    note = "3 due times before it, since then, missed (catch_up latest)"
    sql("UPDATE pgbeat.ticks SET missed = 3, note = %s, trigger = 'after'", note)
    lines = [" ".join(text.split()) for text in run(database, "history", "s").stdout.splitlines()]
    assert lines[2:5] == [
        f"2026-01-01 00:03:00 failed after E: too bad; {note}",
        f"2026-01-01 00:02:00 skipped after no work; {note}",
        f"2026-01-01 00:01:00 launched after {note} {JOB} failed: ValueError: x",
    ]
    tick = read(database, "history", "s")["ticks"][0]
    assert (tick["missed"], tick["note"]) == (3, note)


@pytest.mark.usefixtures("ticks")
def test_history_tells_of_the_last_attempt(database: str, sql: Sql) -> None:
    again, third = (str(uuid4()) for _ in range(2))
    for job, of, attempt in ((again, JOB, 2), (third, again, 3)):
        retry = {"retry_of": of, "attempt": attempt, "max_attempts": 4}
        make_job(sql, "failed", id=job, error=f"E{attempt}", **retry)
        sql("UPDATE pgbeat.jobs SET retried_by = %s WHERE id = %s", job, of)

    def shown() -> str:
        lines = run(database, "history", "s").stdout.splitlines()
        return " ".join(lines[4].split()).partition(f"{JOB} ")[2]

    assert shown() == "failed (attempt 3 of 4): E3"
    begin = datetime(2026, 1, 1, 0, 1, 2, tzinfo=UTC)
    times = begin, begin + timedelta(seconds=3.25)
    sql("UPDATE pgbeat.jobs SET started_at = %s, finished_at = %s WHERE id = %s", *times, third)
    assert shown() == "failed (attempt 3 of 4, took 3.2 s): E3"
    tick = read(database, "history", "s")["ticks"][3]
    assert (tick["started_at"], tick["duration_ms"]) == ("2026-01-01T00:01:02Z", 3250)
    assert tick["jobs"][0]["finished_at"] == tick["finished_at"] == "2026-01-01T00:01:05.250000Z"
    # An end is an end: what stands for one that is still to come is another row.
    sql("DELETE FROM pgbeat.jobs WHERE id = %s", third)
    [(run_at,)] = sql("SELECT now() + interval '1 hour 5 seconds'")
    make_job(sql, "scheduled", id=third, run_at=run_at, **retry)
    assert shown() == "scheduled (attempt 3 of 4, in 1 h): E2"
    sql("UPDATE pgbeat.jobs SET lane = 'gpu' WHERE state <> 'pending'")
    sql("UPDATE pgbeat.jobs SET state = 'pending' WHERE id = %s", third)
    assert shown() == "pending (attempt 3 of 4, in the line of lane gpu): E2"
    assert "1 of the jobs seem pending" in run(database, "history", "s").stderr  # the other one
    sql("UPDATE pgbeat.jobs SET state = 'completed', finished_at = now() WHERE id = %s", third)
    assert shown() == "completed (attempt 3 of 4)"
    tick = read(database, "history", "s")["ticks"][3]
    assert (tick["job_id"], tick["job_state"], tick["job_error"]) == (JOB, "completed", None)


@pytest.mark.usefixtures("ticks")
def test_history_asks_the_result_backend(database: str, app: Celery) -> None:
    said = refused(run_with(app, "history", "s", "--results"))
    assert said == "the app has no result backend; set result_backend"
    app.conf.result_backend = "cache+memory://"
    app._local.__dict__.pop("backend", None)
    app.backend.store_result(PENDING, ValueError("gone"), "FAILURE")
    shown = run_with(app, "history", "s", "--results", "--json")
    newest = json.loads(shown.stdout)["ticks"][0]
    assert (newest["job_state"], newest["job_error"]) == ("failed", "ValueError: gone")
    assert refused(run(database, "history", "s", "--results")) == (
        "the result backend is the app's; give it with -A APP"
    )


def test_no_history(database: str, sql: Sql) -> None:
    add(sql)
    assert run(database, "history", "s").stdout == (
        "Schedule 's' has no ticks yet; `pgbeat explain` says why.\n"
    )
    found = read(database, "history", "s")
    assert (found["ticks"], found["stats"]["total"]) == ([], 0)
    assert found["stats"]["success_rate"] is None
