"""`/console/schedules`: what is launched when, and what became of it."""

from typing import get_args

from fastapi import APIRouter, Request, Response

from pgbeat.database import connections
from pgbeat.monitoring import beats
from pgbeat.schedules import model as schedules
from pgbeat.web.api import schedules as api
from pgbeat.web.api.labels import labels_of
from pgbeat.web.api.paging import cursor, read
from pgbeat.web.api.schedule_models import PauseReason
from pgbeat.web.backend import TheBackend
from pgbeat.web.identity import TheAdmin
from pgbeat.web.pages import humanize, summaries
from pgbeat.web.pages.humanize import counted
from pgbeat.web.pages.render import Fields, PageRoute, done, page, path, unknown

router = APIRouter(route_class=PageRoute)

_PAGE = 25
_STATES = get_args(schedules.State)


@router.get("/console/schedules")
def schedules_page(
    request: Request,
    backend: TheBackend,
    caller: TheAdmin,
    search: str = "",
    state: str = "",
    after: str = "",
    label: str = "",
) -> Response:
    """Schedules by name, beneath what happened in the last day."""
    wanted = next((each for each in _STATES if each == state), None)
    search = search.strip()[:200]
    name = read(after, str)[0] if after else None
    label = label.strip()
    labels = labels_of([label]) if label else None
    with backend.transaction() as connection:
        now = connections.now(connection)
        rows = schedules.page(
            connection, namespace=backend.namespace, state=wanted, search=search or None,
            after=name, limit=_PAGE + 1, labels=labels,
        )  # fmt: skip
        shown = rows[:_PAGE]
        sparks = summaries.sparks(connection, [row.id for row in shown])
        is_first = name is None and wanted is None and not search and not label
        summary = summaries.summary(connection, backend.namespace) if is_first else None
        health = api.healths(backend, connection, shown)
        status = beats.status(connection, backend.settings)
    return page(
        request, "schedules.html", caller=caller, backend=backend, here="schedules", now=now,
        rows=[
            (row, humanize.timetable(row, backend.timezone), sparks[row.id], health[row.id])
            for row in shown
        ],
        next=cursor(shown[-1].name) if len(rows) > _PAGE else None, summary=summary,
        most=summaries.MOST, troubles=status.troubles, search=search, state=wanted or "",
        states=_STATES, after=after, label=label,
    )  # fmt: skip


@router.post("/console/schedules")
def change_schedules(
    request: Request, backend: TheBackend, caller: TheAdmin, fields: Fields
) -> Response:
    """Pauses all schedules, with a reason if there is one, or has all go on: `do`."""
    verb = fields.get("do", "")
    if verb == "pause":
        why = PauseReason(reason=fields.get("reason", "").strip()[:2000] or None)
        made = api.pause_schedules(backend, caller, why)
    elif verb == "resume":
        made = api.resume_schedules(backend, caller)
    else:
        raise unknown(fields)
    past = "Paused" if verb == "pause" else "Resumed"
    return done(request, path("schedules"), f"{past} {counted(len(made.schedules), 'schedule')}.")
