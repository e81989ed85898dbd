"""`/console/groups`: jobs that were given together, how far they are, and their end."""

import json
from typing import Any
from uuid import UUID

from fastapi import APIRouter, Request, Response

from pgbeat.database import connections
from pgbeat.errors import NotFound, PgbeatError
from pgbeat.jobs import model as jobs
from pgbeat.jobs import permissions
from pgbeat.jobs.groups import model as groups
from pgbeat.web.api import groups as api
from pgbeat.web.api.paging import cursor, moment, read
from pgbeat.web.api.steering import seen_group
from pgbeat.web.backend import Backend, TheBackend
from pgbeat.web.identity import Caller, TheCaller
from pgbeat.web.pages import forms, job_fields
from pgbeat.web.pages.forms import Field, Form
from pgbeat.web.pages.humanize import counted
from pgbeat.web.pages.render import Fields, PageRoute, done, page, path, said_of, unknown

router = APIRouter(route_class=PageRoute)

#: Groups of a page; members of a group that are shown, and of those that failed.
_PAGE, _MEMBERS, _FAILED = 25, 100, 10
_STATES = ("running", "completed", "failed", "cancelled")


@router.get("/console/groups")
def groups_page(
    request: Request,
    backend: TheBackend,
    caller: TheCaller,
    state: str = "",
    by: str = "",
    after: str = "",
) -> Response:
    """Groups that the caller may see, the newest first."""
    asked = {"state": state if state in _STATES else "", "by": by.strip()[:200]}
    before = read(after, moment, UUID) if after else None
    with backend.transaction() as connection:
        now = connections.now(connection)
        rows = groups.listing(
            connection, backend.namespace, state=asked["state"] or None,
            created_by=permissions.visible_owner(caller, asked["by"] or None, "groups"),
            before=before, limit=_PAGE + 1,
        )  # fmt: skip
        shown = rows[:_PAGE]
        progress = groups.progress(connection, [row.id for row in shown])
    last = shown[-1] if len(rows) > _PAGE else None
    return page(
        request, "groups.html", caller=caller, backend=backend, here="groups", now=now, rows=shown,
        progress=progress, asked=asked, states=_STATES, after=after,
        next=None if last is None else cursor(last.created_at, last.id),
    )  # fmt: skip


# -- one


@router.get("/console/groups/{group_id}")
def group_page(request: Request, backend: TheBackend, caller: TheCaller, group_id: str) -> Response:
    """One group."""
    return _show(request, backend, caller, _id(group_id))


def _id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise NotFound(f"{text[:80]!r} is no group's id; ids are UUIDs") from None


def _show(
    request: Request,
    backend: Backend,
    caller: Caller,
    group_id: UUID,
    *,
    status: int = 200,
    error: str | None = None,
) -> Response:
    with backend.transaction() as connection:
        now = connections.now(connection)
        group = seen_group(connection, backend, caller, group_id)
        progress = groups.progress(connection, [group.id])[group.id]
        members = groups.members(connection, group.id, limit=_MEMBERS + 1)
        failed = []
        if progress.counts.get("failed") and len(members) > _MEMBERS:
            which = jobs.Filter(backend.namespace, group_id=str(group.id), state="failed")
            failed = jobs.listing(connection, which, limit=_FAILED)
    return page(
        request, "group.html", caller=caller, backend=backend, here="groups", now=now, group=group,
        progress=progress, members=members[:_MEMBERS], has_more=len(members) > _MEMBERS,
        failed=failed, status=status, error=error,
    )  # fmt: skip


@router.post("/console/groups/{group_id}")
def change_group(
    request: Request, backend: TheBackend, caller: TheCaller, group_id: str, fields: Fields
) -> Response:
    """Ends the group: `do` is `cancel`."""
    which = _id(group_id)
    with backend.transaction() as connection:
        seen_group(connection, backend, caller, which)
    if fields.get("do") != "cancel":
        raise unknown(fields)
    try:
        made = api.cancel_group(backend, caller, which)
    except PgbeatError as error:
        status, _, detail = said_of(request, error)
        return _show(request, backend, caller, which, status=status, error=detail)
    said = f"The group was cancelled: {counted(made.ended, 'job')} ended now"
    if made.asked:
        said += f", the workers of {counted(made.asked, 'job')} were asked to end theirs"
    return done(request, path("groups", which), f"{said}.")


# -- made

_FIELDS = (
    Field("name", "Name", hint="need not have one"),
    Field("mode", "The jobs run", "choice", options=groups.MODES,
          hint="parallel: all at once; sequential: one after the other"),
    Field("on_failure", "Once one has failed", "choice", options=groups.ON_FAILURE,
          hint="stop: the rest is cancelled; continue: it goes on; skip_remaining: it is skipped"),
    Field("jobs", "Jobs", "long", is_wide=True,
          hint='one in each line: a task\'s name, or {"task": "…", "args": […], "lane": "…"}, or '
          '{"template": "…"}'),
)  # fmt: skip


@router.get("/console/new/group")
def new_group_page(request: Request, backend: TheBackend, caller: TheCaller) -> Response:
    """The form that makes one."""
    return _new(request, backend, caller, Form({"mode": "parallel", "on_failure": "stop"}))


def _new(
    request: Request, backend: Backend, caller: Caller, form: Form, *, status: int = 200
) -> Response:
    error = forms.headline(form.errors, "Nothing was made")
    return page(
        request, "new_group.html", caller=caller, backend=backend, here="groups", form=form,
        fields=_FIELDS, tasks=job_fields.tasks(backend.celery), status=status, error=error,
    )  # fmt: skip


@router.post("/console/new/group")
def make_group(
    request: Request, backend: TheBackend, caller: TheCaller, posted: Fields
) -> Response:
    """Makes it with all its jobs, or says beside the fields why not."""
    written = forms.given(_FIELDS, posted)
    try:
        values = {key: value for key, value in written.items() if value}
        body = api.NewGroup.model_validate(values | {"jobs": _orders(written["jobs"])})
        made = api.create_group(backend, caller, body)
    except forms.REFUSED as error:
        status, errors = forms.refused(request, error, written)
        return _new(request, backend, caller, Form(written, errors), status=status)
    return done(request, path("groups", made.id), "The group was made.")


def _orders(text: str) -> list[Any]:
    """The jobs of as many lines: names of tasks, or objects. Raises `Mistakes`."""
    found: list[Any] = []
    wrong = []
    for number, line in enumerate(text.splitlines(), 1):
        said = line.strip()
        if said.startswith("{"):
            try:
                found.append(json.loads(said))
            except (ValueError, RecursionError) as error:
                wrong.append(f"line {number} is no JSON: {error}")
        elif said:
            found.append(said)
    if not found and not wrong:
        wrong = ["which jobs? Write one in each line"]
    if wrong:
        raise forms.Mistakes({"jobs": "; ".join(wrong[:5])})
    return found
