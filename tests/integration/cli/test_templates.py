"""`pgbeat templates`: show and change templates."""

import json

from celery import Celery

from tests.support.command_line import Sql, run, run_with
from tests.support.rows import make_schedule


def did(app: Celery, *arguments: str) -> str:
    """Runs `pgbeat templates …` successfully; returns what it prints."""
    result = run_with(app, "templates", *arguments)
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


def test_set_shown_changed_and_removed(app: Celery, sql: Sql) -> None:
    assert did(app, "list") == (
        "There are no templates; `pgbeat templates set NAME --task TASK` makes one.\n"
    )
    policy = ("--priority", "3", "--max-attempts", "5", "--resource", "gpu=0.5", "--tag", "a")
    given = ("set", "sum", "--task", "jobs.add", "--kwargs", '{"y": 2}', *policy)
    assert did(app, *given, "--dry-run") == "Would make template 'sum', of task 'jobs.add'.\n"
    assert did(app, *given) == "Made template 'sum', of task 'jobs.add'.\n"
    assert did(app, *given) == "Template 'sum' is like that already.\n"
    shown = did(app, "show", "sum")
    for said in ("jobs.add", '{"y": 2}', "priority 3, 5 attempts", "0.5 gpu"):
        assert said in shown
    make_schedule(sql, "nightly", job_policy={"template": "sum"})
    assert did(app, "list").splitlines()[1].split()[0] == "sum"
    assert [t["schedules"] for t in json.loads(did(app, "list", "--json"))] == [["nightly"]]
    # What is not said again is gone.
    assert did(app, "set", "sum", "--task", "jobs.add") == (
        "Changed template 'sum', of task 'jobs.add'.\n"
    )
    assert sql("SELECT job_policy FROM pgbeat.templates") == [({},)]


def test_without_the_app(database: str) -> None:
    made = run(database, "templates", "set", "t", "--task", "no.such")
    assert (made.exit_code, made.stdout) == (0, "Made template 't', of task 'no.such'.\n")
    assert made.stderr == "Note: the task is not checked; with -A APP it would be.\n"
