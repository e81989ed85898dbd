"""Commands that the documentation and the console show are there, with their options."""

import re
from pathlib import Path

import pytest

from pgbeat.cli import program
from tests.support.command_line import commands
from tests.support.processes import ROOT

PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "pgbeat/web/pages/templates").glob("*.html")),
]
#: A command line: to the end of its code, or of its line.
COMMAND = re.compile(r"pgbeat((?: -A \w+| --url \S+)*)((?: [a-z-]+)+)([^\n`<|]*)")


OPTIONS = {
    path: {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
    for path, command in commands(program)
}
ANY = set().union(*OPTIONS.values())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_options_exist(page: Path) -> None:
    text = page.read_text().replace("\\\n", " ")
    unknown = []
    for match in COMMAND.finditer(text):
        path: tuple[str, ...] = ()
        for word in match[2].split():
            if (*path, word) not in OPTIONS:
                break
            path = (*path, word)
        known = set().union(*(OPTIONS[each] for each in OPTIONS if each[: len(path)] == path))
        given = re.findall(r"(?<![\w-])--[a-z][a-z-]+", match[2] + match[3])
        unknown += [(" ".join(path), option) for option in given if option not in known]
    if page.suffix == ".html":  # the console speaks of no other tool's options
        shown = re.findall(r"<code>(--[a-z][a-z-]+)", text)
        unknown += [("", option) for option in shown if option not in ANY]
    assert not unknown
