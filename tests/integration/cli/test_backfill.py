"""`pgbeat backfill`: launches missed due times, refuses bad input, can be interrupted."""

import json
import os
import pty
import signal
import subprocess
from functools import partial
from uuid import uuid4

from celery import Celery

from tests.support.command_line import Sql, refused, run, run_with
from tests.support.processes import PGBEAT, ROOT, until
from tests.support.rows import make_calendar, make_schedule, make_tick

PERIOD = ("--from", "2026-01-01", "--to", "2026-01-01T05:00Z")


#: Adds a schedule that was due each hour since the year began, and is not for a while.
add = partial(make_schedule, starts_at="2026-01-01Z", next_run="9999-01-01Z", timezone="UTC")


def test_dry_run_needs_no_app(database: str, sql: Sql) -> None:
    add(sql, timezone="Europe/Oslo")
    period = ("--from", "2026-01-01T02:00", "--to", "2026-01-01T03:00")
    shown = run(database, "backfill", "s", *period, "--dry-run")
    assert [" ".join(text.split()) for text in shown.stdout.splitlines()] == [
        "Would launch 's' for 2 due times.",
        "Europe/Oslo UTC",
        "Thu 2026-01-01 02:00:00 CET Thu 2026-01-01 01:00:00 UTC",
        "Thu 2026-01-01 03:00:00 CET Thu 2026-01-01 02:00:00 UTC",
    ]
    said = refused(run(database, "backfill", "s", "--from", "2026-03-29T02:30"))
    assert "'--from'" in said and "03:30?" in said
    assert "-A APP" in refused(run(database, "backfill", "s", *period))
    assert sql("SELECT count(*) FROM pgbeat.ticks") == [(0,)]


def test_dry_run_tells_what_is_left_as_it_is(database: str, sql: Sql) -> None:
    make_calendar(sql, "nights", windows=[{"from": "00:00", "to": "02:00"}])
    schedule = add(sql, calendar="nights", next_run="2026-01-01T04:00Z")
    make_tick(sql, schedule, "launched", due_at="2026-01-01T02:00Z", job_id=uuid4())
    assert run(database, "backfill", "s", *PERIOD, "--dry-run").stdout.splitlines()[0] == (
        "Would launch 's' for 1 due time, but not for 1 launched before, "
        "2 left out by its calendar, 2 for the beat to decide."
    )


def test_as_json(app: Celery, sql: Sql) -> None:
    add(sql, condition_sql="SELECT false")
    shown = run_with(app, "backfill", "s", "--from", "2026-01-01", "--to", "2026-01-01", "--json")
    assert shown.exit_code == 3
    found = json.loads(shown.stdout)
    [tick] = found.pop("ticks")
    at = "2026-01-01T00:00:00Z"
    none = dict.fromkeys(("launched_before", "excluded", "pending"), 0)
    flags = {"dry_run": False, "interrupted": False}
    assert found == {"schedule": "s", "from": at, "to": at, "times": [at]} | none | flags
    assert (tick["outcome"], tick["trigger"]) == ("skipped", "backfill")


def test_some_fail(app: Celery, sql: Sql) -> None:
    add(sql, condition_sql="SELECT 1/0", max_retries=3)
    shown = run_with(app, "backfill", "s", *PERIOD)
    assert shown.exit_code == 1
    assert [" ".join(text.split()) for text in shown.stdout.splitlines()] == [
        "3 due times: 3 failed.",
        "due (UTC) outcome why",
        *(f"2026-01-01 0{n}:00:00 failed DivisionByZero: division by zero" for n in range(3)),
    ]
    assert shown.stderr == "Note: it stopped after 3 failures in a row.\n"
    assert sql("SELECT retry_count, enabled FROM pgbeat.schedules") == [(0, True)]


def test_only_the_first_of_many_skips_are_shown(app: Celery, sql: Sql) -> None:
    add(sql, condition_sql="SELECT false")
    shown = run_with(app, "backfill", "s", "--from", "2026-01-01", "--to", "2026-01-01T23:00")
    assert shown.stdout.splitlines()[0] == "24 due times: 24 skipped."
    assert shown.stdout.splitlines()[-1] == "… and 4 more; `pgbeat history` shows them"
    assert shown.exit_code == 3


def test_what_has_no_times(app: Celery, sql: Sql) -> None:
    add(sql, every=None, after="t")
    assert "'s'" in refused(run_with(app, "backfill", "s", *PERIOD))
    sql("UPDATE pgbeat.schedules SET source = 'code', after = NULL")
    assert "the app's code" in refused(run_with(app, "backfill", "s", *PERIOD))
    assert "'t'" in refused(run_with(app, "backfill", "t", *PERIOD), 1)
    sql("UPDATE pgbeat.schedules SET source = 'sql', every = '1 day', starts_at = '2026-02-01Z'")
    assert run_with(app, "backfill", "s", *PERIOD).stdout == "There is nothing to launch.\n"


def test_no_zone_is_said(database: str, sql: Sql) -> None:
    add(sql, every="1 day", timezone=None)
    assert run(database, "backfill", "s", *PERIOD, "--dry-run").stderr == (
        "Note: it names no time zone and takes the app's; without -A APP, UTC is assumed.\n"
    )


def test_interrupted_between_two(database: str, sql: Sql) -> None:
    add(sql)
    # The third waits until it may go on.
    sql(
        "UPDATE pgbeat.schedules SET condition_sql = 'SELECT true FROM pg_sleep(CASE WHEN "
        "(SELECT count(*) FROM pgbeat.ticks) = 2 THEN 1 ELSE 0 END)'"
    )
    env = {**os.environ, "TESTS_DATABASE": database}
    terminal, stderr = pty.openpty()
    with subprocess.Popen(
        [*PGBEAT, "-A", "tests.support.apps.basic", "backfill", "s", *PERIOD],
        cwd=ROOT,
        env=env,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
    ) as process:
        try:
            waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
            until(lambda: sql(waiting) == [(1,)], what="the third condition runs")
            process.send_signal(signal.SIGINT)
            said, _ = process.communicate(timeout=30)
        finally:
            process.kill()
    os.close(stderr)
    shown = os.read(terminal, 10_000).decode()
    os.close(terminal)
    assert (process.returncode, said) == (130, "3 due times: 3 launched.\n")
    assert "\r1 of 6: 2026-01-01 00:00:00\r2 of 6: 2026-01-01 01:00:00" in shown
    assert "Note: it was interrupted; call it again to continue." in shown
    assert sql("SELECT count(*) FROM pgbeat.ticks WHERE outcome = 'launched'") == [(3,)]
