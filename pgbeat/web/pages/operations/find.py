"""`/console/find`: finds pages, things and actions by a part of their name."""

from typing import NamedTuple

from fastapi import APIRouter, Response

from pgbeat.monitoring import finder
from pgbeat.monitoring.finder import Hit
from pgbeat.storable import is_storable
from pgbeat.web.pages.render import PageRoute, TheVisit, Visit, path, sections

router = APIRouter(route_class=PageRoute)

_LONGEST = 200
#: What is done in lists of jobs.
_LISTS = {
    "Retry failed jobs": "state:failed",
    "Cancel running jobs": "state:running",
    "Approve jobs": "state:paused",
}


class PaletteLine(NamedTuple):
    """A line of the palette."""

    kind: str
    name: str
    detail: str
    href: str


@router.get("/console/find")
def find_page(visit: TheVisit, text: str = "") -> Response:
    """Shows what is found; without a text, all pages and actions."""
    text = text.strip()[:_LONGEST]
    choices = [line for line in _pages(visit) if text.lower() in line.name.lower()]
    if text and is_storable(text):
        with visit.listing() as connection:
            hits = finder.find(
                connection, visit.namespace, visit.caller, text, tasks=visit.backend.celery.tasks
            )
        choices = [_choice(hit) for hit in hits] + choices
        searched = path("jobs", q=text)
        choices.append(PaletteLine("search", f"Jobs that match {text}", "", searched))
    return visit.page("find.html", "find", text=text, choices=choices)


def _choice(hit: Hit) -> PaletteLine:
    if hit.kind == "queue":
        return PaletteLine(hit.kind, hit.name, "", path("jobs", q=f"queue:{hit.name}"))
    return PaletteLine(hit.kind, hit.name, hit.detail, path(f"{hit.kind}s", hit.name))


def _pages(visit: Visit) -> list[PaletteLine]:
    """Returns the pages that the caller may open, and what can be done there."""
    lines = [
        PaletteLine("page", label, "", path(key))
        for section in sections(visit.caller)
        for key, label in section.tabs
    ]
    if visit.caller.is_read_only:
        return lines
    nouns = ["job", "group"]
    if visit.caller.is_admin:
        nouns += ["schedule", "calendar", "template", "lane", "webhook"]
    lines += [
        PaletteLine(
            "action", "Run a job" if noun == "job" else f"Create {noun}", "", path("new", noun)
        )
        for noun in nouns
    ]
    return lines + [
        PaletteLine("action", name, query, path("jobs", q=query)) for name, query in _LISTS.items()
    ]
