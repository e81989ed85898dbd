"""`pgbeat add` and `update`: write schedules, and refuse invalid ones."""

from pathlib import Path

import pytest
from celery import Celery

from tests.support.command_line import Sql, read, refused, run, run_with
from tests.support.rows import make_lane, make_schedule, make_template

NOT_CHECKED = "Note: task and launcher are not checked; with -A APP they would be.\n"


def add(database: str, name: str = "s", *arguments: str, every: str = "1 hour") -> None:
    added = run(database, "add", name, "--task", "tests.add", "--every", every, *arguments)
    assert added.exit_code == 0, added.output


def test_the_least_there_is(database: str, sql: Sql) -> None:
    added = run(database, "add", "nightly", "--task", "tests.add", "--cron", "0 2 * * *")
    assert added.stdout.startswith("Added schedule 'nightly'. Next: ")
    assert added.stdout.endswith(".\n")
    assert " 02:00:00 UTC, in " in added.stdout
    assert added.stderr == NOT_CHECKED
    assert sql(
        "SELECT name, task, cron, every, launcher, source, max_retries, next_run, timezone "
        "FROM pgbeat.schedules"
    ) == [("nightly", "tests.add", "0 2 * * *", None, "GenericLauncher", "cli", 5, None, None)]


def test_cron_of_several_lines(database: str, sql: Sql, tmp_path: Path) -> None:
    crons = ("--cron", "0 9 * * mon-fri", "--cron", "0 12 * * sat")
    run(database, "add", "offices", "--task", "tests.add", *crons)
    assert sql("SELECT cron FROM pgbeat.schedules") == [("0 9 * * mon-fri\n0 12 * * sat",)]
    assert "0 9 * * mon-fri; 0 12 * * sat" in run(database, "list").stdout
    wrong = ("--cron", "@daily", "--cron", "0 25 * * *")
    said = refused(run(database, "update", "offices", *wrong))
    assert "line 2: hour '25' is not valid" in said
    (tmp_path / "schedules.yaml").write_text(run(database, "export").stdout)
    sql("DELETE FROM pgbeat.schedules")
    assert run(database, "sync", str(tmp_path / "schedules.yaml")).exit_code == 0
    assert sql("SELECT cron FROM pgbeat.schedules") == [("0 9 * * mon-fri\n0 12 * * sat",)]


def test_what_is_late_beyond_its_grace_is_skipped(database: str) -> None:
    added = run(
        database, "add", "s", "--task", "tests.add", "--at", "2020-12-24T09:00Z", "--grace", "1h"
    )
    assert "Next: at once; it will be skipped: " in added.stdout
    assert "late, more than its grace of 1 h." in added.stdout


def test_times_without_an_offset(database: str, app: Celery) -> None:
    def once(row: str) -> str:
        return str(read(database, "status", row)["once_at"])

    app.conf.timezone = "Asia/Tokyo"
    at = ("--task", "tests.add", "--at", "2030-07-01T09:00")
    assert run_with(app, "add", "own", *at, "--timezone", "Europe/Oslo").stderr == ""
    assert once("own") == "2030-07-01T07:00:00Z"
    assert run_with(app, "add", "apps", *at).stderr == ""
    assert once("apps") == "2030-07-01T00:00:00Z"
    assumed = (
        "Note: times without an offset are taken as UTC; with -A APP, they are in the app's zone.\n"
    )
    assert run(database, "add", "none", *at).stderr == assumed + NOT_CHECKED
    assert once("none") == "2030-07-01T09:00:00Z"
    # A change is in the zone that it has, or gets.
    assert run(database, "update", "own", "--at", "2030-12-01").stderr == ""
    assert once("own") == "2030-11-30T23:00:00Z"
    run(database, "update", "own", "--at", "2030-12-01", "--timezone", "UTC")
    assert once("own") == "2030-12-01T00:00:00Z"


def test_after_what_is_not_there_yet(database: str) -> None:
    add(database, "nightly")
    later = run(database, "add", "s", "--task", "tests.add", "--after", "nigtly")
    assert (later.exit_code, later.stderr) == (
        0,
        NOT_CHECKED.replace(
            "Note",
            "Note: until it is added, nothing is launched after it: "
            "there is no schedule 'nigtly'; did you mean 'nightly'? "
            "`pgbeat list` shows all schedules\nNote",
        ),
    )
    right = run(database, "update", "s", "--after", "nightly", "--after-outcome", "finished")
    assert right.stderr == ""
    assert right.stdout.startswith(
        "Changed schedule 's'. It comes after nightly (however it ends).\n"
    )


def test_help_is_grouped() -> None:
    shown = run(None, "update", "--help").stdout
    headings = [text for text in shown.splitlines() if text.endswith(":") and text[0] != " "]
    assert headings == [
        "What to launch:",
        "When (one of these):",
        "Limits:",
        "Missed times and overlaps:",
        "Failures:",
        "Its jobs:",
        "Options:",
    ]
    assert shown.count("--no-") == 1
    assert "--no-NAME" in shown
    assert "--no-" not in run(None, "add", "--help").stdout


def test_twice(database: str) -> None:
    add(database)
    again = run(database, "add", "s", "--task", "tests.note", "--every", "5", "--if-not-exists")
    assert again.stdout == "Schedule 's' exists already; it is left as it is.\n"
    assert read(database, "status", "s")["task"] == "tests.add"


@pytest.mark.parametrize(
    ("condition", "remark"),
    [
        ("SELECT 1", "Its condition holds now."),
        ("SELECT false", "Its condition says no: condition_sql is false."),
        ("SELECT 1 WHERE false", "Its condition says no: condition_sql found no row."),
        (
            "SELECT * FROM later",
            'Its condition fails as things are: relation "later" does not exist.',
        ),
    ],
)
def test_a_condition_is_tried(database: str, condition: str, remark: str) -> None:
    added = run(
        database, "add", "s", "--task", "tests.add", "--every", "5", "--condition-sql", condition
    )
    assert (added.exit_code, added.stdout.splitlines()[1:]) == (0, [remark])


def test_a_condition_that_hangs(app: Celery) -> None:
    app.conf.pgbeat_condition_timeout = 0.1
    slow = ("--condition-sql", "SELECT true FROM pg_sleep(60)")
    added = run_with(app, "add", "s", "--task", "tests.add", "--every", "5", *slow)
    assert added.stdout.splitlines()[1:] == [
        "Its condition fails as things are: canceling statement due to statement timeout."
    ]


def test_never_due(database: str) -> None:
    added = run(database, "add", "s", "--task", "tests.add", "--cron", "0 0 30 2 *")
    assert added.stdout == "Added schedule 's'. It is never due.\n"


def test_update(database: str, sql: Sql) -> None:
    add(database, "s", "--queue", "slow", "--condition-sql", "SELECT 1")
    sql("UPDATE pgbeat.schedules SET next_run = now() + interval '1 minute'")
    asked = ["--timezone", "America/New_York", "--no-queue", "--no-condition", "--retry-base", "10"]
    changed = run(database, "update", "s", "--cron", "0 3 * * *", *asked)
    first, *rest = changed.stdout.splitlines()
    assert first.startswith("Changed schedule 's'. Next: ")
    assert {line.strip() for line in rest} == {
        "cron           none → 0 3 * * *",
        "every          1 h → none",
        "timezone       none → America/New_York",
        "queue          slow → none",
        "condition_sql  SELECT 1 → none",
        "retry_base     1 min → 10 s",
    }
    assert sql("SELECT cron, every, next_run, queue FROM pgbeat.schedules") == [
        ("0 3 * * *", None, None, None)
    ]


def test_update_to_what_it_is(database: str) -> None:
    add(database)
    same = run(database, "update", "s", "--every", "60m")
    assert (same.exit_code, same.stdout) == (0, "Schedule 's' is like that already.\n")


def test_update_refuses(database: str, app: Celery) -> None:
    add(database)
    assert "--help" in refused(run(database, "update", "s"))
    for option, more in (("queue", ["x"]), ("condition-sql", ["SELECT 1"]), ("max-runs", ["2"])):
        clear = f"--no-{option.removesuffix('-sql')}"
        said = refused(run(database, "update", "s", f"--{option}", *more, clear))
        assert said == f"--{option} and {clear} exclude each other"
    # What was there before doesn't fit the new task.
    assert "'tests.note'" in refused(run_with(app, "update", "s", "--task", "tests.not"))
    wrong = ("--kwargs", '{"x": 1}', "--task", "tests.note")
    assert "'tests.note'" in refused(run_with(app, "update", "s", *wrong))
    assert read(database, "status", "s")["task"] == "tests.add"


def test_update_leaves_a_task_unchecked_that_it_does_not_touch(database: str, app: Celery) -> None:
    run(database, "add", "s", "--task", "elsewhere.task", "--every", "5")
    assert run_with(app, "update", "s", "--owner", "ops").exit_code == 0


def test_update_of_what_code_made(database: str, sql: Sql) -> None:
    make_schedule(sql, source="code")
    changed = run(database, "update", "s", "--every", "5")
    assert changed.stderr == (
        "Note: it is made by the app's code, and beat sets it back when it starts.\n"
    )
    assert run(database, "update", "s", "--max-retries", "2").stderr == ""


def test_update_changes_what_is_given_of_a_policy(database: str) -> None:
    policy = "--priority 3 --job-retry-cap 2h --tag a --tag b --unique --max-attempts 5"
    add(database, "s", *policy.split())
    both = ["update", "s", "--priority", "9", "--no-tag", "--tag", "c"]
    assert "--no-tag" in refused(run(database, *both))
    change = ["update", "s", "--priority", "9", "--no-unique", "--no-tag", "--no-job-retry-cap"]
    assert [" ".join(text.split()) for text in run(database, *change).stdout.splitlines()[1:]] == [
        "job priority 3 → 9",
        "job retry_cap 2 h → none",
        'job tags ["a", "b"] → none',
        "job unique true → none",
    ]
    assert read(database, "status", "s")["job_policy"] == {"max_attempts": 5, "priority": 9}
    assert run(database, *change).stdout == "Schedule 's' is like that already.\n"


def test_a_lane_that_is_not_there_yet(database: str, sql: Sql) -> None:
    make_lane(sql, "gpu")
    base = ("--task", "tests.add", "--every", "5")
    missing = run(database, "add", "s", *base, "--lane", "gpo")
    assert (missing.exit_code, missing.stderr.splitlines()[0]) == (
        0,
        "Note: until it is added, the schedule's ticks fail: "
        "there is no lane 'gpo'; did you mean 'gpu'? `pgbeat lanes list` shows all lanes",
    )
    assert run(database, "update", "s", "--owner", "me").stderr == ""
    assert run(database, "update", "s", "--lane", "gpu").stderr == ""


def test_a_template_stands_for_a_task(database: str, app: Celery, sql: Sql) -> None:
    make_template(sql, "x", kwargs={"y": 2})
    make_template(sql, "y", task="tests.note")
    added = run(database, "add", "s", "--every", "5", "--template", "x")
    assert (added.exit_code, added.stderr) == (0, NOT_CHECKED)
    # Another template's task takes its place only if its own is cleared.
    changed = run(database, "update", "s", "--template", "y", "--no-task").stdout
    assert [" ".join(text.split()) for text in changed.splitlines()[1:]] == [
        "task tests.add → tests.note",
        "job template x → y",
    ]
    # The app judges what is launched in the end.
    sql("""UPDATE pgbeat.templates SET kwargs = '{"z": 1}' WHERE name = 'x'""")
    refusal = refused(run_with(app, "add", "t", "--every", "5", "--template", "x"))
    assert "'tests.add'" in refusal
