"""What others have written gives nobody's terminal an order."""

import re

import pytest

from tests.support.command_line import Sql, run
from tests.support.hostile_rows import write

#: Sets the window's title, clears the screen, and the same with one character for both.
EVIL = "a\x1b]0;title\x07\x1b[2Jb\x9b2Jc\x7f"
_ORDERS = re.compile(r"\x1b(?!\[[0-9;]*m)|[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f]")


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("is_terminal", [False, True])
def test_no_command_prints_control_characters(
    database: str, sql: Sql, monkeypatch: pytest.MonkeyPatch, is_terminal: bool
) -> None:
    job = write(sql, EVIL, "s")["job"]
    if is_terminal:
        monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda stream: True)
    for command in (
        "list",
        "status s",
        "explain s",
        "history s",
        "jobs list --admin",
        f"jobs show {job} --admin",
        f"jobs logs {job} --admin",
        f"jobs stack {job} --admin",
        f"jobs tree {job} --admin",
        "jobs stats",
        "errors --admin",
        "tasks",
        "templates list",
        "templates show t",
        "lanes show lane",
        "audit",
        "jobs show nowhere --admin",
        f"jobs cancel {job} {job}",
    ):
        for more in ([], ["--json"]):
            shown = run(database, *command.split(), *more, env={"TERM": "xterm"})
            found = _ORDERS.search(shown.output)
            assert found is None, (command, more, shown.output[max(0, found.start() - 80) :][:200])
