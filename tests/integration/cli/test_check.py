"""`pgbeat check`: says what would happen to a schedule, and writes nothing."""

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from celery import Celery
from click.testing import Result

from pgbeat import Context, JobRequest, Launcher, launcher
from tests.support.command_line import Sql, refused, run, run_with
from tests.support.rows import make_calendar, make_job, make_lane, make_schedule, make_template

#: Adds a schedule that is due in an hour.
add = partial(make_schedule, due="1 hour", timezone="UTC")


def state(sql: Sql) -> Any:
    """Returns all rows that a launch or a tick would change."""
    return [
        sql(f"SELECT xmin, t.* FROM {table} t")
        for table in ("pgbeat.schedules", "pgbeat.ticks", "pgbeat.jobs", "kombu_message")
    ]


@pytest.fixture
def checked(app: Celery, sql: Sql) -> Callable[..., Result]:
    """Returns what runs `check s` with the app, and checks that nothing is written."""

    def check(*arguments: str) -> Result:
        before = state(sql)
        shown = run_with(app, "check", "s", *arguments)
        assert state(sql) == before
        return shown

    return check


Check = Callable[..., Result]


def test_launched(checked: Check, sql: Sql) -> None:
    add(sql, args="[1]", kwargs='{"y": 2}', queue="slow", options='{"priority": 3}')
    shown = checked()
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert shown.stdout == (
        'would be launched: tests.add, args [1], kwargs {"y": 2}, options {"priority": 3}, '
        "queue slow\n"
    )
    request: dict[str, Any] = {"task": "tests.add", "args": [1], "kwargs": {"y": 2}}
    request |= {"queue": "slow", "run_key": None, "options": {"priority": 3}}
    job: dict[str, Any] = {"priority": 0, "max_attempts": 1, "awaits_approval": False}
    found: dict[str, Any] = json.loads(checked("--json").stdout)
    assert found.items() >= {"schedule": "s", "outcome": "launched", "objections": []}.items()
    assert found["launcher"] == {"name": "GenericLauncher", "outcome": "launched", "why": None}
    assert (found["request"], found["requests"]) == (request, [request])
    assert found["job"] == job | dict.fromkeys(("lane", "unique_key", "waits_for"))


def test_a_condition_that_says_no(checked: Check, sql: Sql) -> None:
    add(sql, condition_sql="SELECT false")
    shown = checked()
    assert (shown.exit_code, shown.stdout) == (3, "would be skipped: condition_sql is false\n")
    found = json.loads(checked("--json").stdout)
    assert (found["outcome"], found["request"]) == ("skipped", None)


def test_a_condition_that_fails(app: Celery, checked: Check, sql: Sql) -> None:
    add(sql, condition_sql="SELECT 1/0")
    shown = checked()
    assert (shown.exit_code, shown.stdout) == (1, "would fail: DivisionByZero: division by zero\n")
    app.conf.pgbeat_condition_timeout = 0.1
    sql("UPDATE pgbeat.schedules SET condition_sql = 'SELECT true FROM pg_sleep(60)'")
    shown = checked()
    assert (shown.exit_code, shown.stdout) == (
        1,
        "would fail: the condition took longer than 0.1 s (pgbeat_condition_timeout)\n",
    )


def test_a_task_that_is_not_there(checked: Check, database: str, sql: Sql) -> None:
    add(sql, task="tests.ad")
    shown = checked()
    assert shown.exit_code == 1
    assert shown.stdout.startswith("would fail: task 'tests.ad' is not registered; did you mean")
    unknowing = run(database, "check", "s")
    assert (unknowing.exit_code, unknowing.stdout, unknowing.stderr) == (
        0,
        "would be launched: tests.ad\n",
        "Note: whether there is such a task is not checked; with -A APP it would be.\n",
    )


def test_options_that_are_none(checked: Check, sql: Sql) -> None:
    add(sql, options='{"prio": 1}')
    assert checked().stdout.startswith("would fail: options has 'prio', which is no publish option")


@launcher("counting")
class Counting(Launcher):
    """Launches with arguments that are not JSON."""

    task = "tests.add"

    def check_conditions(self, ctx: Context) -> bool:
        ctx.cursor = (ctx.cursor or 0) + 1
        return True

    def prepare_job_data(self, ctx: Context) -> JobRequest:
        return JobRequest(args=[{1, 2}], kwargs={"y": ctx.cursor}, options={"queue": "fast"})


def test_a_launcher_in_python(checked: Check, database: str, sql: Sql) -> None:
    add(sql, launcher="counting", cursor="41", queue="slow")
    assert checked().stdout == (
        'would be launched: tests.add, args [{1, 2}], kwargs {"y": 42}, queue fast\n'
    )
    assert json.loads(checked("--json").stdout)["request"]["args"] == "[{1, 2}]"
    assert refused(run(database, "check", "s")) == (
        "launcher counting of schedule 's' is in the app's code; give it with -A APP"
    )
    sql("UPDATE pgbeat.schedules SET launcher = 'counted'")
    shown = checked()
    assert shown.exit_code == 1
    assert shown.stdout.startswith("would fail: launcher 'counted' is not registered; did you mean")


def test_what_stays_in_code(app: Celery, checked: Check, database: str, sql: Sql) -> None:
    app.conf.beat_schedule = {
        "s": {"task": "tests.add", "schedule": 60, "kwargs": {"x": 5, "y": frozenset({1})}}
    }
    add(sql, source="code", args=None)
    assert checked().stdout == (
        "would be launched: tests.add, kwargs {'x': 5, 'y': frozenset({1})}\n"
    )
    assert refused(run(database, "check", "s")) == (
        "schedule 's' has its arguments in the app's code; give it with -A APP"
    )


def test_a_calendar_that_says_no(checked: Check, sql: Sql) -> None:
    make_calendar(sql, "always", dates=["2000-01-01/2999-12-31"])
    add(sql, calendar="always", condition_sql="SELECT false")
    shown = checked()
    assert shown.exit_code == 3
    first, *facts = [" ".join(text.split()) for text in shown.stdout.splitlines()]
    assert first.startswith("would be skipped: calendar 'always': ")
    assert facts[1] == "condition says no: condition_sql is false"
    found = json.loads(checked("--json").stdout)
    assert [objection["policy"] for objection in found["objections"]] == ["calendar"]
    assert found["launcher"] == {
        "name": "GenericLauncher",
        "outcome": "skipped",
        "why": "condition_sql is false",
    }


@pytest.mark.parametrize(
    ("column", "value", "policy", "reason"),
    [
        ("starts_at", "2999-01-01Z", "window", "its window begins at 2999-01-01 00:00:00+0000"),
        ("ends_at", "2020-01-01Z", "window", "its window ended at 2020-01-01 00:00:00+0000"),
        ("max_runs", "3", "max_runs", "launched 3 times (max_runs)"),
        ("min_interval", "1 day", "min_interval", "launched 1 h ago, and min_interval is 1 d"),
    ],
)
def test_a_policy_that_says_no(
    checked: Check, sql: Sql, column: str, value: str, policy: str, reason: str
) -> None:
    add(sql, run_count=3, **{column: value})
    sql("UPDATE pgbeat.schedules SET last_success = now() - interval '1 hour'")
    shown = checked()
    assert shown.exit_code == 3
    # A moment passes between.
    said = shown.stdout.splitlines()[0].replace("1 h 1 s", "1 h")
    assert said == f"would be skipped: {reason}"
    assert shown.stdout.splitlines()[-1].split() == ["condition", "would", "launch"]
    [objection] = json.loads(checked("--json").stdout)["objections"]
    assert objection["policy"] == policy


@pytest.mark.parametrize(
    ("overlap", "outcome", "status"),
    [
        ("allow", "be launched", 0),
        ("skip", "be skipped", 3),
        ("queue_one", "wait", 3),
        ("cancel_previous", "be launched", 0),
    ],
)
def test_an_unfinished_job(
    checked: Check, app: Celery, sql: Sql, overlap: str, outcome: str, status: int
) -> None:
    add(sql, overlap=overlap)
    assert run_with(app, "trigger", "s").exit_code == 0
    [(job,)] = sql("SELECT id FROM pgbeat.jobs")
    shown = checked()
    assert shown.exit_code == status
    assert shown.stdout.startswith(f"would {outcome}: ")
    assert (f"the job before it, {job}, is still pending" in shown.stdout) == (status == 3)


def reason(checked: Check, policy: str | None = None) -> str:
    """Returns why it would not be launched, and checks which policy says so."""
    shown = checked()
    found = json.loads(checked("--json").stdout)
    assert shown.exit_code == {"skipped": 3, "failed": 1}[found["outcome"]]
    why = found["reason"] or found["error"]
    assert shown.stdout.splitlines()[0].endswith(f": {why}")
    assert [o["policy"] for o in found["objections"]] == ([policy] if policy else [])
    return str(why)


def test_what_its_jobs_would_meet(checked: Check, sql: Sql) -> None:
    """The reasons are those that beat gives."""
    add(sql, job_policy='{"lane": "gpu"}')
    assert reason(checked) == "there is no lane 'gpu'; `pgbeat lanes list` shows all lanes"
    make_lane(sql, "gpu", 1, paused_at="now")
    assert reason(checked, "lane") == "lane 'gpu' is paused"
    sql("UPDATE pgbeat.lanes SET paused_at = NULL")
    assert checked().stdout == "would be launched: tests.add\n"
    make_job(sql, lane="gpu", dispatched_at="now")
    assert checked().stdout == (
        "would be launched: tests.add\n"
        "Its job would wait for a slot of lane 'gpu', which is full.\n"
    )
    make_job(sql, lane="gpu")
    make_job(sql, lane="gpu")
    assert json.loads(checked("--json").stdout)["job"] == {
        "lane": "gpu",
        "priority": 0,
        "max_attempts": 1,
        "unique_key": None,
        "awaits_approval": False,
        "waits_for": "a slot of lane 'gpu', behind 2 that wait already",
    }
    sql("""UPDATE pgbeat.schedules SET job_policy = '{"requires_approval": true, "priority": 3}'""")
    assert checked().stdout == (
        'would be launched: tests.add, options {"priority": 3}\n'
        "Its job would wait for a person's approval.\n"
    )
    other = make_job(sql, "running", task="tests.add", unique_key="k")
    sql("""UPDATE pgbeat.schedules SET job_policy = '{"unique_key": "k"}'""")
    assert reason(checked, "unique") == (f"job {other}, which has the same unique key, is running")
    sql("""UPDATE pgbeat.schedules SET job_policy = '{"priority": "high"}'""")
    assert reason(checked) == "job_policy: priority: 'high' is not a whole number"


def test_a_template_adds_to_what_would_be_launched(checked: Check, sql: Sql) -> None:
    add(sql, args="[7]", job_policy='{"template": "x"}')
    assert reason(checked) == (
        "there is no template 'x'; `pgbeat templates list` shows all templates"
    )
    policy = {"max_attempts": 9}
    make_template(sql, "x", args="[1]", kwargs={"y": 2}, queue="slow", job_policy=policy)
    assert checked().stdout == (
        'would be launched: tests.add, args [7], kwargs {"y": 2}, queue slow\n'
    )
    assert json.loads(checked("--json").stdout)["job"]["max_attempts"] == 9


def test_out_of_service(checked: Check, sql: Sql) -> None:
    add(sql, enabled=False, disabled_reason="too noisy")
    shown = checked()
    assert (shown.exit_code, shown.stderr) == (
        0,
        "Note: it is disabled (too noisy), and not due.\n",
    )
    sql("UPDATE pgbeat.schedules SET enabled = true, paused_at = now()")
    assert checked().stderr == "Note: it is paused, and not due before it is resumed.\n"
