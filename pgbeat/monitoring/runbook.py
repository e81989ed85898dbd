"""Links to the runbook, which says what to do about what the doctor and the console show."""

from collections.abc import Iterable
from functools import cache
from importlib.metadata import PackageNotFoundError, metadata

TOP, LATE, RESTORED = "runbook", "nothing-is-launched", "the-database-was-restored"
AWAY = "the-database-fails-over-or-is-not-there"
#: The sections on what the doctor's checks find.
OF_CHECKS = {
    "server": AWAY,
    "fence": RESTORED,
    "beat": LATE,
    "lag": LATE,
    "transactions": LATE,
    "decisions": "one-schedule-did-not-run",
    "freshness": "one-schedule-did-not-run",
    "jobs": "tasks-fail",
    "tasks": "tasks-fail",
    "workers": "workers-die",
    "queues": "tasks-wait-in-a-queue",
}
_FILE, _PAGE = "docs/how-to/runbook.md", "how-to/runbook/"


def link(section: str) -> str:
    """Returns the address of a section, or where it is in the repository."""
    return f"{_page()}#{section}"


def of_check(check: str, result: str) -> str:
    """Returns the link for a check of the doctor's that found something; "" without one."""
    section = OF_CHECKS.get(check) if result in ("warn", "fail") else None
    return link(section) if section else ""


@cache
def _page() -> str:
    try:
        return page_of(metadata("pgbeat").get_all("Project-URL") or ())
    except PackageNotFoundError:  # it runs from a checkout
        return _FILE


def page_of(urls: Iterable[str]) -> str:
    """Returns the address of the page on the site that `[project.urls]` names, or its file."""
    for label, _, url in (line.partition(", ") for line in urls):
        if label == "Documentation":
            return f"{url.rstrip('/')}/{_PAGE}"
    return _FILE


class Trouble(str):
    """A sentence on what is wrong, and the section about it."""

    section: str

    def __new__(cls, sentence: str, section: str) -> "Trouble":
        """Returns the sentence."""
        new = super().__new__(cls, sentence)
        new.section = section
        return new
