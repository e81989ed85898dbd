"""`/console/groups`: groups with their progress and jobs."""

import json
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, Response

from pgbeat.errors import PgbeatError
from pgbeat.jobs.checks import permissions
from pgbeat.jobs.groups import model as groups
from pgbeat.jobs.rows import ids
from pgbeat.jobs.rows import model as jobs
from pgbeat.jobs.rows.filters import Filter
from pgbeat.jobs.submitting import submit_group
from pgbeat.web.api.jobs.groups import NewGroup
from pgbeat.web.api.paging import moment, read, split
from pgbeat.web.api.visible import visible_group
from pgbeat.web.pages import forms
from pgbeat.web.pages.forms import Form, FormField, choice, wide
from pgbeat.web.pages.humanize import counted
from pgbeat.web.pages.jobs import job_fields
from pgbeat.web.pages.render import ChangeVisit, PageRoute, TheVisit, Visit, path

router = APIRouter(route_class=PageRoute)

#: Groups on a page; members of a group that are shown, and failed ones besides.
_PAGE, _MEMBERS, _FAILED = 25, 100, 10
_STATES = ("running", "completed", "failed", "cancelled")


def parse_id(group_id: str) -> UUID:
    """Parses a group's id. Raises `NotFound`."""
    return ids.parse(group_id, "group")


GroupId = Annotated[UUID, Depends(parse_id)]


@router.get("/console/groups")
def groups_page(visit: TheVisit, state: str = "", by: str = "", after: str = "") -> Response:
    """Shows the groups that the caller may see, the newest first."""
    asked = {"state": state if state in _STATES else "", "by": by.strip()[:200]}
    wanted = {
        "state": asked["state"] or None,
        "created_by": permissions.visible_owner(visit.caller, asked["by"] or None, "groups"),
    }
    before = read(after or None, moment, UUID)
    with visit.listing() as connection:
        page = groups.listing(connection, visit.namespace, before=before, limit=_PAGE + 1, **wanted)
        rows, following = split(page, _PAGE, "created_at", "id")
        progress = groups.progress(connection, [row.id for row in rows])
    return visit.page(
        "groups.html",
        "groups",
        rows=rows,
        progress=progress,
        asked=asked,
        states=_STATES,
        after=after,
        next=following,
    )


# -- one


@router.get("/console/groups/{group_id}")
def group_page(visit: TheVisit, group_id: GroupId) -> Response:
    """Shows a group."""
    return _show(visit, group_id)


def _show(visit: Visit, group_id: UUID, *, error: Exception | None = None) -> Response:
    with visit.reading() as connection:
        group = visible_group(connection, visit, group_id)
        progress = groups.progress(connection, [group.id])[group.id]
        members = groups.members(connection, group.id, limit=_MEMBERS + 1)
        callback = jobs.find_brief(connection, [group.callback_id] if group.callback_id else [])
        failed = []
        if progress.counts.get("failed") and len(members) > _MEMBERS:
            which = Filter(visit.namespace, group_id=str(group.id), state="failed")
            failed = jobs.listing(connection, which, limit=_FAILED)
    return visit.page(
        "group.html",
        "groups",
        error=error,
        group=group,
        progress=progress,
        callback=visit.redactor.row(callback[0], callback[0].task) if callback else None,
        members=visit.redactor.rows(members[:_MEMBERS]),
        has_more=len(members) > _MEMBERS,
        failed=visit.redactor.rows(failed),
    )


@router.post("/console/groups/{group_id}")
def change_group(visit: TheVisit, group_id: GroupId) -> Response:
    """Cancels the group if the form's `do` is `cancel`."""
    with visit.reading() as connection:
        visible_group(connection, visit, group_id)
    visit.verb(("cancel",))
    try:
        with visit.work() as unit:
            cancelled = submit_group.cancel(unit, group_id)
    except PgbeatError as error:
        return _show(visit, group_id, error=error)
    message = f"The group was cancelled: {counted(cancelled.ended, 'job')} ended now"
    if cancelled.asked:
        message += f", the workers of {counted(cancelled.asked, 'job')} were asked to end them"
    return visit.redirect(path("groups", group_id), f"{message}.")


# -- new

_FIELDS = (
    FormField("name", "Name", hint="optional"),
    choice(
        "mode",
        "The jobs run",
        groups.MODES,
        "parallel: all at once; sequential: one after the other",
    ),
    choice(
        "on_failure",
        "Once one has failed",
        groups.ON_FAILURE,
        "stop: cancels the others; continue: runs them; skip_remaining: skips the others",
    ),
    FormField(
        "callback",
        "Callback",
        hint="a job that runs once, at the end: the name of a task, or an object as below",
    ),
    choice(
        "callback_outcome",
        "Runs once the group has",
        groups.CALLBACK_OUTCOMES,
        "finished: completed or failed",
    ),
    wide(
        "jobs",
        "Jobs",
        "long",
        'one in each line: the name of a task, or {"task": "…", "args": […], "lane": "…"}, '
        'or {"template": "…"}; with "key" and "depends_on": ["…"], they wait for each other',
    ),
)


@router.get("/console/new/group")
def new_group_page(visit: ChangeVisit) -> Response:
    """Shows the form."""
    return _new(
        visit, Form({"mode": "parallel", "on_failure": "stop", "callback_outcome": "finished"})
    )


def _new(visit: Visit, form: Form) -> Response:
    tasks = job_fields.tasks(visit.backend.celery, visit.caller)
    return visit.page("new_group.html", "groups", form=form, fields=_FIELDS, tasks=tasks)


@router.post("/console/new/group")
def make_group(visit: TheVisit) -> Response:
    """Creates the group with all its jobs, or shows the form with its mistakes."""
    written = visit.given(_FIELDS)
    try:
        values: dict[str, Any] = {key: value for key, value in written.items() if value}
        values["jobs"] = _parsed("jobs", written["jobs"])
        if written["callback"]:
            [values["callback"]] = _parsed("callback", written["callback"].replace("\n", " "))
        body = NewGroup.model_validate(values)
        with visit.unit() as unit:
            group = submit_group.submit(unit, **body.arguments(), job_source="user_api").group
    except forms.REFUSED as error:
        return _new(visit, visit.refused(error, written, "No group was created"))
    return visit.redirect(path("groups", group.id), "The group was created.")


def _parsed(field: str, text: str) -> list[Any]:
    """Parses jobs, one in each line. Raises `Mistakes`."""
    orders: list[Any] = []
    wrong = []
    for number, line in enumerate(text.splitlines(), 1):
        order = line.strip()
        if order.startswith("{"):
            try:
                orders.append(json.loads(order))
            except (ValueError, RecursionError) as error:
                wrong.append(f"line {number}: invalid JSON: {error}")
        elif order:
            orders.append(order)
    if not orders and not wrong:
        wrong = ["which jobs? Write one in each line"]
    if wrong:
        raise forms.Mistakes({field: "; ".join(wrong[:5])})
    return orders
