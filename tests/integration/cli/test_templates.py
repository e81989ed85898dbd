"""`pgbeat templates`: show and change templates."""

import json

import pytest
from celery import Celery

from tests.support.command_line import Sql, read, refused, run, run_with
from tests.support.rows import make_lane, make_schedule


def did(app: Celery, *arguments: str) -> str:
    """Runs `pgbeat templates …` successfully; returns what it prints."""
    result = run_with(app, "templates", *arguments)
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


def test_set_shown_changed_and_removed(app: Celery, sql: Sql, database: str) -> None:
    make_lane(sql, "gpu")
    assert did(app, "list") == (
        "There are no templates; `pgbeat templates set NAME --task TASK` makes one.\n"
    )
    given = (
        "set", "sum", "--task", "jobs.add", "--args", "[1]", "--kwargs", '{"y": 2}', "--queue",
        "q", "--options", '{"expires": 60}', "--description", "Adds.", "--lane", "gpu",
        "--priority", "3", "--max-attempts", "5", "--retry-base", "10s", "--retry-cap",
        "2 minutes", "--tag", "a", "--tag", "b", "--resource", "gpu=0.5", "--resource", "disk",
        "--unique", "--unique-for", "1h", "--requires-approval",
    )  # fmt: skip
    assert did(app, *given, "--dry-run") == "Would make template 'sum', of task 'jobs.add'.\n"
    assert sql("SELECT count(*) FROM pgbeat.templates") == [(0,)]
    assert did(app, *given) == "Made template 'sum', of task 'jobs.add'.\n"
    assert did(app, *given) == "Template 'sum' is like that already.\n"
    row = read(database, "templates", "show", "sum")
    assert (row["task"], row["args"], row["kwargs"]) == ("jobs.add", [1], {"y": 2})
    assert (row["queue"], row["options"], row["schedules"]) == ("q", {"expires": 60}, [])
    assert row["job_policy"] == {
        "lane": "gpu",
        "priority": 3,
        "max_attempts": 5,
        "retry_base": 10,
        "retry_cap": 120,
        "tags": ["a", "b"],
        "resources": {"gpu": 0.5, "disk": 1},
        "unique": True,
        "unique_for": 3600,
        "requires_approval": True,
    }
    shown = did(app, "show", "sum")
    for said in ("jobs.add", '{"y": 2}', "Adds.", "lane gpu, priority 3, 5 attempts", "0.5 gpu"):
        assert said in shown
    make_schedule(sql, "nightly", job_policy={"template": "sum"})
    assert did(app, "list").splitlines()[1].split()[0] == "sum"
    assert [t["schedules"] for t in json.loads(did(app, "list", "--json"))] == [["nightly"]]
    assert "'nightly'" in refused(run_with(app, "templates", "remove", "sum", "--yes"))
    sql("DELETE FROM pgbeat.schedules")
    # What is not said again is gone.
    assert did(app, "set", "sum", "--task", "jobs.add") == (
        "Changed template 'sum', of task 'jobs.add'.\n"
    )
    assert read(database, "templates", "show", "sum")["job_policy"] == {}
    assert did(app, "remove", "sum", "--dry-run") == "Would remove template 'sum'.\n"
    assert did(app, "remove", "sum", "--yes") == "Removed template 'sum'.\n"
    assert "'sum'" in refused(run_with(app, "templates", "show", "sum"), 1)


def test_asked_before_it_is_removed(app: Celery, sql: Sql, database: str) -> None:
    did(app, "set", "t", "--task", "jobs.add")
    no = run(database, "templates", "remove", "t", input="n\n")
    assert no.stdout.endswith("Nothing is removed.\n")
    yes = run(database, "templates", "remove", "t", input="y\n")
    assert yes.stdout.endswith("Removed template 't'.\n")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--task", "jobs.ad"), "'jobs.ad'"),
        (("--task", "jobs.add", "--lane", "x"), "'x'"),
        (("--task", "jobs.add", "--resource", "gpu=x"), "'gpu=x'"),
        (("--task", "jobs.add", "--resource", "gpu=-1"), "resources"),
        (("--task", "jobs.add", "--args", "{}"), "'--args'"),
        (("--task", "jobs.add", "--options", '{"x": 1}'), "'x'"),
        (("--task", "jobs.add", "--retry-base", "2h", "--retry-cap", "1h"), "retry_cap"),
        ((), "'--task'"),
    ],
)
def test_refused(app: Celery, sql: Sql, arguments: tuple[str, ...], named: str) -> None:
    assert named in refused(run_with(app, "templates", "set", "t", *arguments))
    assert sql("SELECT count(*) FROM pgbeat.templates") == [(0,)]


def test_without_the_app(database: str) -> None:
    made = run(database, "templates", "set", "t", "--task", "no.such")
    assert (made.exit_code, made.stdout) == (0, "Made template 't', of task 'no.such'.\n")
    assert made.stderr == "Note: the task is not checked; with -A APP it would be.\n"


def test_an_unknown_command_has_a_nearest(database: str) -> None:
    assert "'list'" in refused(run(database, "templates", "lis"))
