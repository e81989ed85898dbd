"""`/console/jobs`: the list of jobs."""

from datetime import datetime
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query, Response
from pydantic import AfterValidator

from pgbeat.database.tables import JOB_STATES
from pgbeat.errors import NotFound
from pgbeat.jobs import executions, permissions
from pgbeat.jobs import model as jobs
from pgbeat.jobs.bulk import STATES
from pgbeat.web.api.job_models import progress_of
from pgbeat.web.api.jobs import schedule_id
from pgbeat.web.api.labels import labels_of
from pgbeat.web.api.paging import moment, read, split
from pgbeat.web.pages import load_chart
from pgbeat.web.pages.bulk import VERBS
from pgbeat.web.pages.groups import parse_id
from pgbeat.web.pages.render import PageRoute, TheVisit, path

router = APIRouter(route_class=PageRoute)

_PAGE = 50


def _cut(text: str) -> str:
    return text.strip()[:300]


#: A filter that a person wrote.
Text = Annotated[str, AfterValidator(_cut)]


@router.get("/console/jobs")
def jobs_page(
    visit: TheVisit,
    state: str = "",
    late: str = "",
    task: Text = "",
    schedule: Text = "",
    lane: Text = "",
    by: Text = "",
    template: Text = "",
    group: Text = "",
    label: Text = "",
    error: Text = "",
    since: Annotated[str, Query(alias="from")] = "",
    until: str = "",
    span: str = load_chart.USUAL,
    after: str = "",
) -> Response:
    """Shows the jobs that the caller may see, the newest first, with filters."""
    asked = {
        "state": state if state in JOB_STATES else "",
        "late": "yes" if late else "",
        "task": task,
        "schedule": schedule,
        "lane": lane,
        "by": by,
        "template": template,
        "group": group,
        "label": label,
        "error": error,
        "from": _time(since),
        "until": _time(until),
    }
    shown = span if span in load_chart.SPANS and span != load_chart.USUAL else ""
    before = read(after or None, moment, UUID)
    which = permissions.visible(visit.caller, _filter(visit.namespace, asked))
    remark = ""
    with visit.reading() as connection:
        if schedule:
            try:
                found = schedule_id(connection, *visit.who, schedule)
            except NotFound as error:
                found, remark = -1, str(error)
            which = which._replace(schedule_id=found)
        rows = jobs.listing(connection, which, before=before, limit=_PAGE + 1)
        page, following = split(rows, _PAGE, "created_at", "id")
        page = visit.redactor.rows(page)
        running = {row.id: row.task for row in page if row.state == "running"}
        runs = executions.newest(connection, list(running))
        chart = None
        if visit.caller.sees_all and not after:
            chart = load_chart.chart(
                connection, visit.namespace, span,
                task=task or None, lane=None if task else lane or None,
                here=lambda each: path("jobs", **asked | {"span": each}),
                filters={key: asked[key] for key in ("state", "schedule", "by", "label")}
                | {"task": task, "lane": lane, "span": shown},
            )  # fmt: skip
    return visit.page(
        "jobs.html",
        "jobs",
        rows=page,
        progress={
            job_id: progress_of(visit.redactor.row(run, running[job_id]))
            for job_id, run in runs.items()
        },
        asked=asked,
        span=shown,
        chart=chart,
        times=(_moment(asked["from"]), _moment(asked["until"])),
        states=JOB_STATES,
        verbs={verb: VERBS[verb] for verb, can in STATES.items() if state in ("", *can)},
        after=after,
        remark=remark,
        next=following,
    )


def _time(written: str) -> str:
    """Returns a time as it was written, or nothing if it is none."""
    return written if _moment(written) is not None else ""


def _moment(written: str) -> datetime | None:
    try:
        return moment(written)
    except ValueError:
        return None


def _filter(namespace: str, asked: dict[str, str]) -> jobs.Filter:
    return jobs.Filter(
        namespace,
        state=asked["state"] or None,
        late=True if asked["late"] else None,
        task=asked["task"] or None,
        error=asked["error"] or None,
        lane=asked["lane"] or None,
        template=asked["template"] or None,
        created_by=asked["by"] or None,
        group_id=str(parse_id(asked["group"])) if asked["group"] else None,
        labels=labels_of([asked["label"]]) if asked["label"] else None,
        created_from=_moment(asked["from"]),
        created_until=_moment(asked["until"]),
    )
