"""`/console/errors`: why jobs failed, errors that are alike as one."""

from datetime import timedelta
from typing import NamedTuple

from fastapi import APIRouter, Response
from sqlalchemy import Connection

from pgbeat.monitoring.errors import ErrorGroup, Errors, errors
from pgbeat.web.pages.humanize import counted
from pgbeat.web.pages.load_chart import SPANS, stamp
from pgbeat.web.pages.render import PageRoute, ViewerVisit, Visit, path

router = APIRouter(route_class=PageRoute)

_USUAL = "24h"
#: Errors on the page, and tasks that one names.
_SHOWN, _TASKS = 50, 5
#: The size of a drawing, which is stretched.
_WIDTH, _HEIGHT = 100, 20


class Bar(NamedTuple):
    """A step of a sparkline."""

    x: float
    y: float
    width: float
    height: float
    title: str


class ErrorRow(NamedTuple):
    """An error as it is shown."""

    group: ErrorGroup
    bars: list[Bar]
    tasks: list[str]
    more_tasks: int
    #: The page of failed jobs.
    jobs: str


class ErrorList(NamedTuple):
    """Errors of a span."""

    errors: Errors
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
    found = errors(
        connection, visit.namespace,
        since=since, task=task or None, limit=limit, mask=visit.redactor.error,
    )  # fmt: skip
    return ErrorList(found, [_row(found, group, task) for group in found.groups])


def _row(found: Errors, group: ErrorGroup, task: str) -> ErrorRow:
    only = task or (group.tasks[0] if len(group.tasks) == 1 else "")
    return ErrorRow(
        group, _bars(found, group.counts), group.tasks[:_TASKS], len(group.tasks[_TASKS:]),
        path("jobs", state="failed", task=only, **{"from": stamp(found.since)}),
    )  # fmt: skip


def _bars(found: Errors, counts: list[int]) -> list[Bar]:
    """Returns a bar for each step in which a job failed."""
    each, most = _WIDTH / len(counts), max(counts)
    bars = []
    for number, count in enumerate(counts):
        if count:
            at = found.since + number * found.step
            height = round(max(3.0, count / most * _HEIGHT), 1)
            title = f"{at:%Y-%m-%d %H:%M} UTC: {count:,} failed"
            x, y = round(number * each, 2), round(_HEIGHT - height, 1)
            bars.append(Bar(x, y, round(each * 0.8, 2), height, title))
    return bars


@router.get("/console/errors")
def errors_page(visit: ViewerVisit, task: str = "", span: str = _USUAL) -> Response:
    """Shows why jobs failed, the most frequent errors first."""
    task, span = task.strip()[:200], span if span in SPANS else _USUAL
    with visit.reading() as connection:
        found = error_list(visit, connection, SPANS[span], task=task)
    return visit.page(
        "errors.html", "errors", found=found, task=task, shown=span,
        span="" if span == _USUAL else span,
        spans=[(each, path("errors", task=task, span=each), each == span) for each in SPANS],
    )  # fmt: skip
