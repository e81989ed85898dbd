"""`pgbeat explain`: gives the first reason that applies, and what to do."""

import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from celery import Celery

from pgbeat.beat.scheduler import Scheduler
from pgbeat.testing.databases import Databases
from tests.support.command_line import Sql, read, run, run_with
from tests.support.databases import broker_url
from tests.support.jobs import make_app
from tests.support.rows import make_calendar, make_job, make_lane, make_schedule, make_tick


@pytest.fixture(scope="module")
def leader(pgbeat_databases: Databases) -> Iterator[tuple[str, Scheduler]]:
    """Yields a database with a beat that leads and decides nothing by itself."""
    with pgbeat_databases.lent() as dsn:
        app = make_app(dsn, broker_url(dsn))
        scheduler = Scheduler(app=app)
        scheduler.run_due()
        yield dsn, scheduler
        scheduler.close()
        app.close()


@pytest.fixture
def database(leader: tuple[str, Scheduler]) -> str:
    """DSN of the database that all tests have, one after the other."""
    dsn, scheduler = leader
    with psycopg.connect(dsn, autocommit=True) as connection:
        for table in ("schedules", "unfinished_jobs", "ended_jobs", "ticks", "lanes", "calendars"):
            connection.execute(f"DELETE FROM pgbeat.{table}".encode())
    scheduler.run_due()  # who is silent for long leads no more
    return dsn


def add(sql: Sql, next_run: str | None = "1 hour", **values: Any) -> None:
    """Writes a schedule that is due after an interval."""
    make_schedule(sql, due=next_run, **values)


def explained(database: str) -> tuple[str, str]:
    """Returns the cause, and the explanation."""
    lines = run(database, "explain", "s").stdout.split("\n\n")[0]
    return read(database, "explain", "s")["cause"], lines


WORKERS = "The end of a job is known if its worker tracks (pgbeat_track)."
#: What a schedule is like, and the cause that is reported.
CAUSES: list[tuple[str, dict[str, Any]]] = [
    ("disabled", {"enabled": False, "disabled_reason": "failed 5 times in a row"}),
    ("completed", {"enabled": False, "disabled_reason": "launched", "completed_at": "now"}),
    ("paused", {"paused_at": "2026-01-01Z"}),
    ("not_due", {"next_run": "1 hour 30 seconds"}),
    ("retry", {"retry_count": 2, "last_error": "no luck"}),
    ("jitter", {"jitter": "3 hours", "due_at": "2026-01-01Z"}),
    ("new", {"next_run": None}),
    ("due", {"next_run": "-0.1 seconds"}),
    ("condition", {"next_run": "-20 seconds", "condition_sql": "SELECT pg_sleep(60)"}),
    ("behind", {"next_run": "-1 hour"}),
    ("after", {"next_run": None, "every": None, "after": "t"}),
]


@pytest.mark.parametrize(("cause", "values"), CAUSES, ids=[cause for cause, _ in CAUSES])
def test_the_cause(database: str, sql: Sql, cause: str, values: dict[str, Any]) -> None:
    add(sql, **values)
    assert explained(database)[0] == cause


def test_when_a_disabled_schedule_is_tried_again(database: str, sql: Sql) -> None:
    add(sql, enabled=False, disabled_reason="failed", probe_at="2099-01-01Z")
    assert "\nIt is tried again in " in explained(database)[1]


def test_a_completed_schedule_may_need_another_time(database: str, sql: Sql) -> None:
    add(sql, enabled=False, disabled_reason="done", max_runs=3, run_count=2, completed_at="now")
    assert "`pgbeat update s`" in explained(database)[1]
    sql("UPDATE pgbeat.schedules SET run_count = 3")
    assert "`pgbeat update s`" not in explained(database)[1]


def test_no_beat(app: Celery, sql: Sql) -> None:
    """Or none with the app's lock."""
    app.conf.pgbeat_lock_key = 77
    add(sql)
    nobody = "no beat runs (no session holds lock 77).\nStart one: celery -A APP beat -S pgbeat."
    assert run_with(app, "explain", "s").stdout.startswith(f"s: it waits: {nobody}")
    sql("UPDATE pgbeat.schedules SET next_run = now() - interval '1 hour'")
    shown = run_with(app, "explain", "s").stdout
    assert shown.startswith(f"s: it has been due for 1 h, but {nobody}")
    assert json.loads(run_with(app, "explain", "s", "--json").stdout)["cause"] == "no_beat"


def test_the_words_of_an_explanation(database: str, sql: Sql) -> None:
    add(sql, next_run="1 hour 30 seconds", retry_count=2, last_error="no\nluck")
    assert explained(database) == (
        "retry",
        "s: it failed 2 of 5 times in a row and is tried again in 1 h: no luck\n"
        "`pgbeat trigger s` tries it now.",
    )


def test_waiting_for_the_job_before_it(database: str, sql: Sql) -> None:
    add(sql, next_run="1 minute", overlap="queue_one")
    sql(
        "UPDATE pgbeat.schedules SET next_run = now(), due_at = now() - interval '2 hours', "
        "waiting_for = uid"
    )
    [(job,)] = sql("SELECT waiting_for FROM pgbeat.schedules")
    assert explained(database) == (
        "overlap",
        f"s: it has been due for 2 h, and waits for the job before it, {job}, to end "
        f"(overlap queue_one).\n{WORKERS}",
    )


def launch(sql: Sql, state: str = "pending", **values: object) -> str:
    """Writes a job of `s` and its tick; returns the job's id."""
    job = make_job(sql, state, schedule="s", **values)
    [(key,)] = sql("SELECT id FROM pgbeat.schedules")
    make_tick(sql, key, "launched", job_id=job)
    return job


def test_its_job_waits_in_its_lane(database: str, sql: Sql) -> None:
    add(sql, next_run="1 hour 30 seconds")
    make_lane(sql, "gpu", 1)
    make_job(sql, lane="gpu", dispatched_at="now")
    make_job(sql, lane="gpu", priority=5)
    job = launch(sql, lane="gpu")
    start = "s: it is not due yet; next in 1 h. The job that it launched waits in lane 'gpu' at "
    assert explained(database) == ("not_due", f"{start}place 2; the limit of 1 is reached.")
    found = read(database, "explain", "s")["job"]
    assert found == {
        "id": job,
        "state": "pending",
        "attempt": 1,
        "lane": "gpu",
        "run_at": None,
        "cause": "lane",
        "sentence": "waits in lane 'gpu' at place 2; the limit of 1 is reached",
        "advice": "",
    }
    sql("UPDATE pgbeat.lanes SET paused_at = now()")
    assert explained(database)[1] == (
        f"{start}place 2; the lane is paused.\n`pgbeat lanes resume gpu` lets the lane dispatch."
    )


def test_its_job_awaits_approval(database: str, sql: Sql) -> None:
    add(sql, next_run="1 hour 30 seconds")
    job = launch(sql, "paused", awaits_approval=True)
    assert explained(database)[1] == (
        "s: it is not due yet; next in 1 h. The job that it launched awaits a person's approval.\n"
        f"`pgbeat jobs approve {job}` lets it run, `cancel` ends it."
    )


def test_its_job_is_tried_again(database: str, sql: Sql) -> None:
    """The last attempt counts."""
    add(sql, next_run="1 hour 30 seconds")
    job = launch(sql, "failed", error="oops")
    retry: dict[str, Any] = {"retry_of": job, "attempt": 2, "max_attempts": 3}
    again = make_job(sql, "scheduled", run_at="9999-01-01Z", dispatched_at="now", **retry)
    sql("UPDATE pgbeat.jobs SET retried_by = %s WHERE id = %s", again, job)
    sql("UPDATE pgbeat.jobs SET run_at = now() + interval '2 hours 30 s' WHERE id = %s", again)
    said = explained(database)[1]
    assert said == (
        "s: it is not due yet; next in 1 h. The job that it launched is tried again in 2 h, "
        "attempt 2 of 3."
    )
    shown = run(database, "explain", "s").stdout
    assert f"  its job    {job} scheduled: oops, tried again as {again}\n" in shown
    # Once that one runs, or has ended, there is nothing to tell.
    sql("UPDATE pgbeat.jobs SET state = 'running', started_at = now() WHERE id = %s", again)
    assert explained(database)[1] == "s: it is not due yet; next in 1 h."
    sql("UPDATE pgbeat.jobs SET state = 'completed', finished_at = now() WHERE id = %s", again)
    assert read(database, "explain", "s")["job"] is None


def test_waiting_for_a_job_that_waits(database: str, sql: Sql) -> None:
    add(sql, next_run="1 minute", overlap="queue_one")
    job = make_job(sql, "paused")
    sql(
        "UPDATE pgbeat.schedules SET next_run = now(), due_at = now() - interval '2 hours', "
        "waiting_for = %s",
        job,
    )
    assert explained(database) == (
        "overlap",
        f"s: it has been due for 2 h, and waits for the job before it, {job}, to end "
        "(overlap queue_one). That one is paused.\n"
        f"`pgbeat jobs resume {job}` lets it run.",
    )


def test_after_another(database: str, app: Celery, sql: Sql) -> None:
    add(sql, next_run=None, every=None, after="t")
    assert explained(database) == (
        "after",
        f"s: it comes after t, and there is no schedule 't'; `pgbeat list` shows all "
        f"schedules.\n{WORKERS}",
    )
    make_schedule(sql, "t")
    assert explained(database)[1].startswith("s: it comes after t, which has not been due yet.")
    assert run_with(app, "trigger", "t").exit_code == 0
    said = explained(database)[1]
    assert said.startswith("s: it comes after t, which launched ")
    assert said.endswith(f" s ago, and its job is pending.\n{WORKERS}")
    sql("UPDATE pgbeat.schedules SET condition_sql = 'SELECT false' WHERE name = 't'")
    assert run_with(app, "trigger", "t").exit_code == 3
    assert explained(database)[1].startswith("s: it comes after t, which was skipped ")
    sql("UPDATE pgbeat.schedules SET enabled = false WHERE name = 't'")
    assert explained(database)[1].startswith("s: it comes after t, which is disabled.")


def test_window_and_calendar_are_shown(database: str, sql: Sql) -> None:
    make_calendar(sql)
    add(sql, starts_at="2020-01-01Z", calendar="office")
    facts = run(database, "explain", "s").stdout
    assert "  window     from 2020-01-01 00:00:00 UTC, " in facts
    assert "  calendar   office\n" in facts


def test_a_beat_that_does_not_decide(database: str, sql: Sql) -> None:
    add(sql, next_run=None)
    sql("UPDATE pgbeat.schedules SET updated_at = now() - interval '1 hour'")
    assert explained(database)[0] == "behind"
    sql("UPDATE pgbeat.schedules SET next_run = now() - interval '1 hour'")
    make_schedule(sql, "t", due="-1 hour")
    assert "; 2 schedules are due." in explained(database)[1]


def test_the_last_tick_and_the_beat(
    database: str, app: Celery, sql: Sql, leader: tuple[str, Scheduler]
) -> None:
    add(sql, next_run="-1 second", condition_sql="SELECT 0 = 1")
    assert leader[1].run_due() == 1
    facts = run(database, "explain", "s").stdout
    assert "last tick  skipped " in facts
    assert "ago, by hand: condition_sql is false\n" in facts
    assert "condition  SELECT 0 = 1\n" in facts
    assert "beat       pgbeat beat " in facts
    sql("UPDATE pgbeat.schedules SET condition_sql = NULL")
    assert run_with(app, "trigger", "s").exit_code == 0
    facts = run(database, "explain", "s").stdout
    assert "ago, by hand\n" in facts
    [(job,)] = sql("SELECT id FROM pgbeat.jobs")
    assert f"its job    {job} pending\n" in facts
    found = read(database, "explain", "s")
    assert (found["last_tick"]["job_id"], found["leader"]["leads"]) == (str(job), True)


def test_on_time_is_not_enough(database: str, sql: Sql) -> None:
    """A schedule may be on time although its jobs fail."""
    add(sql, last_run="now", last_success="now")
    [(key,)] = sql("SELECT id FROM pgbeat.schedules")
    failed: dict[str, Any] = {"schedule_id": key, "error": "KeyError: 'x'"}
    for number in range(2):
        job = make_job(sql, "failed", finished_at=f"2026-01-01 00:0{number}Z", **failed)
    cause, summary = explained(database)
    assert cause == "not_due"
    assert (
        " Its jobs: 2 jobs in a row failed, since 2026-01-01 00:00:00 UTC; last: KeyError"
        in summary
    )
    found = read(database, "explain", "s")
    assert (found["health"]["code"], found["health"]["failures"]) == ("failing", 2)
    assert found["advice"] == f"`pgbeat jobs show {job}` shows the last one."


def test_paused_for_its_failures(database: str, sql: Sql) -> None:
    """The failure is shown once."""
    add(sql, paused_at="now", paused_reason="3 jobs in a row failed; last: no")
    [(key,)] = sql("SELECT id FROM pgbeat.schedules")
    job = make_job(sql, "failed", schedule_id=key, error="no")
    assert "Its jobs" not in explained(database)[1]
    assert f"jobs show {job}" in explained(database)[1]
    assert " ago: 3 jobs in a row failed; last: no.\n" in explained(database)[1]
