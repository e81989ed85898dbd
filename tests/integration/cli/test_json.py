"""`--json`: commands print the row that they changed, and errors with their codes."""

import json
from typing import Any

import click
import psycopg
import pytest

from pgbeat.cli import program
from tests.support.command_line import commands, refused, run


def test_every_command_has_it() -> None:
    without = {
        " ".join(path)
        for path, each in commands(program)
        if not isinstance(each, click.Group)
        and path[0] != "schedules"
        and not any("--json" in parameter.opts for parameter in each.params)
    }
    # Servers, a show, a file and another format.
    assert without == {"all", "dev", "web", "demo", "export", "metrics"}


def test_an_error_of_the_database_has_the_code_that_the_api_gives_it(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def code(dsn: str, *arguments: str) -> str:
        return str(json.loads(run(dsn, *arguments, "--json").stdout)["error"]["code"])

    assert code("postgresql://127.0.0.1:1/nothing", "queues") == "database_unavailable"
    assert code(database, "status", "\udcff") == "invalid"
    monkeypatch.setattr("pgbeat.cli.terminal.target._LIMITS", {"lock_timeout": "50ms"})
    with psycopg.connect(database) as other:
        other.execute("UPDATE kombu_queue SET used_at = now()")
        assert code(database, "queues", "pause", "celery") == "busy"


POLICY = ("--job-retry-base", "60", "--job-retry-cap", "59", "--tag", "")


@pytest.mark.parametrize(
    ("arguments", "status", "code", "problems"),
    [
        (("status", "x"), 1, "not_found", [("schedule", "not_found")]),
        (("add", "s", "--task", "t"), 2, "invalid_schedule", [("", "required")]),
        (
            ("add", "s", "--task", "t", "--every", "5", *POLICY),
            2,
            "invalid_schedule",
            [("job_policy.tags", "malformed"), ("job_policy.retry_cap", "out_of_range")],
        ),
    ],
)
def test_an_error_has_its_code_and_each_problem(
    database: str, arguments: tuple[str, ...], status: int, code: str, problems: list[Any]
) -> None:
    result = run(database, *arguments, "--json")
    error = json.loads(result.stdout)["error"]
    assert set(error) == {"code", "message", "problems"}
    assert (result.exit_code, error["code"]) == (status, code)
    assert all(set(each) == {"field", "code", "message"} for each in error["problems"])
    assert [(each["field"], each["code"]) for each in error["problems"]] == problems
    # Without --json there is only the message, with a line for each of several problems.
    plain = run(database, *arguments)
    assert (plain.stdout, refused(plain, status)) == ("", error["message"])
    messages = [each["message"] for each in error["problems"]]
    lines = error["message"].splitlines()
    assert [text.strip() for text in lines[1:]] == (messages if len(messages) > 1 else [])
