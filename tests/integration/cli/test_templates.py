"""`pgbeat templates`: show and change templates."""

import json
from collections.abc import Callable
from functools import partial

from tests.support.command_line import Sql, refused, run
from tests.support.rows import make_schedule


def test_set_shown_changed_and_removed(printed_with: Callable[..., str], sql: Sql) -> None:
    did = partial(printed_with, "templates")
    assert did("list") == (
        "There are no templates; `pgbeat templates set NAME --task TASK` makes one.\n"
    )
    policy = ("--priority", "3", "--max-attempts", "5", "--resource", "gpu=0.5", "--tag", "a")
    given = ("set", "sum", "--task", "jobs.add", "--kwargs", '{"y": 2}', *policy)
    assert did(*given, "--dry-run") == "Would make template 'sum', of task 'jobs.add'.\n"
    assert did(*given) == "Made template 'sum', of task 'jobs.add'.\n"
    assert did(*given) == "Template 'sum' is like that already.\n"
    shown = did("show", "sum")
    for said in ("jobs.add", '{"y": 2}', "priority 3, 5 attempts", "0.5 gpu"):
        assert said in shown
    make_schedule(sql, "nightly", job_policy={"template": "sum"})
    assert did("list").splitlines()[1].split()[0] == "sum"
    assert [t["schedules"] for t in json.loads(did("list", "--json"))] == [["nightly"]]
    # What is not said again is gone.
    assert did("set", "sum", "--task", "jobs.add") == (
        "Changed template 'sum', of task 'jobs.add'.\n"
    )
    assert sql("SELECT job_policy FROM pgbeat.templates") == [({},)]


def test_without_the_app(database: str) -> None:
    made = run(database, "templates", "set", "t", "--task", "no.such")
    assert (made.exit_code, made.stdout) == (0, "Made template 't', of task 'no.such'.\n")
    assert made.stderr == "Note: the task is not checked; with -A APP it would be.\n"


def test_what_postgres_cant_keep_is_refused_by_its_field(database: str) -> None:
    result = run(database, "templates", "set", "t", "--task", "t", "--kwargs", '{"a": "\\u0000"}')
    assert "kwargs can't be kept as JSON" in refused(result)
