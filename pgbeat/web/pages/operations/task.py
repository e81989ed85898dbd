"""`/console/tasks`: all tasks, and the page of one."""

from fastapi import APIRouter, Response

from pgbeat.config import spelling
from pgbeat.jobs.rows import model as jobs
from pgbeat.jobs.rows.filters import Filter
from pgbeat.monitoring.rollups import tasks
from pgbeat.web.pages.load_chart import SPANS, USUAL, chart_of
from pgbeat.web.pages.operations.errors import error_list
from pgbeat.web.pages.render import Name, PageRoute, ViewerVisit

router = APIRouter(route_class=PageRoute)

#: Jobs and errors on the page.
_NEWEST, _ERRORS = 20, 5
#: Tasks of the list.
_LISTED = 100


@router.get("/console/tasks")
def tasks_page(visit: ViewerVisit, search: str = "") -> Response:
    """Shows how often each task ran in the last 24 hours, tracked or not."""
    search = search.strip()[:200]
    with visit.listing() as connection:
        listed = tasks.listing(connection, visit.namespace, search=search, limit=_LISTED)
    setting = spelling(visit.backend.celery, "track")
    return visit.page("tasks.html", "tasks", found=listed, search=search, setting=setting)


@router.get("/console/tasks/{name:path}")
def task_page(visit: ViewerVisit, name: Name, span: str = USUAL) -> Response:
    """Shows the load of a task, its most frequent errors and its newest jobs."""
    span = span if span in SPANS else USUAL
    with visit.listing() as connection:
        chart = chart_of(visit, connection, "task", name, span)
        newest = jobs.listing(connection, Filter(visit.namespace, task=name), limit=_NEWEST)
        errors = error_list(visit, connection, SPANS[span], task=name, limit=_ERRORS)
    return visit.page(
        "task.html",
        "jobs",
        name=name,
        chart=chart,
        span=span,
        rows=visit.redactor.rows(newest),
        errors=errors,
    )
