"""`pgbeat add` and `update`: write schedules, and refuse invalid ones."""

from datetime import timedelta
from typing import Any

import psycopg
import pytest
from celery import Celery

from tests.support.command_line import Sql, read, refused, run, run_with
from tests.support.rows import make_lane, make_schedule

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


def test_everything_there_is(database: str, app: Celery) -> None:
    added = run_with(
        app, "add", "all", "--task", "tests.add", "--cron", "30 4 * * mon", "--timezone",
        "Europe/Oslo", "--args", "[1]", "--kwargs", '{"y": 2}', "--queue", "slow", "--options",
        '{"priority": 3}', "--condition-sql", "SELECT 1", "--max-retries", "7", "--retry-base",
        "10", "--retry-cap", "2 min", "--owner", "ops",
    )  # fmt: skip
    assert added.exit_code == 0, added.output
    assert added.stdout.splitlines()[1:] == ["Its condition holds now."]
    assert added.stderr == ""
    row = read(database, "status", "all")
    wanted: dict[str, Any] = {
        "task": "tests.add",
        "cron": "30 4 * * mon",
        "every": None,
        "timezone": "Europe/Oslo",
        "args": [1],
        "kwargs": {"y": 2},
        "queue": "slow",
        "options": {"priority": 3},
        "condition_sql": "SELECT 1",
        "max_retries": 7,
        "retry_base": 10,
        "retry_cap": 120,
        "owner": "ops",
        "launcher": "GenericLauncher",
        "source": "cli",
        "enabled": True,
    }
    assert {key: row[key] for key in wanted} == wanted


POLICIES = (
    "--starts-at", "2030-01-01T00:00Z", "--ends-at", "2031-01-01T00:00Z", "--max-runs", "9",
    "--jitter", "5m", "--calendar", "office", "--catch-up", "all", "--catch-up-limit", "7",
    "--grace", "10m", "--overlap", "queue_one", "--min-interval", "1h", "--retry-factor", "3",
    "--probe-after", "6h",
)  # fmt: skip


@pytest.fixture
def calendar(sql: Sql) -> None:
    """Writes a calendar."""
    sql(
        "INSERT INTO pgbeat.calendars (name, definition) "
        """VALUES ('office', '{"weekdays": ["sat", "sun"]}')"""
    )


def test_added_out_of_service(database: str) -> None:
    for flag, state in (("--disabled", "disabled"), ("--paused", "paused")):
        added = run(database, "add", state, "--task", "tests.add", "--every", "1s", flag)
        assert added.stdout == f"Added schedule {state!r}, {state}.\n"
        row = read(database, "status", state)
        assert row["enabled"] is (state == "paused")
        assert (row["paused_at"] is not None) is (state == "paused")
    assert read(database, "status", "disabled")["disabled_reason"] == "disabled by hand"


@pytest.mark.usefixtures("calendar")
def test_every_policy(database: str) -> None:
    add(database, "s", *POLICIES)
    row = read(database, "status", "s")
    wanted: dict[str, Any] = {
        "starts_at": "2030-01-01T00:00:00Z",
        "ends_at": "2031-01-01T00:00:00Z",
        "max_runs": 9,
        "run_count": 0,
        "jitter": 300,
        "calendar": "office",
        "catch_up": "all",
        "catch_up_limit": 7,
        "grace": 600,
        "overlap": "queue_one",
        "min_interval": 3600,
        "retry_factor": 3,
        "probe_after": 21_600,
    }
    assert {key: row[key] for key in wanted} == wanted


@pytest.mark.parametrize(
    ("option", "value", "column", "said"),
    [
        ("--cron", "0 0 1 1 * 30", "cron", "Next: "),
        ("--rrule", "FREQ=YEARLY;BYMONTH=1;BYMONTHDAY=1;BYHOUR=9;BYMINUTE=0", "rrule", "Next: "),
        ("--solar", "sunset 59.91 10.75", "solar", "Next: "),
        ("--at", "2099-12-24T09:00Z", "once_at", "Next: 2099-12-24 09:00:00 UTC, in "),
        ("--at", "2020-12-24T09:00Z", "once_at", "Next: at once."),
        ("--after", "t", "after", "It comes after t."),
    ],
)
def test_every_kind_of_timetable(
    database: str, option: str, value: str, column: str, said: str
) -> None:
    added = run(database, "add", "s", "--task", "tests.add", option, value)
    assert added.exit_code == 0, added.output
    assert added.stdout.startswith(f"Added schedule 's'. {said}")
    row = read(database, "status", "s")
    kinds = ("cron", "every", "once_at", "solar", "rrule", "after")
    assert [kind for kind in kinds if row[kind] is not None] == [column]


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


def test_help_is_grouped(database: str) -> None:
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


def test_defaults_are_the_settings(database: str, app: Celery) -> None:
    app.conf.pgbeat_max_retries = 2
    app.conf.pgbeat_retry_base = 3.5
    assert run_with(app, "add", "s", "--task", "tests.add", "--every", "90").exit_code == 0
    row = read(database, "status", "s")
    assert (row["max_retries"], row["retry_base"], row["every"]) == (2, 3.5, 90)


def test_twice(database: str) -> None:
    add(database)
    command = ("add", "s", "--task", "tests.note", "--every", "5")
    assert "`pgbeat update`" in refused(run(database, *command), 1)
    again = run(database, *command, "--if-not-exists")
    assert (again.exit_code, again.stdout) == (
        0,
        "Schedule 's' exists already; it is left as it is.\n",
    )
    assert read(database, "status", "s")["task"] == "tests.add"


def test_dry_run_adds_nothing(database: str) -> None:
    tried = run(database, "add", "s", "--task", "tests.add", "--every", "5", "--dry-run")
    assert tried.stdout.startswith("Would add schedule 's'. Next: ")
    assert read(database, "list") == []


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--cron", "61 * * * *"], "'61'"),
        ([], "timetable"),
        (["--every", "soon"], "'--every'"),
        (["--every", "5", "--args", "{1"], "'--args'"),
        (["--every", "5", "--args", "{}"], "'--args'"),
        (["--every", "5", "--kwargs", "[1]"], "'--kwargs'"),
        (["--every", "5", "--kwargs", '{"x": NaN}'], "'--kwargs'"),
        (["--every", "5", "--max-retries", "-1"], "'--max-retries'"),
        (["--at", "soon"], "'--at'"),
        (["--at", "0001-01-01T00:00+09:00"], "'--at'"),
        (["--at", "2030-03-31T02:30", "--timezone", "Europe/Oslo"], "03:30?"),
        (["--at", "2030-03-31", "--timezone", "Mars/Phobos"], "'Mars/Phobos'"),
        (["--every", "5", "--catch-up", "some"], "'--catch-up'"),
        (["--every", "5", "--retry-factor", "0.5"], "'--retry-factor'"),
    ],
)
def test_bad_input(database: str, arguments: list[str], named: str) -> None:
    assert named in refused(run(database, "add", "s", "--task", "tests.add", *arguments))
    assert read(database, "list") == []


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--task", "tests.ad"], "'tests.add'"),
        (["--task", "tests.add", "--launcher", "NoLauncher"], "'NoLauncher'"),
        (["--task", "tests.add", "--kwargs", '{"z": 1}'], "'z'"),
        (["--task", "tests.add", "--args", "[1, 2, 3]"], "'tests.add'"),
        (["--task", "tests.add", "--options", '{"prio": 1}'], "'prio'"),
    ],
)
def test_what_the_app_does_not_have(
    database: str, app: Celery, arguments: list[str], named: str
) -> None:
    assert named in refused(run_with(app, "add", "s", "--every", "5", *arguments))
    assert read(database, "list") == []


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


def test_a_condition_that_hangs(database: str, app: Celery) -> None:
    app.conf.pgbeat_condition_timeout = 0.1
    added = run_with(
        app,
        "add",
        "s",
        "--task",
        "tests.add",
        "--every",
        "5",
        "--condition-sql",
        "SELECT true FROM pg_sleep(60)",
    )
    assert added.stdout.splitlines()[1:] == [
        "Its condition fails as things are: canceling statement due to statement timeout."
    ]


def test_never_due(database: str) -> None:
    added = run(database, "add", "s", "--task", "tests.add", "--cron", "0 0 30 2 *")
    assert added.stdout == "Added schedule 's'. It is never due.\n"


# -- update ------------------------------------------------------------------------------------


def test_update(database: str, sql: Sql) -> None:
    add(database, "s", "--queue", "slow", "--condition-sql", "SELECT 1")
    sql("UPDATE pgbeat.schedules SET next_run = now() + interval '1 minute'")
    changed = run(
        database,
        "update",
        "s",
        "--cron",
        "0 3 * * *",
        "--timezone",
        "America/New_York",
        "--no-queue",
        "--no-condition",
        "--retry-base",
        "10",
    )
    assert changed.exit_code == 0
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


def test_update_takes_one_timetable_for_another(database: str) -> None:
    add(database)
    kinds = {"once_at": None, "cron": None, "solar": None, "rrule": None, "after": None}
    for option, value, column in (
        ("--at", "2030-01-01", "once_at"),
        ("--cron", "@daily", "cron"),
        ("--rrule", "FREQ=DAILY", "rrule"),
        ("--solar", "sunset 59.91 10.75", "solar"),
        ("--after", "t", "after"),
        ("--every", "5", "every"),
    ):
        changed = run(database, "update", "s", option, value)
        assert changed.exit_code == 0, changed.output
        row = read(database, "status", "s")
        assert [kind for kind in [*kinds, "every"] if row[kind] is not None] == [column]
        assert f"{column} " in changed.stdout
    assert "both cron and every" in refused(
        run(database, "update", "s", "--cron", "@daily", "--every", "5")
    )


@pytest.mark.usefixtures("calendar")
def test_update_clears(database: str) -> None:
    add(database, "s", *POLICIES, "--timezone", "UTC", "--owner", "ops", "--queue", "q")
    cleared = [
        "--no-starts-at",
        "--no-ends-at",
        "--no-max-runs",
        "--no-jitter",
        "--no-calendar",
        "--no-grace",
        "--no-min-interval",
        "--no-probe-after",
        "--no-timezone",
        "--no-owner",
        "--no-queue",
    ]
    changed = run(database, "update", "s", *cleared)
    assert changed.exit_code == 0, changed.output
    assert {" ".join(text.split()) for text in changed.stdout.splitlines()[1:]} == {
        "starts_at 2030-01-01 00:00:00 UTC → none",
        "ends_at 2031-01-01 00:00:00 UTC → none",
        "max_runs 9 → none",
        "jitter 5 min → 0 s",
        "calendar office → none",
        "grace 10 min → none",
        "min_interval 1 h → none",
        "probe_after 6 h → none",
        "timezone UTC → none",
        "owner ops → none",
        "queue q → none",
    }
    both = refused(run(database, "update", "s", "--max-runs", "2", "--no-max-runs"))
    assert "--no-max-runs" in both


def test_update_dry_run(database: str) -> None:
    add(database)
    tried = run(database, "update", "s", "--owner", "ops", "--dry-run")
    assert tried.stdout.startswith("Would change schedule 's'.")
    assert "owner  none → ops" in tried.stdout
    assert read(database, "status", "s")["owner"] is None


def test_update_to_what_it_is(database: str) -> None:
    add(database)
    same = run(database, "update", "s", "--every", "60m")
    assert (same.exit_code, same.stdout) == (0, "Schedule 's' is like that already.\n")


def test_update_refuses(database: str, app: Celery) -> None:
    add(database)
    assert "--help" in refused(run(database, "update", "s"))
    assert refused(run(database, "update", "s", "--queue", "x", "--no-queue")) == (
        "--queue and --no-queue exclude each other"
    )
    for arguments, named in (
        (("--no-condition", "--condition-sql", "SELECT 1"), "--no-condition"),
        (("--cron", "61 * * * *"), "'61'"),
        (("--task", "tests.not"), "'tests.note'"),
        (("--kwargs", '{"x": 1}', "--task", "tests.note"), "'tests.note'"),
    ):
        assert named in refused(run_with(app, "update", "s", *arguments))
    assert "'t'" in refused(run(database, "update", "t", "--owner", "x"), 1)
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


def test_update_of_a_row_that_somebody_holds(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgbeat.cli.terminal.target._LIMITS", {"lock_timeout": "50ms"})
    add(database)
    with psycopg.connect(database) as other:
        other.execute("UPDATE pgbeat.schedules SET owner = 'me'")
        said = refused(run(database, "update", "s", "--owner", "ops"), 1)
    assert said == "another session is changing that; try again"


# -- how jobs are made -------------------------------------------------------------------------

JOBS = (
    "--lane", "gpu", "--priority", "3", "--max-attempts", "5", "--job-retry-base", "90",
    "--job-retry-cap", "2 hours", "--tag", "a", "--tag", "b", "--resource", "gpu=1",
    "--resource", "gb=0.5", "--unique", "--unique-for", "1 hour", "--requires-approval",
)  # fmt: skip
POLICY: dict[str, Any] = {
    "lane": "gpu",
    "priority": 3,
    "max_attempts": 5,
    "retry_base": 90,
    "retry_cap": 7200,
    "tags": ["a", "b"],
    "resources": {"gpu": 1, "gb": 0.5},
    "unique": True,
    "unique_for": 3600,
    "requires_approval": True,
}


def test_a_policy_for_its_jobs(database: str, sql: Sql) -> None:
    make_lane(sql, "gpu")
    add(database, "s", *JOBS)
    row = read(database, "status", "s")
    assert row["job_policy"] == POLICY
    assert (row["retry_base"], row["retry_cap"]) == (60, 3600)  # the schedule's own
    add(database, "plain")
    assert read(database, "status", "plain")["job_policy"] == {}


def test_update_changes_what_is_given_of_a_policy(database: str, sql: Sql) -> None:
    make_lane(sql, "gpu")
    add(database, "s", *JOBS)
    changed = run(
        database,
        "update",
        "s",
        "--priority",
        "9",
        "--no-unique",
        "--no-unique-for",
        "--no-tag",
        "--tag",
        "c",
    )
    assert "--no-tag" in refused(changed)
    changed = run(
        database, "update", "s", "--priority", "9", "--no-unique", "--no-tag", "--no-job-retry-cap"
    )
    assert [" ".join(text.split()) for text in changed.stdout.splitlines()[1:]] == [
        "job priority 3 → 9",
        "job retry_cap 2 h → none",
        'job tags ["a", "b"] → none',
        "job unique true → none",
    ]
    gone = ("retry_cap", "tags", "unique")
    wanted = {key: value for key, value in POLICY.items() if key not in gone} | {"priority": 9}
    assert read(database, "status", "s")["job_policy"] == wanted
    said = run(database, "update", "s", "--priority", "9", "--no-tag").stdout
    assert said == "Schedule 's' is like that already.\n"
    for key in wanted:
        option = "resource" if key == "resources" else key.replace("_", "-")
        option = f"job-{option}" if option.startswith("retry") else option
        assert run(database, "update", "s", f"--no-{option}").exit_code == 0
    assert read(database, "status", "s")["job_policy"] == {}


def test_a_policy_that_makes_no_sense(database: str, sql: Sql) -> None:
    base = ("--task", "t", "--every", "5")
    said = refused(
        run(database, "add", "s", *base, "--job-retry-base", "60", "--job-retry-cap", "59")
    )
    assert "retry_cap" in said
    assert "'--resource'" in refused(run(database, "add", "s", *base, "--resource", "gpu=much"))
    assert "'--priority'" in refused(run(database, "add", "s", *base, "--priority", "256"))
    add(database, "s", "--job-retry-base", "60")
    assert "retry_cap" in refused(run(database, "update", "s", "--job-retry-cap", "59"))


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
    assert "'x'" in refused(run(database, "add", "s", "--every", "5", "--template", "x"))
    sql(
        "INSERT INTO pgbeat.templates (name, task, kwargs) VALUES "
        """('x', 'tests.add', '{"y": 2}'), ('y', 'tests.note', '{}')"""
    )
    added = run(database, "add", "s", "--every", "5", "--template", "x")
    assert (added.exit_code, added.stderr) == (0, NOT_CHECKED)
    assert read(database, "status", "s")["task"] == "tests.add"
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
    sql("""UPDATE pgbeat.templates SET task = 'tests.ad'""")
    refusal = refused(run_with(app, "add", "t", "--every", "5", "--template", "x"))
    assert "'tests.add'?" in refusal
    assert "schedule 't'" in refused(run(database, "status", "t"), 1)  # nothing was written


# -- lengths of time ---------------------------------------------------------------------------


def test_all_mistakes_are_listed(database: str, app: Celery, sql: Sql) -> None:
    wrong = {
        "--cron": "61 * * * *",
        "--task": "tests.ad",
        "--every": "soon",
        "--priority": "300",
        "--calendar": "nope",
        "--timezone": "Europe/Olso",
        "--job-retry-cap": "1",
        "--condition-sql": "SELEC 1",
        "--max-runs": "0",
    }
    given = [word for pair in wrong.items() for word in pair] + ["--job-retry-base", "60"]
    for command in ("add", "update"):
        if command == "update":
            add(database)
        said = refused(run_with(app, command, "s", *given))
        for named in (
            "'61 * * * *'",
            "'tests.ad'",
            "--every",
            "--priority",
            "'nope'",
            "Olso",
            "retry_cap",
            "SELEC",
            "--max-runs",
        ):
            assert named in said, (command, named, said)
        assert len(said.splitlines()) == 1 + len(wrong), said
    assert sql("SELECT cron, every FROM pgbeat.schedules") == [(None, timedelta(hours=1))]
    several = refused(
        run_with(app, "jobs", "run", "tests.add", "--in", "soon", "--priority", "300")
    )
    assert len(several.splitlines()) == 3, several
