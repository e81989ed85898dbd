"""`/console/errors`: why jobs failed, errors that are alike as one."""

from datetime import timedelta
from typing import NamedTuple

from fastapi import APIRouter, Response
from sqlalchemy import Connection

from pgbeat.access.redaction import MASK
from pgbeat.jobs.searching import query
from pgbeat.monitoring.rollups.error_patterns import NO_ERROR
from pgbeat.monitoring.rollups.errors import ErrorPattern, ErrorReport, errors
from pgbeat.web.pages.humanize import counted
from pgbeat.web.pages.load_chart import SPANS, stamp
from pgbeat.web.pages.render import PageRoute, ViewerVisit, Visit, path

router = APIRouter(route_class=PageRoute)

_USUAL = "24h"
#: Errors on the page, and tasks that one names.
_SHOWN, _TASKS = 30, 5
#: The height of a sparkline, which is stretched.
_HEIGHT = 20


class ErrorRow(NamedTuple):
    """An error as it is shown."""

    group: ErrorPattern
    #: A path of SVG; each step is one wide.
    bars: str
    tasks: list[str]
    more_tasks: int
    #: The query for its jobs.
    query: str


class ErrorList(NamedTuple):
    """Errors of a span."""

    errors: ErrorReport
    rows: list[ErrorRow]

    @property
    def jobs(self) -> str:
        """The number of failed jobs in words."""
        least = "at least " if self.errors.is_lower_bound else ""
        return least + counted(self.errors.jobs, "job")


def error_list(
    visit: Visit, connection: Connection, since: timedelta, *, task: str = "", limit: int = _SHOWN
) -> ErrorList:
    """Reads the errors of a span, or those of a task, masked for the caller."""
    listed = errors(
        connection,
        visit.namespace,
        since=since,
        task=task or None,
        limit=limit,
        mask=visit.redactor.error,
    )
    return ErrorList(listed, [_row(listed, group, task) for group in listed.groups])


def _row(listed: ErrorReport, group: ErrorPattern, task: str) -> ErrorRow:
    only = task or (group.tasks[0] if len(group.tasks) == 1 else "")
    is_known = MASK not in group.pattern and group.pattern != NO_ERROR
    glob = f"{group.pattern.rstrip('*')}*" if is_known else ""
    asked = query.of({"state": "failed", "task": only, "error": glob, "since": stamp(listed.since)})
    return ErrorRow(
        group, _bars(group.counts), group.tasks[:_TASKS], len(group.tasks[_TASKS:]), str(asked)
    )


def _bars(counts: list[int]) -> str:
    """Returns the path of a sparkline: a line up for each step in which a job failed."""
    most = max(counts)
    return "".join(
        f"M{number}.5 {_HEIGHT}v-{max(2, round(count / most * _HEIGHT))}"
        for number, count in enumerate(counts)
        if count
    )


@router.get("/console/errors")
def errors_page(visit: ViewerVisit, task: str = "", span: str = _USUAL) -> Response:
    """Shows why jobs failed, the most frequent errors first."""
    task, span = task.strip()[:200], span if span in SPANS else _USUAL
    with visit.listing() as connection:
        listed = error_list(visit, connection, SPANS[span], task=task)
    return visit.page(
        "errors.html",
        "errors",
        found=listed,
        task=task,
        shown=span,
        span="" if span == _USUAL else span,
        spans=[(name, path("errors", task=task, span=name), name == span) for name in SPANS],
    )
