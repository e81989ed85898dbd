"""`/console/overview`: what runs, what comes next, what is wrong, and why something did not run."""

from typing import Any

from fastapi import APIRouter, Response
from markupsafe import Markup
from sqlalchemy import Connection

from pgbeat.config import spelling
from pgbeat.jobs.rows import model as jobs
from pgbeat.jobs.rows.filters import Filter
from pgbeat.monitoring import replica
from pgbeat.monitoring.rollups import tasks as task_usage
from pgbeat.monitoring.timeline import SPANS, USUAL
from pgbeat.schedules import model as schedules
from pgbeat.views.jobs import progress_of_jobs
from pgbeat.web.api.schedules.timeline import read_timeline
from pgbeat.web.backend import root
from pgbeat.web.pages import summaries
from pgbeat.web.pages.render import PageRoute, ViewerVisit, Visit, path
from pgbeat.web.pages.schedules import timeline_chart

router = APIRouter(route_class=PageRoute)

#: Running jobs and due times that are listed.
_LISTED = 6


@router.get("/console/overview")
def overview_page(visit: ViewerVisit, span: str = USUAL, search: str = "") -> Response:
    """Shows the timeline, and what is newest. All viewers share what was read a moment ago."""
    span, search = span if span in SPANS else USUAL, search.strip()[:200]
    caller = visit.caller
    key = caller.is_admin, caller.is_read_only, root(visit.request), span, search
    body = visit.backend.recent.get(key, lambda: _body(visit, span, search))
    return visit.page("overview.html", "overview", body=body, search=search, span=span)


def _body(visit: Visit, span: str, search: str) -> Markup:
    """Renders what changes. It says nothing about the caller, but for what is masked."""
    with visit.listing() as connection:
        timeline = read_timeline(connection, visit, span, search or None)
        lists = {} if search else _lists(connection, visit)
        behind = replica.behind(connection)
    if lists:
        lists["troubles"] = visit.backend.beats().troubles
    spans = [(name, path("overview", span=name, search=search)) for name in SPANS]
    return visit.fragment(
        "overview_body.html",
        drawn=timeline_chart.drawing(timeline),
        spans=spans,
        search=search,
        most=summaries.MOST,
        wrong=[row for row in timeline.rows if row.health.severity == "fail"],
        lists=lists,
        behind=behind,
    )


def _lists(connection: Connection, visit: Visit) -> dict[str, Any]:
    """Reads what stands above and below the timeline."""
    which = Filter(visit.namespace, state="running")
    running = visit.redactor.rows(jobs.listing(connection, which, limit=_LISTED))
    summary = summaries.summary(connection, visit.namespace, visit.redactor.error)
    return {
        "running": running,
        "progress": progress_of_jobs(connection, running, visit.redactor),
        "summary": summary,
        "next": schedules.next_due(connection, namespace=visit.namespace, limit=_LISTED),
        "untracked": task_usage.untracked(connection, visit.namespace),
        "setting": spelling(visit.backend.celery, "track"),
    }
