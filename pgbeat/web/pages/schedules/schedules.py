"""`/console/schedules`: the list of schedules."""

from typing import get_args

from fastapi import APIRouter, Response

from pgbeat.jobs.preparing.details import parse_labels
from pgbeat.schedules import control, timetable_words
from pgbeat.schedules import model as schedules
from pgbeat.web.api.paging import read_one
from pgbeat.web.api.schedules import schedules as api
from pgbeat.web.pages import summaries
from pgbeat.web.pages.humanize import counted
from pgbeat.web.pages.render import AdminVisit, PageRoute, ViewerVisit, path

router = APIRouter(route_class=PageRoute)

_PAGE = 25
_STATES = get_args(schedules.State)


@router.get("/console/schedules")
def schedules_page(
    visit: ViewerVisit,
    search: str = "",
    state: str = "",
    after: str = "",
    label: str = "",
    sort: str = "",
) -> Response:
    """Shows schedules by name, with filters; with `sort=health` failing and late ones first.

    These are chosen by what is newest, and are one page.
    """
    search, label = search.strip()[:200], label.strip()
    wanted = next((known for known in _STATES if known == state), None)
    labels = parse_labels([label]) if label else None
    more = {"state": wanted, "labels": labels, "after": read_one(after or None, str)}
    is_by_health = sort == "health" and not (wanted or labels)
    with visit.listing() as connection:
        rows, health, following = api.listed(
            visit, connection, search or None, _PAGE, by_health=is_by_health, **more
        )
        sparks = summaries.sparks(connection, rows, visit.redactor.error)
    zone = visit.backend.timezone
    return visit.page(
        "schedules.html",
        "schedules",
        rows=[
            (row, timetable_words.timetable(row, zone), sparks[row.id], health[row.id])
            for row in rows
        ],
        next=following,
        troubles=visit.backend.beats().troubles,
        search=search,
        state=wanted or "",
        states=_STATES,
        after=after,
        label=label,
        is_by_health=is_by_health,
    )


@router.post("/console/schedules")
def change_schedules(visit: AdminVisit) -> Response:
    """Pauses or resumes all schedules, by the form's `do`."""
    verb = visit.verb(("pause", "resume"))
    with visit.unit() as unit:
        if verb == "pause":
            changes = control.pause_all(unit, visit.reason(2000))
        else:
            changes = control.resume_all(unit)
    message = f"{verb.capitalize()}d {counted(len(changes), 'schedule')}."
    return visit.redirect(path("schedules"), message)
