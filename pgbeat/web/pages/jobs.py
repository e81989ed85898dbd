"""`/console/jobs`: every run, the newest first."""

from uuid import UUID

from fastapi import APIRouter, Request, Response

from pgbeat.database import connections
from pgbeat.database.tables import JOB_STATES
from pgbeat.errors import NotFound
from pgbeat.jobs import model as jobs
from pgbeat.jobs import permissions
from pgbeat.web.api.jobs import seen_schedule
from pgbeat.web.api.labels import labels_of
from pgbeat.web.api.paging import cursor, moment, read
from pgbeat.web.backend import TheBackend
from pgbeat.web.identity import TheCaller
from pgbeat.web.pages import summaries
from pgbeat.web.pages.render import PageRoute, page

router = APIRouter(route_class=PageRoute)

_PAGE = 50


@router.get("/console/jobs")
def jobs_page(
    request: Request,
    backend: TheBackend,
    caller: TheCaller,
    state: str = "",
    task: str = "",
    schedule: str = "",
    lane: str = "",
    by: str = "",
    template: str = "",
    group: str = "",
    label: str = "",
    after: str = "",
) -> Response:
    """Jobs that the caller may see, by what is asked for."""
    asked = {
        "state": state if state in JOB_STATES else "", "task": task.strip()[:500],
        "schedule": schedule.strip()[:200], "lane": lane.strip()[:200], "by": by.strip()[:200],
        "template": template.strip()[:200], "group": group.strip(), "label": label.strip()[:300],
    }  # fmt: skip
    before = read(after, moment, UUID) if after else None
    which = permissions.visible(
        caller,
        jobs.Filter(
            backend.namespace,
            state=asked["state"] or None,
            task=asked["task"] or None,
            lane=asked["lane"] or None,
            created_by=asked["by"] or None,
            template=asked["template"] or None,
            group_id=str(_group(asked["group"])) if asked["group"] else None,
            labels=labels_of([asked["label"]]) if asked["label"] else None,
        ),
    )
    remark = ""
    with backend.transaction() as connection:
        now = connections.now(connection)
        if asked["schedule"]:
            try:
                found = seen_schedule(connection, backend, caller, asked["schedule"])
                which = which._replace(schedule_id=found)
            except NotFound as error:
                which, remark = which._replace(schedule_id=-1), str(error)
        rows = jobs.listing(connection, which, before=before, limit=_PAGE + 1)
        shown = rows[:_PAGE]
        running = [row.id for row in shown if row.state == "running"]
        progress = summaries.progress(connection, running)
    last = shown[-1] if len(rows) > _PAGE else None
    return page(
        request, "jobs.html", caller=caller, backend=backend, here="jobs", now=now, rows=shown,
        progress=progress, asked=asked, states=JOB_STATES, after=after, remark=remark,
        next=None if last is None else cursor(last.created_at, last.id),
    )  # fmt: skip


def _group(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise NotFound(f"{text[:80]!r} is no group's id; ids are UUIDs") from None
