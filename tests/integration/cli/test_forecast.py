"""`pgbeat forecast`: times, load and omissions, as a table and as JSON."""

import json

import pytest
from celery import Celery
from celery.schedules import crontab

from tests.support.command_line import Sql, read, refused, run, run_with
from tests.support.rows import make_calendar, make_schedule

#: A Monday at noon, whatever day it is now.
FROM = ("--from", "2030-01-07T12:00Z")


@pytest.fixture
def rows(sql: Sql) -> None:
    """Writes schedules: hourly, conditional, with a calendar, after another, disabled, paused."""
    make_calendar(sql, "evenings", windows=[{"from": "18:00", "to": "00:00"}])
    make_schedule(sql, "hourly", cron="0 * * * *")
    make_schedule(sql, "asked", cron="30 13-14 * * *", condition_sql="SELECT true")
    make_schedule(sql, "own", cron="45 13 * * *", task=None, launcher="Own")
    make_schedule(sql, "daily", cron="0 18 * * *", calendar="evenings")
    make_schedule(sql, "then", after="hourly")
    make_schedule(sql, "off", enabled=False)
    make_schedule(sql, "held", paused_at="now")
    # In UTC, whatever the app's zone.
    sql("UPDATE pgbeat.schedules SET timezone = 'UTC'")


@pytest.mark.usefixtures("rows")
def test_times(database: str) -> None:
    shown = run(database, "forecast", *FROM, "--hours", "6.5")
    assert shown.exit_code == 0
    lines = [" ".join(text.split()) for text in shown.stdout.splitlines()]
    assert lines == [
        "when (UTC) schedule",
        "2030-01-07 12:00:00 hourly",
        "2030-01-07 13:00:00 hourly",
        "2030-01-07 13:30:00 asked ? on its condition",
        "2030-01-07 13:45:00 own ? by Own",
        "2030-01-07 14:00:00 hourly",
        "2030-01-07 14:30:00 asked ? on its condition",
        "2030-01-07 15:00:00 hourly",
        "2030-01-07 16:00:00 hourly",
        "2030-01-07 17:00:00 hourly",
        "2030-01-07 18:00:00 daily skipped: calendar 'evenings': within 18:00–00:00",
        "2030-01-07 18:00:00 hourly",
        "after hourly then ?",
        "",
        "11 due times in 6 h 30 min, of 5 schedules: 7 launched, 3 uncertain, 1 skipped.",
        "The most in a minute: 1, at 2030-01-07 12:00 UTC.",
    ]
    assert shown.stderr == "Note: left out: 1 disabled (off) and 1 paused (held).\n"


@pytest.mark.usefixtures("rows")
def test_some_are_named(database: str) -> None:
    found = read(database, "forecast", "daily", "off", "daily", *FROM)
    assert [time["schedule"] for time in found["times"]] == ["daily"]
    assert (found["disabled"], found["paused"], found["after"]) == (["off"], [], [])
    minutes = read(database, "forecast", *FROM, "--by-minute")["minutes"]
    assert minutes[2] == {"minute": "2030-01-07T13:30:00Z", "launches": 0, "uncertain": 1}


@pytest.mark.usefixtures("rows")
def test_only_the_first_are_listed(database: str) -> None:
    lines = run(database, "forecast", *FROM, "--limit", "2").stdout.splitlines()
    assert len(lines) == 8
    assert lines[3].startswith("after hourly")
    assert lines[4] == "… and 26 more (--limit)"
    lines = run(database, "forecast", *FROM, "--limit", "0").stdout.splitlines()
    assert lines[0].startswith("28 due times in 1 d, of 5 schedules: ")


@pytest.mark.usefixtures("rows")
def test_by_minute(database: str, sql: Sql) -> None:
    sql("UPDATE pgbeat.schedules SET cron = '0 13,14 * * *' WHERE name = 'asked'")
    shown = run(database, "forecast", *FROM, "--hours", "2.5", "--by-minute")
    assert [" ".join(text.split()) for text in shown.stdout.splitlines()] == [
        "minute (UTC) launched uncertain",
        "2030-01-07 12:00 1 0",
        "2030-01-07 13:00 1 1",
        "2030-01-07 13:45 0 1",
        "2030-01-07 14:00 1 1",
        "",
        "6 due times in 2 h 30 min, of 5 schedules: 3 launched, 3 uncertain.",
        "The most in a minute: 2, 1 of them uncertain, at 2030-01-07 13:00 UTC.",
    ]


def test_nothing(database: str, sql: Sql) -> None:
    nothing = {"exit_code": 0, "stdout": "Nothing is due in 1 d.\n", "stderr": ""}
    shown = run(database, "forecast")
    assert {key: getattr(shown, key) for key in nothing} == nothing
    make_schedule(sql, once_at="2039-01-01Z")
    assert run(database, "forecast").stdout == "Nothing is due in 1 d.\n"
    found = read(database, "forecast", "--by-minute")
    assert (found["total"], found["peak"], found["minutes"]) == (0, None, [])


def test_the_zone_is_the_apps(database: str, app: Celery, sql: Sql) -> None:
    app.conf.timezone = "Asia/Tokyo"
    make_schedule(sql, cron="0 9 * * *")
    shown = run_with(app, "forecast", "--from", "2030-01-07T09:00", "--hours", "1", "--json")
    assert [time["at"] for time in json.loads(shown.stdout)["times"]] == ["2030-01-07T00:00:00Z"]
    assert shown.stderr == ""
    assert run(database, "forecast").stderr == (
        "Note: schedules that name no time zone take the app's; without -A APP, UTC is assumed.\n"
    )


def test_what_stays_in_code(database: str, app: Celery, sql: Sql) -> None:
    app.conf.beat_schedule = {
        "c": {"task": "tests.add", "schedule": crontab("0", "0", "fri", "13")}
    }
    make_schedule(sql, "c", every=None, source="code")
    why = "its timetable is in the app's code; give the app with -A APP"
    assert read(database, "forecast")["unknown"] == {"c": why}
    note = f"Note: schedule 'c' is left out: {why}\n"
    assert run(database, "forecast").stderr == note
    shown = run_with(app, "forecast", "--from", "2030-09-13", "--hours", "24").stdout.splitlines()
    assert " ".join(shown[1].split()) == "2030-09-13 00:00:00 c ? by the app's code"


def test_bad_input(database: str) -> None:
    for option, *value in (
        ("--from", "2020-01-01"),
        ("--from", "tomorrow"),
        ("--from", "9999-12-31T20:00Z"),
        ("--hours", "0"),
        ("--hours", "9000"),
        ("--limit", "-1"),
        ("--limit", "9" * 20),
        ("--day",),
    ):
        assert option in refused(run(database, "forecast", option, *value))


def test_many_that_nothing_can_be_told_of(database: str, sql: Sql) -> None:
    for n in range(1, 8):
        make_schedule(sql, f"s{n}", every=None, source="code")
        make_schedule(sql, f"off{n}", enabled=False)
    notes = run(database, "forecast").stderr.splitlines()
    assert notes[0] == "Note: left out: 7 disabled (off1, off2, off3, off4, off5 and 2 more)."
    assert len(notes) == 7
    assert notes[-1] == "Note: so are 2 more; --json names them."
