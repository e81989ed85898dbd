"""`--json`: commands print the row that they changed, and errors with their codes."""

import json
from collections.abc import Callable
from typing import Any

import click
import pytest
from celery import Celery

from pgbeat.cli import program
from tests.support.command_line import Sql, commands, refused, run, run_with
from tests.support.kombu_connections import Connect, publish


def test_every_command_has_it() -> None:
    without = {
        " ".join(path)
        for path, each in commands(program)
        if not isinstance(each, click.Group)
        and path[0] != "schedules"
        and not any("--json" in parameter.opts for parameter in each.params)
    }
    # A server, a show, a file and another format.
    assert without == {"web", "demo", "export", "metrics"}


Run = Callable[..., Any]


@pytest.fixture
def said(database: str) -> Run:
    """Returns what runs a command, and returns the JSON that it prints."""

    def said(*arguments: str) -> Any:
        result = run(database, *arguments, "--json", input="n\n")
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    return said


def test_schedules(said: Run) -> None:
    added = said("add", "s", "--task", "t", "--every", "1h", "--condition-sql", "SELECT true")
    assert (added["name"], added["every"], added["source"]) == ("s", 3600, "cli")
    assert said("add", "s", "--task", "u", "--every", "2h", "--if-not-exists")["task"] == "t"
    assert said("update", "s", "--every", "2h")["every"] == 7200
    assert said("update", "s", "--every", "2h")["every"] == 7200
    assert said("update", "s", "--every", "3h", "--dry-run")["every"] == 10_800
    assert said("pause", "s")["paused_at"] is not None
    assert said("pause", "s")["paused_at"] is not None
    assert said("resume", "s")["paused_at"] is None
    every = ("--all", "--admin", "--yes")
    paused = said("pause", *every, "--reason", "moving")
    assert [(row["name"], row["paused_reason"]) for row in paused] == [("s", "moving")]
    said("add", "later", "--task", "t", "--every", "1h")
    said("pause", "later", "--reason", "broken")
    assert said("pause", *every) == []
    assert [row["name"] for row in said("resume", *every, "--reason", "moving")] == ["s"]
    assert [row["paused_reason"] for row in said("resume", *every)] == [None]
    assert said("cursor", "set", "s", '{"id": 7}') == {"name": "s", "cursor": {"id": 7}}
    assert said("cursor", "clear", "s", "--dry-run") == {"name": "s", "cursor": None}
    assert said("cursor", "show", "s")["cursor"] == {"id": 7}
    assert said("cursor", "clear", "s")["cursor"] is None
    assert said("disable", "s", "--reason", "why")["disabled_reason"] == "why"
    assert said("enable", "s")["enabled"] is True
    assert said("remove", "s") == {"name": "s", "removed": False}
    assert said("remove", "s", "--dry-run") == {"name": "s", "removed": False}
    assert said("remove", "s", "--yes") == {"name": "s", "removed": True}


def test_calendars_and_templates(said: Run) -> None:
    added = said("calendars", "add", "c", "--weekdays", "sat")
    assert (added["name"], added["schedules"]) == ("c", [])
    changed = said("calendars", "update", "c", "--weekdays", "sun")
    assert changed["definition"] != added["definition"]
    assert said("calendars", "remove", "c", "--yes") == {"name": "c", "removed": True}
    made = said("templates", "set", "t", "--task", "tests.add", "--args", "[1]")
    assert (made["name"], made["args"]) == ("t", [1])
    assert said("templates", "remove", "t") == {"name": "t", "removed": False}
    assert said("templates", "remove", "t", "--yes") == {"name": "t", "removed": True}


def test_webhooks_and_tokens(said: Run) -> None:
    hook = ("--event", "job.failed", "--url", "https://example.com/hook")
    assert said("webhooks", "add", "w", *hook)["name"] == "w"
    assert said("webhooks", "update", "w", "--new-secret")["secret"].startswith("whsec_")
    assert said("webhooks", "disable", "w")["enabled"] is False
    assert said("webhooks", "enable", "w")["enabled"] is True
    assert said("webhooks", "redeliver", "--failed", "w") == {"redelivered": 0}
    assert said("webhooks", "remove", "w", "--yes") == {"name": "w", "removed": True}
    made = said("tokens", "create", "--for", "me")
    assert said("tokens", "revoke", made["id"])["state"] == "revoked"


def test_queues_and_dead_letters(said: Run, connect: Connect, sql: Sql) -> None:
    publish(connect(), "q", "one")
    assert said("queues", "pause", "q")["paused_at"] is not None
    assert said("queues", "resume", "q")["paused_at"] is None
    assert said("queues", "purge", "q") == {"name": "q", "deleted": 0}
    assert said("queues", "purge", "q", "--yes") == {"name": "q", "deleted": 1}
    assert said("dead", "requeue", "--all") == {"requeued": 0, "homeless": 0}
    assert said("dead", "drop", "--all", "--yes") == {"dropped": 0}


def test_jobs_and_groups(app: Celery, sql: Sql) -> None:
    def told(*arguments: str) -> Any:
        result = run_with(app, *arguments, "--json")
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    told("lanes", "set", "l", "--limit", "0")
    ids = [told("jobs", "run", "tests.add", "--lane", "l", "--admin")["id"] for _ in range(2)]
    assert [job["state"] for job in told("jobs", "pause", *ids)] == ["paused"] * 2
    assert [job["state"] for job in told("jobs", "resume", *ids)] == ["pending"] * 2
    assert told("jobs", "update", ids[0], "--priority", "7")[0]["priority"] == 7
    assert told("jobs", "move", ids[1], "front", "--admin")["place"] == 2
    assert [job["state"] for job in told("jobs", "cancel", *ids)] == ["cancelled"] * 2
    [again] = told("jobs", "retry", ids[0])
    assert again["retry_of"] == ids[0]
    assert told("jobs", "delete", ids[1], "--yes") == [{"id": ids[1], "deleted": True}]


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
