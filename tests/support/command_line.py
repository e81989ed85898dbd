"""Runs `pgbeat` in this process, by itself or as a command of Celery's."""

import json
from collections.abc import Iterator
from inspect import signature
from typing import Any

import click
import pytest
from celery import Celery
from celery.bin.base import CLIContext
from click.testing import CliRunner, Result

from pgbeat.cli import pgbeat, program
from tests.support.rows import Sql as Sql


def run(database: str | None, *arguments: str, **options: Any) -> Result:
    """Runs `pgbeat --url DATABASE …`; what a user would see as a traceback is raised."""
    given = ["--url", database] if database else []
    return _checked(_runner().invoke(program, [*given, *arguments], **options))


def run_on_terminal(database: str, columns: int, *arguments: str) -> list[str]:
    """Runs `pgbeat` as on a terminal that many columns wide; returns its lines without colours."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda stream: True)
        shown = run(database, *arguments, env={"COLUMNS": str(columns), "TERM": "xterm"})
    assert shown.exit_code == 0, shown.output
    return click.unstyle(shown.stdout).splitlines()


def run_with(app: Celery, *arguments: str, answer: str | None = None) -> Result:
    """Runs `celery -A app pgbeat …`, and gives an answer to what it asks."""
    context = CLIContext(app=app, no_color=True, workdir=None)
    return _checked(_runner().invoke(pgbeat, list(arguments), obj=context, input=answer))


def read(database: str, *arguments: str) -> Any:
    """Returns what `pgbeat … --json` prints."""
    result = run(database, *arguments, "--json")
    assert result.exit_code in (0, 1, 3), result.output
    return json.loads(result.stdout)


def cells(text: str) -> list[str]:
    """Returns the cells of a line of a table."""
    return [cell.strip() for cell in text.split("  ") if cell.strip()]


def refused(result: Result, exit_code: int = 2) -> str:
    """Returns the error that a command printed, a line for each problem; it is the last output."""
    assert result.exit_code == exit_code, result.output
    if result.stdout:  # with --json, the same for programs
        assert set(json.loads(result.stdout)) == {"error"}
    _, mark, said = f"\n{result.stderr}".rpartition("\nError: ")
    assert mark, result.stderr
    return said.removesuffix("\n")


def commands(command: click.Command, *path: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yields a command and all commands below it, with their paths."""
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from commands(below, *path, name)


def _runner() -> CliRunner:
    """Returns a runner that tells stderr from stdout, as click's do by themselves since 8.2."""
    mixes = "mix_stderr" in signature(CliRunner).parameters
    options: dict[str, Any] = {"mix_stderr": False} if mixes else {}
    return CliRunner(**options)


def _checked(result: Result) -> Result:
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result
