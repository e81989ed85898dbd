"""`pgbeat list`, `status` and `next`; `enable`, `disable`, `pause`, `resume` and `remove`."""

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery
from celery.schedules import crontab, solar

from pgbeat.cli.terminal.printing import line, span
from tests.support.command_line import Sql, cells, read, refused, run, run_on_terminal, run_with
from tests.support.rows import make_calendar, make_execution, make_schedule


@pytest.fixture(autouse=True)
def rows(sql: Sql) -> None:
    """Writes four schedules: due later, due, disabled, paused."""
    [(now,)] = sql("SELECT now()")
    day, moment = now - timedelta(days=1), now - timedelta(minutes=3)
    ran = {"last_run": day, "last_success": day}
    make_schedule(sql, "later", cron="0 2 * * *", timezone="Europe/Oslo", due="2 hours", **ran)
    failed = {"last_run": moment, "last_failure": moment, "last_error": "no luck"}
    make_schedule(sql, "due", every="15 minutes", due="-90 seconds", retry_count=2, **failed)
    off = {"enabled": False, "disabled_reason": "too noisy"}
    make_schedule(sql, "off", every="1 day", last_run=now - timedelta(seconds=5), **off)
    held = {"paused_at": now - timedelta(minutes=1), "launcher": "SomeLauncher"}
    make_schedule(sql, "held", task=None, every="90 minutes", **held)


def test_list(database: str) -> None:
    shown = run(database, "list")
    assert shown.exit_code == 0
    header, *lines, blank, trouble = shown.stdout.splitlines()
    assert " ".join(header.split()) == "schedule timetable state health next last task"
    found = [cells(text) for text in lines]
    due, late = "due for 1 min 30 s", found[2][4]
    assert found == [
        ["due", "every 15 min", "retry 2/5", "late", due, "failed 3 min ago", "tests.add"],
        ["held", "every 1 h 30 min", "paused", "-", "-", "never", "by SomeLauncher"],
        ["later", "0 2 * * * (Europe/Oslo)", "active", "-", late, "launched 1 d ago", "tests.add"],
        ["off", "every 1 d", "disabled", "never launched", "-", found[3][5], "tests.add"],
    ]
    assert late in {"in 2 h", "in 1 h 59 min"}
    assert found[3][5].startswith("skipped ")
    assert (blank, trouble[:8]) == ("", "due: has")
    assert all(text == text.rstrip() for text in shown.stdout.splitlines())


def test_list_at_80_columns(database: str, sql: Sql) -> None:
    long, cron = "warehouse-inventory-reconciliation-eu-west", "*/15 6-22 * * mon-fri"
    make_schedule(sql, long, cron=cron, timezone="America/Argentina/Buenos_Aires", due="2 days")
    listed = run_on_terminal(database, 80, "list")
    assert max(map(len, listed)) <= 80
    assert listed[0].split() == ["schedule", "timetable", "state", "next", "last"]
    rows = {text.split()[0]: cells(text) for text in listed if text}
    assert rows["due"] == ["due", "every 15 min", "retry 2/5", "due now", "failed 3 min"]
    assert rows["held"][1:4] == ["every 1 h 30 min", "paused", "-"]
    assert long in listed
    [below] = [text for text in listed if cron in text]
    assert cells(below)[:2] == [cron, "active"]
    assert "(America/Argentina/Buenos_Aires)" in "".join(listed)
    sql("DELETE FROM pgbeat.schedules WHERE name NOT IN ('due', 'off')")
    all_columns = run_on_terminal(database, 110, "list")[0].split()
    assert all_columns[-3:] == ["next", "last", "task"], "where each row has room on a line"


def test_list_some(database: str) -> None:
    assert [row["name"] for row in read(database, "list", "--disabled")] == ["off"]
    assert [row["name"] for row in read(database, "list", "--enabled")] == ["due", "held", "later"]
    worst_first = [row["name"] for row in read(database, "list", "--sort", "health")]
    assert worst_first == ["due", "off", "later", "held"]


def test_list_none(database: str, sql: Sql) -> None:
    sql("DELETE FROM pgbeat.schedules")
    assert run(database, "list").stdout == (
        "There are no schedules; `pgbeat add --help` says how to add one.\n"
    )
    assert run(database, "list", "--disabled").stdout == "There are no disabled schedules.\n"
    assert read(database, "list") == []


def test_status(database: str) -> None:
    shown = run(database, "status", "due").stdout
    assert shown.startswith("due (retry 2/5)\n")
    facts = dict(text.strip().split("  ", 1) for text in shown.splitlines()[1:])
    assert facts["timetable"].strip() == "every 15 min"
    assert facts["last error"].strip() == "no luck"
    assert facts["retries"].strip() == ("2 of 5 used; 1 min doubled each time, 1 h at most")
    assert "disabled" not in facts
    assert "disabled   too noisy" in run(database, "status", "off").stdout


def facts(database: str, name: str) -> dict[str, str]:
    lines = run(database, "status", name).stdout.splitlines()[1:]
    return {
        label: " ".join(said.split())
        for label, said in (
            (text[2:].partition("  ")[0].strip(), text[2:].partition("  ")[2]) for text in lines
        )
    }


@pytest.mark.parametrize(
    ("columns", "said", "listed"),
    [
        ({"cron": "0 2 * * *"}, "0 2 * * * (UTC)", "0 2 * * *"),
        ({"every": "90 minutes"}, "every 1 h 30 min", "every 1 h 30 min"),
        ({"every": "2 days"}, "every 2 d (UTC)", "every 2 d"),
        ({"every": "1 day", "timezone": "Europe/Oslo"}, "every 1 d (Europe/Oslo)", None),
        ({"once_at": "2030-01-01Z"}, "once, 2030-01-01 00:00:00 UTC", None),
        ({"solar": "dawn_civil 59.91 10.75"}, "dawn civil at 59.91, 10.75", None),
        ({"rrule": "FREQ=WEEKLY;BYDAY=MO"}, "FREQ=WEEKLY;BYDAY=MO (UTC)", "FREQ=WEEKLY;BYDAY=MO"),
        ({"after": "due"}, "after due", None),
        ({"after": "due", "after_outcome": "failed"}, "after due (failed)", None),
        ({"after": "due", "after_outcome": "finished"}, "after due (however it ends)", None),
        ({"source": "code"}, "by the app's code", None),
    ],
)
def test_timetables(
    database: str, sql: Sql, columns: dict[str, Any], said: str, listed: str | None
) -> None:
    make_schedule(sql, **({"every": None} if "source" in columns else {}) | columns)
    assert facts(database, "s")["timetable"] == said
    assert f"  {listed or said}  " in run(database, "list").stdout


#: What a schedule has no word about that is as they all are.
USUAL = {
    *("health", "timetable", "next run", "task", "launcher", "last run", "last failure"),
    *("last error", "retries", "source", "created", "changed"),
}


def test_status_tells_what_is_not_as_usual(database: str, sql: Sql) -> None:
    assert set(facts(database, "due")) == USUAL
    make_calendar(sql)
    sql(
        """
        UPDATE pgbeat.schedules SET starts_at = '2020-01-01Z', ends_at = '2099-01-01Z',
               calendar = 'office', jitter = '5 minutes', max_runs = 9, run_count = 4,
               catch_up = 'all', catch_up_limit = 7, grace = '10 minutes', overlap = 'queue_one',
               min_interval = '1 hour', retry_factor = 3, probe_after = '6 hours'
         WHERE name = 'due'
        """
    )
    sql(
        "UPDATE pgbeat.schedules SET next_run = '2090-01-01 00:02Z', due_at = '2090-01-01Z', "
        "retry_count = 2, waiting_for = uid WHERE name = 'due'"
    )
    found = facts(database, "due")
    [(uid,)] = sql("SELECT uid::text FROM pgbeat.schedules WHERE name = 'due'")
    assert found["window"].startswith("from 2020-01-01 00:00:00 UTC, ")
    assert " to 2099-01-01 00:00:00 UTC, in " in found["window"]
    assert found["next run"].endswith("; by its timetable 2090-01-01 00:00:00 UTC")
    assert {key: found[key] for key in set(found) - USUAL - {"window"}} == {
        "calendar": "office",
        "jitter": "up to 5 min",
        "waits for": f"the end of job {uid}",
        "launches": "4 of 9",
        "catch up": "all, 7 at most, 10 min late at most",
        "overlap": "queue_one",
        "spacing": "1 h",
    }
    assert found["retries"] == (
        "2 of 5 used; 1 min times 3 each time, 1 h at most; once disabled, it is tried "
        "again after 6 h"
    )
    listed = next(text for text in run(database, "list").stdout.splitlines() if "due" in text)
    assert "  waiting   not launched    after its job  " in listed


def test_status_tells_how_its_jobs_are_made_and_fare(database: str, sql: Sql) -> None:
    assert read(database, "status", "due")["runs"]["total"] == 0
    sql("""UPDATE pgbeat.schedules SET job_policy = '{"template": "x", "lane": "gpu", "priority": 3,
           "max_attempts": 1, "retry_base": 90, "retry_cap": "2 hours", "tags": ["a", "b"],
           "resources": {"gpu": 1, "gb": 0.5}, "unique": true, "unique_for": 60,
           "requires_approval": true}' WHERE name = 'due'""")
    assert facts(database, "due")["jobs"] == (
        "template x, lane gpu, priority 3, no retry, retried after 1 min 30 s, doubled each time, "
        "2 h at most, tag a, tag b, 0.5 gb, 1 gpu, unique, once in 1 min, with approval"
    )
    sql("""UPDATE pgbeat.schedules SET job_policy = '{"unique_key": "k", "max_attempts": 5}'
            WHERE name = 'due'""")
    assert facts(database, "due")["jobs"] == "5 attempts, unique as k"
    sql("""UPDATE pgbeat.schedules SET job_policy = '{"priority": "high"}' WHERE name = 'due'""")
    assert facts(database, "due")["jobs"] == '{"priority": "high"}'
    assert read(database, "status", "due")["job_policy"] == {"priority": "high"}
    [(key,)] = sql("SELECT id FROM pgbeat.schedules WHERE name = 'due'")
    for state, ms in (("completed", 1000), ("completed", 3000), ("failed", 9), ("running", None)):
        make_execution(sql, uuid4(), state, schedule_id=key, duration_ms=ms)
    assert facts(database, "due")["runs"] == (
        "4 runs; 1 running; 1 failed; success rate 67%; 2 s on average, 95% within 2.9 s"
    )
    assert read(database, "status", "due")["runs"]["success_rate"] == 2 / 3


def test_list_names_the_lane_of_its_jobs(database: str, sql: Sql) -> None:
    sql("""UPDATE pgbeat.schedules SET job_policy = '{"lane": "gpu"}' WHERE name = 'due'""")
    listed = next(text for text in run(database, "list").stdout.splitlines() if "due" in text)
    assert listed.endswith(" in lane gpu")


def test_completed_is_not_disabled(database: str, sql: Sql) -> None:
    sql(
        "UPDATE pgbeat.schedules SET enabled = false, run_count = 2, "
        "disabled_reason = 'launched 2 times (max_runs)', completed_at = now() WHERE name = 'due'"
    )
    found = facts(database, "due")
    assert found["completed"] == "launched 2 times (max_runs)"
    assert found["launches"] == "2"
    assert "disabled" not in found
    assert run(database, "status", "due").stdout.startswith("due (completed)\n")
    assert run(database, "next", "due").stderr.startswith(
        "Note: it is completed (launched 2 times (max_runs))"
    )
    assert "  completed  " in run(database, "list").stdout


def test_what_is_tried_again(database: str, sql: Sql) -> None:
    sql("UPDATE pgbeat.schedules SET probe_at = now() + interval '60.5 minutes' WHERE name = 'off'")
    assert facts(database, "off")["tried again"].endswith(" UTC, in 1 h")


def test_what_comes_after_another_is_not_new(database: str, sql: Sql) -> None:
    make_schedule(sql, after="due")
    [listed] = [text for text in run(database, "list").stdout.splitlines() if text.startswith("s ")]
    assert listed.split() == ["s", "after", "due", "active", "-", "-", "never", "tests.add"]
    shown = run(database, "next", "s")
    assert (shown.stdout, shown.stderr) == ("", "Note: it comes after due, whenever that is.\n")
    assert read(database, "next", "s")["times"] == []


def test_another_namespace(database: str, sql: Sql) -> None:
    sql("UPDATE pgbeat.schedules SET namespace = 'shop' WHERE name = 'due'")
    assert "due" not in run(database, "list").stdout.split()
    env = {"PGBEAT_NAMESPACE": "shop"}
    assert "  namespace     shop\n" in run(database, "status", "due", env=env).stdout


def test_what_a_row_says_can_not_move_the_cursor(database: str, sql: Sql) -> None:
    sql("UPDATE pgbeat.schedules SET last_error = E'a\\nb \\033[31m[bold]c' WHERE name = 'due'")
    assert "last error    a b \N{REPLACEMENT CHARACTER}[31m[bold]c\n" in (
        run(database, "status", "due").stdout
    )


def test_next_in_two_zones(database: str, sql: Sql) -> None:
    sql("UPDATE pgbeat.schedules SET next_run = '2030-03-29 01:00Z' WHERE name = 'later'")
    shown = run(database, "next", "later", "-n", "3").stdout.splitlines()
    assert shown[0].split() == ["Europe/Oslo", "UTC"]
    # Clocks go forward on the 31st: 02:00 is not there, and the zone's offset is another one.
    assert [text.rpartition("  ")[0].strip() for text in shown[1:3]] == [
        "Fri 2030-03-29 02:00:00 CET   Fri 2030-03-29 01:00:00 UTC",
        "Sat 2030-03-30 02:00:00 CET   Sat 2030-03-30 01:00:00 UTC",
    ]
    assert "Sun 2030-03-31 03:00:00 CEST  Sun 2030-03-31 01:00:00 UTC" in shown[3]


def test_next_tells_what_is_skipped(database: str, sql: Sql) -> None:
    make_calendar(sql, weekdays=["sat", "sun"])
    sql(
        "UPDATE pgbeat.schedules SET calendar = 'office', next_run = '2030-03-29 01:00Z' "
        "WHERE name = 'later'"
    )
    lines = run(database, "next", "later", "-n", "4").stdout.splitlines()
    assert lines[0].split() == ["Europe/Oslo", "UTC", "skipped"]
    assert [text.rpartition("  ")[2].strip() for text in lines[2:4]] == [
        "calendar 'office': Saturday",
        "calendar 'office': Sunday",
    ]
    skips = [time["skip"] for time in read(database, "next", "later", "-n", "2")["times"]]
    assert skips == [None, "calendar 'office': Saturday"]


def test_next_remarks(database: str, sql: Sql) -> None:
    assert run(database, "next", "off").stderr == (
        "Note: it is disabled (too noisy); none of this will come.\n"
        "Note: it names no time zone and takes the app's; without -A APP, UTC is assumed.\n"
    )
    assert run(database, "next", "held").stderr == (
        "Note: it is paused; none of this comes before it is resumed.\n"
    )
    assert run(database, "next", "due").stderr == "Note: the first is retry 2 of 5.\n"
    sql("UPDATE pgbeat.schedules SET timezone = NULL, cron = '0 0 30 2 *' WHERE name = 'later'")
    assert run(database, "next", "later").stderr == (
        "Note: its timetable has no time left.\n"
        "Note: it names no time zone and takes the app's; without -A APP, UTC is assumed.\n"
    )


def test_next_takes_the_apps_zone(app: Celery, sql: Sql) -> None:
    app.conf.timezone = "Asia/Tokyo"
    sql("UPDATE pgbeat.schedules SET timezone = NULL WHERE name = 'later'")
    shown = run_with(app, "next", "later", "-n", "1")
    assert shown.stdout.startswith("Asia/Tokyo")
    assert " 02:00:00 JST " in shown.stdout
    assert shown.stderr == ""


def test_next_of_what_stays_in_code(database: str, app: Celery, sql: Sql) -> None:
    app.conf.beat_schedule = {
        "sun": {"task": "tests.add", "schedule": solar("sunset", 59.9, 10.7)},
        "thirteenth": {"task": "tests.add", "schedule": crontab("0", "0", "fri", "13")},
    }
    for name in app.conf.beat_schedule:
        make_schedule(sql, name, every=None, source="code")
    said = refused(run(database, "next", "thirteenth"))
    assert said == ("its timetable is in the app's code; give the app with -A APP")
    shown = run_with(app, "next", "thirteenth", "-n", "2").stdout.splitlines()[1:]
    assert [text[:3] + text[11:14] for text in shown] == ["Fri-13", "Fri-13"]
    assert len(run_with(app, "next", "sun").stdout.splitlines()) == 11


def test_paused_and_disabled(database: str, sql: Sql) -> None:
    """What else holds it up is noted; what is so already is said."""
    assert run(database, "disable", "due", "--reason", "broken").stdout == (
        "Disabled schedule 'due': broken\n"
    )
    assert run(database, "enable", "due").stdout.startswith("Enabled schedule 'due'. Next: ")
    assert run(database, "enable", "due").stdout == "Schedule 'due' is enabled already.\n"
    assert run(database, "resume", "due").stdout == "Schedule 'due' is not paused.\n"
    assert run(database, "pause", "off").stderr == "Note: it is disabled, too.\n"
    assert run(database, "pause", "off").stdout.startswith(
        "Schedule 'off' is paused already, since"
    )
    assert run(database, "enable", "off").stderr == (
        "Note: it is paused; `pgbeat resume off` lets it launch.\n"
    )
    run(database, "disable", "off")
    assert run(database, "resume", "off").stderr == (
        "Note: it is disabled; `pgbeat enable off` enables it.\n"
    )
    sql("UPDATE pgbeat.schedules SET source = 'code' WHERE name = 'off'")
    assert run(database, "remove", "off", "--yes").stderr == (
        "Note: it is made by the app's code, and comes back when beat starts; "
        "`pgbeat disable off` lasts.\n"
    )


@pytest.mark.parametrize(
    ("seconds", "short", "exact"),
    [
        (0, "0 s", "0 s"),
        (0.25, "0.2 s", "0.25 s"),
        (59.6, "1 min", "59.6 s"),
        (60, "1 min", "1 min"),
        (61, "1 min 1 s", "1 min 1 s"),
        (3600, "1 h", "1 h"),
        (3605, "1 h", "1 h 5 s"),
        (93_784, "1 d 2 h", "1 d 2 h 3 min 4 s"),
        (-5, "5 s", "5 s"),
    ],
)
def test_spans(seconds: float, short: str, exact: str) -> None:
    assert span(timedelta(seconds=seconds)) == short
    assert span(timedelta(seconds=seconds), units=4) == exact


def test_lines() -> None:
    assert line("a\r\n\tb\x00c") == "a b\N{REPLACEMENT CHARACTER}c"
