"""Links to the runbook lead to sections that it has."""

import re

import pytest

from pgbeat.monitoring import runbook
from tests.support.processes import ROOT

PAGE = (ROOT / "docs/how-to/runbook.md").read_text()
ANCHORS = {
    re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-")
    for heading in re.findall("^##? (.*)$", PAGE, re.M)
}


@pytest.mark.parametrize(
    "section", sorted({runbook.TOP, runbook.AWAY, *runbook.OF_CHECKS.values()})
)
def test_the_runbook_has_the_section(section: str) -> None:
    assert section in ANCHORS


def test_the_doctor_makes_the_checks() -> None:
    sources = (ROOT / "pgbeat/monitoring/checks").glob("*.py")
    made = re.findall(r'Check\(\s*"([a-z ]+)"', "".join(file.read_text() for file in sources))
    assert runbook.OF_CHECKS.keys() <= set(made)


@pytest.mark.parametrize(
    ("check", "result", "is_linked"),
    [
        ("beat", "fail", True),
        ("beat", "warn", True),
        ("beat", "ok", False),
        ("role", "warn", False),
    ],
)
def test_what_a_check_found_is_linked(check: str, result: str, is_linked: bool) -> None:
    assert runbook.of_check(check, result).endswith("#nothing-is-launched") is is_linked


def test_the_page_is_on_the_site_that_the_package_names() -> None:
    urls = ["Changelog, https://x.example/changes", "Documentation, https://x.example/docs/"]
    assert runbook.page_of(urls) == "https://x.example/docs/how-to/runbook/"
    assert (ROOT / runbook.page_of(urls[:1])).is_file()
