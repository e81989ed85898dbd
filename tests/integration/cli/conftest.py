"""Fixtures of the tests of the command line: their app, and commands that succeed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from tests.support.command_line import run, run_with
from tests.support.jobs import app as app

Printed = Callable[..., str]
Write = Callable[..., str]


@pytest.fixture
def printed(database: str) -> Printed:
    """Returns what runs `pgbeat …` without an error or a note, and returns what it prints."""

    def call(*arguments: str, **options: Any) -> str:
        result = run(database, *arguments, **options)
        assert (result.exit_code, result.stderr) == (0, ""), result.output
        return result.stdout

    return call


@pytest.fixture
def printed_with(app: Celery) -> Printed:
    """Returns the same for `celery -A APP pgbeat …`."""

    def call(*arguments: str) -> str:
        result = run_with(app, *arguments)
        assert (result.exit_code, result.stderr) == (0, ""), result.output
        return result.stdout

    return call


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Returns what writes the file, and returns its name in the current folder."""
    monkeypatch.chdir(tmp_path)

    def write(text: str, name: str = "schedules.yaml") -> str:
        Path(name).write_text(text)
        return name

    return write
