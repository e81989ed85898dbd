"""`--json`: commands print the row that they changed, and errors with their codes."""

import json
from pathlib import Path
from typing import Any

import click
import psycopg
import pytest
from celery import Celery

from pgbeat.cli import program
from tests.support.command_line import Sql, commands, refused, run, run_with
from tests.support.databases import broker_url
from tests.support.rows import insert, make_schedule


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


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("-A nowhere list", "no module 'nowhere'"),
        ("list", "which database?"),
        ("history", "Missing argument 'NAME'"),
        ("history x --limit x", "not a whole number"),
        ("disable", "which schedule?"),
        ("forecast --hours nan", "not a number"),
        ("health web --port 70000", "not in the range"),
        ("prune --days nan", "not a number"),
        ("list --frob", "no option --frob"),
        ("list -A x", "goes before the command"),
        ("lst", "did you mean 'list'?"),
        ("migrate --sql", "exclude each other"),
    ],
)
def test_an_error_of_the_usage_is_json_too(arguments: str, said: str) -> None:
    result = run(None, *arguments.split(), "--json")
    error = json.loads(result.stdout)["error"]
    assert (result.exit_code, error["code"], said in error["message"]) == (2, "invalid", True)
    assert error["message"] == refused(result)


def test_the_schema_of_files_is_json_itself() -> None:
    assert json.loads(run(None, "sync", "--schema", "--json").stdout)["title"]


def test_a_dry_run_of_a_shutdown(app: Celery, sql: Sql) -> None:
    insert(sql, "workers", {"name": "w@host", "pid": 7, "alive_until": "infinity"})
    shown = run_with(app, "workers", "shutdown", "w@host", "--dry-run", "--json")
    assert json.loads(shown.stdout) == {"worker": "w@host", "reply": None}


def test_what_the_app_prints_is_not_among_the_json(
    database: str, sql: Sql, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_schedule(sql, task="celery.backend_cleanup", launcher="speaks")
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "talking.py").write_text(
        "import celery, pgbeat\n"
        f"app = celery.Celery('talking', broker={broker_url(database)!r})\n"
        "print('loaded')\n"
        "@pgbeat.launcher('speaks')\n"
        "class Speaks(pgbeat.Launcher):\n"
        "    def check_conditions(self, ctx):\n"
        "        print('evaluated')\n"
        "        return True\n"
    )
    app = ("-A", "talking", "check", "s")
    result = run(database, *app, "--json")
    assert json.loads(result.stdout)["outcome"] == "launched"
    assert "loaded\nevaluated\n" in result.stderr
    assert run(database, *app).stdout.startswith("evaluated\n")
