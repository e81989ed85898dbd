"""A job knows which due time it is for: in its arguments, in its headers, and in the task."""

import json
from base64 import b64decode
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from celery import Celery
from psycopg.types.json import Jsonb

import pgbeat
from pgbeat import Context
from pgbeat.beat.scheduler import Scheduler
from pgbeat.schedules import launchers
from tests.support.command_line import read, refused, run, run_with
from tests.support.launchers import register
from tests.support.processes import Processes, until
from tests.support.rows import Sql, make_schedule
from tests.support.schedulers import Beat

START = datetime(2026, 1, 1, tzinfo=UTC)
DAY = {"day": "{{ due_at | date }}", "hour": "{{ due_at | time }}", "of": "{{ schedule }}"}


#: Adds a schedule of the task `tests.call`: each hour since `START`, and next in a while.
add = partial(
    make_schedule,
    task="tests.call",
    starts_at=START,
    timezone="UTC",
    next_run="9999-01-01Z",
    kwargs=DAY,
)


@pytest.fixture
def app(app: Celery) -> Celery:
    """The app, with a task that takes anything."""

    @app.task(name="tests.call", shared=False)
    def call(*args: Any, **kwargs: Any) -> None: ...

    return app


def decided(scheduler: Scheduler, sql: Sql, query: str) -> None:
    """Ticks until the query finds something."""

    def found() -> Any:
        scheduler.run_due()
        return sql(query)

    until(found, what=query)


def sent(sql: Sql) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Headers and keyword arguments of the messages, oldest first."""
    found = [json.loads(row[0]) for row in sql("SELECT payload FROM kombu_message ORDER BY id")]
    return [(each["headers"], json.loads(b64decode(each["body"]))[1]) for each in found]


def test_a_backfill_of_six_hours_makes_six_different_calls(app: Celery, sql: Sql) -> None:
    add(sql)
    made = run_with(
        app, "backfill", "s", "--from", "2026-01-01T00:00Z", "--to", "2026-01-01T05:00Z"
    )
    assert made.exit_code == 0, made.output
    hours = [f"{hour:02}:00:00" for hour in range(6)]
    assert [kwargs for _, kwargs in sent(sql)] == [
        {"day": "2026-01-01", "hour": hour, "of": "s"} for hour in hours
    ]
    assert sql("SELECT kwargs ->> 'hour' FROM pgbeat.jobs ORDER BY due_at") == [
        (hour,) for hour in hours
    ]
    due = [START + number * timedelta(hours=1) for number in range(6)]
    assert [
        (headers["pgbeat_due_at"], headers.get("pgbeat_interval_start"), headers["pgbeat_trigger"])
        for headers, _ in sent(sql)
    ] == [
        (each.isoformat(), None if before is None else before.isoformat(), "backfill")
        for each, before in zip(due, [None, *due], strict=False)
    ]


def test_a_tick_of_a_plain_schedule(beat: Beat, sql: Sql) -> None:
    """On the quick path, too: the second message is cut from the first."""
    sql("UPDATE pgbeat.schedules SET enabled = false")
    for number in range(3):
        add(
            sql,
            f"s{number}",
            next_run=START + timedelta(hours=1),
            catch_up="all",
            catch_up_limit=10_000,
            max_runs=2,
        )
    scheduler = beat()
    while sql("SELECT 1 FROM pgbeat.schedules WHERE enabled"):
        scheduler.run_due()
    found = sent(sql)
    assert len(found) == 6
    assert {(kwargs["of"], headers["pgbeat_schedule"]) for headers, kwargs in found} == {
        (f"s{number}", f"s{number}") for number in range(3)
    }
    for headers, kwargs in found:
        due_at = datetime.fromisoformat(headers["pgbeat_due_at"])
        assert kwargs == {
            "day": f"{due_at:%Y-%m-%d}",
            "hour": f"{due_at:%H:%M:%S}",
            "of": headers["pgbeat_schedule"],
        }
        begin = datetime.fromisoformat(headers["pgbeat_interval_start"])
        assert due_at - begin == timedelta(hours=1)
        assert headers["pgbeat_trigger"] == "timetable"
        assert "pgbeat_job_attempt" not in headers


def test_the_arguments_of_a_condition_and_of_a_launcher(
    app: Celery, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launchers, "_registry", dict(launchers._registry))
    seen: list[Any] = []

    def look(ctx: Context) -> bool:
        seen.append((ctx.kwargs["of"], ctx.trigger, ctx.interval_end < ctx.due_at))
        return True

    register("Rows", look, task=None)
    register("Own", lambda ctx: True, lambda ctx: {"text": "{{ a customer's own braces }}"}, None)
    add(sql, "sql", condition_sql="SELECT true")
    add(sql, "rows", launcher="Rows")
    add(sql, "own", launcher="Own")
    for name in ("sql", "rows", "own"):
        assert run_with(app, "trigger", name).exit_code == 0
    calls = {headers["pgbeat_schedule"]: kwargs for headers, kwargs in sent(sql)}
    assert calls["sql"]["of"] == "sql"
    assert calls["rows"]["of"] == "rows"
    assert calls["own"] == {"text": "{{ a customer's own braces }}"}
    assert seen == [("rows", "manual", True)]


def test_a_decision_made_again_is_for_the_time_that_failed(
    database: str, beat: Beat, sql: Sql
) -> None:
    sql("CREATE TABLE ready (yes bool)")
    add(sql, every="1 day", condition_sql="SELECT yes FROM gone", next_run=None)
    due = sql(
        "UPDATE pgbeat.schedules SET next_run = date_trunc('day', now(), 'UTC') RETURNING next_run"
    )[0][0]
    scheduler = beat()
    decided(scheduler, sql, "SELECT 1 FROM pgbeat.ticks WHERE outcome = 'failed'")
    sql("ALTER TABLE ready RENAME TO gone")
    sql("INSERT INTO gone VALUES (true)")
    sql("UPDATE pgbeat.schedules SET next_run = now()")
    expected = read(database, "forecast")["times"][0]["kwargs"]
    decided(scheduler, sql, "SELECT 1 FROM pgbeat.jobs")
    [(headers, kwargs)] = sent(sql)
    assert headers["pgbeat_trigger"] == "retry"
    assert headers["pgbeat_due_at"] == due.isoformat()
    assert kwargs["hour"] == "00:00:00"
    assert kwargs == expected
    assert sql("SELECT due_at, interval_start FROM pgbeat.jobs") == [(due, due - timedelta(days=1))]


def test_what_a_person_has_tried_again_keeps_its_due_time(app: Celery, sql: Sql) -> None:
    add(sql)
    run_with(app, "backfill", "s", "--from", "2026-01-01T03:00Z", "--to", "2026-01-01T03:00Z")
    sql("UPDATE pgbeat.jobs SET state = 'failed', finished_at = now()")
    [(job,)] = sql("SELECT id FROM pgbeat.jobs")
    assert run_with(app, "jobs", "retry", str(job), "--admin").exit_code == 0
    first, second = sent(sql)
    assert second[1] == first[1]
    kept = ("pgbeat_schedule", "pgbeat_due_at", "pgbeat_interval_start", "pgbeat_trigger")
    assert {name: second[0][name] for name in kept} == {name: first[0][name] for name in kept}


def test_a_template_has_placeholders_too(app: Celery, sql: Sql) -> None:
    made = run_with(
        app,
        "templates",
        "set",
        "daily",
        "--task",
        "tests.call",
        "--kwargs",
        json.dumps({"day": "{{ due_at | date }}"}),
    )
    assert made.exit_code == 0, made.output
    add(sql, kwargs=Jsonb({"more": "{{ schedule }}"}), job_policy=Jsonb({"template": "daily"}))
    assert run_with(app, "trigger", "s").exit_code == 0
    run_with(app, "jobs", "run", "--template", "daily", "--kwargs", '{"text": "{{ as it is"}')
    today = sql("SELECT to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD')")[0][0]
    assert [kwargs for _, kwargs in sent(sql)] == [
        {"day": today, "more": "s"},
        {"day": today, "text": "{{ as it is"},
    ]
    refusal = run_with(
        app, "templates", "set", "bad", "--task", "tests.call", "--args", '["{{ due }}"]'
    )
    assert "args[0]: " in refused(refusal)


def test_a_row_is_checked_when_it_is_written(database: str, sql: Sql, web: Any) -> None:
    bad = '{"day": "{{ due_at | dat }}"}'
    said = refused(run(database, "add", "s", "--task", "t", "--every", "1h", "--kwargs", bad))
    assert said.startswith("kwargs.day: ")
    answer = web.admin.post(
        "/admin/scheduled-jobs",
        json={"name": "s", "task": "tests.add", "cron": "0 0 * * *", "kwargs": json.loads(bad)},
    )
    assert answer.status_code == 422
    assert [each["field"] for each in answer.json()["errors"]] == ["kwargs.day"]
    assert sql("SELECT 1 FROM pgbeat.schedules WHERE name = 's'") == []


def test_what_sql_wrote_wrong_fails_its_tick(beat: Beat, sql: Sql) -> None:
    add(sql, kwargs=Jsonb({"day": "{{ due }}"}), next_run=START)
    scheduler = beat()
    decided(scheduler, sql, "SELECT 1 FROM pgbeat.ticks")
    [(outcome, error)] = sql("SELECT outcome, error FROM pgbeat.ticks WHERE schedule = 's'")
    assert outcome == "failed"
    assert error.startswith("kwargs.day: ")


def test_forecast_and_check_show_the_calls(database: str, app: Celery, sql: Sql) -> None:
    add(sql, next_run=None, cron="0 * * * *", every=None)
    window = ("--from", "2030-01-07T12:00Z", "--hours", "2")
    times = read(database, "forecast", *window)["times"]
    assert [each["kwargs"]["hour"] for each in times] == ["12:00:00", "13:00:00"]
    shown = run(database, "forecast", *window).stdout
    assert 'with {"of": "s", "day": "2030-01-07", "hour": "13:00:00"}' in shown
    checked = json.loads(run_with(app, "check", "s", "--json").stdout)
    assert checked["request"]["kwargs"]["of"] == "s"
    assert "{{" not in run_with(app, "check", "s").stdout


def test_code_entries_are_taken_as_they_are(app: Celery, beat: Beat, sql: Sql) -> None:
    """As Celery's own beat takes them."""
    app.conf.beat_schedule = {
        "code": {"task": "tests.call", "schedule": 0.001, "kwargs": {"text": "{{ a template }}"}}
    }
    scheduler = beat()
    decided(scheduler, sql, "SELECT 1 FROM pgbeat.jobs")
    assert sent(sql)[0][1] == {"text": "{{ a template }}"}


def test_outside_of_a_job_nothing_is_known(app: Celery) -> None:
    assert pgbeat.current() is None

    @app.task(name="tests.ask", shared=False)
    def ask() -> Any:
        return pgbeat.current()

    assert ask.apply().get() is None


@pytest.mark.slow
def test_a_task_asks_and_its_retries_hear_the_same(processes: Processes, sql: Sql) -> None:
    """By a worker that isn't tracked, too; and Celery's own retry is of the same job."""
    env = {"TESTS_SETTINGS": '{"pgbeat_job_retry_base": 0.1, "pgbeat_job_retry_cap": 0.1}'}
    sql("CREATE TABLE notes (id text, data jsonb, at timestamptz DEFAULT now())")
    processes.worker(app="tests.support.apps.due_times", **env)
    processes.beat(app="tests.support.apps.due_times", **env)
    add(
        sql,
        task="tests.tell",
        kwargs=Jsonb({}),
        next_run=START + timedelta(hours=7),
        catch_up="all",
        catch_up_limit=10_000,
        max_runs=1,
        job_policy=Jsonb({"max_attempts": 2}),
    )

    def told() -> list[Any]:
        found = sql("SELECT data FROM notes ORDER BY at")
        return found if len(found) >= 4 else []

    rows = until(told)
    heard = [row[0] for row in rows]
    assert [each["attempt"] for each in heard] == [1, 1, 2, 2]
    assert len({each["job_id"] for each in heard}) == 2
    for each in heard:
        assert datetime.fromisoformat(each["due_at"]) == START + timedelta(hours=7)
        assert datetime.fromisoformat(each["interval_start"]) == START + timedelta(hours=6)
        assert each["interval_end"] == each["due_at"]
        assert (each["schedule"], each["trigger"]) == ("s", "timetable")
