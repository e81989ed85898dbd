"""`/console/schedules/NAME`: one schedule, what was decided on it, and what can be done to it."""

import json
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response

from pgbeat.database import connections
from pgbeat.errors import PgbeatError
from pgbeat.monitoring import statistics
from pgbeat.schedules import model as schedules
from pgbeat.schedules import ticks
from pgbeat.schedules.model import Schedule
from pgbeat.web.api import decisions
from pgbeat.web.api import schedules as api
from pgbeat.web.api.paging import cursor, moment, number, read
from pgbeat.web.api.schedule_models import PauseReason, ScheduleChanges
from pgbeat.web.backend import Backend, TheBackend
from pgbeat.web.identity import Caller, TheAdmin
from pgbeat.web.pages import forms, humanize, job_fields, schedule_form, summaries
from pgbeat.web.pages.forms import Form
from pgbeat.web.pages.render import Fields, PageRoute, done, page, path, said_of, unknown

router = APIRouter(route_class=PageRoute)

Name = Annotated[str, Path(max_length=200)]
_PAGE = 25


@router.get("/console/schedules/{name:path}")
def schedule_page(
    request: Request, backend: TheBackend, caller: TheAdmin, name: Name, after: str = ""
) -> Response:
    """One schedule."""
    return _show(request, backend, caller, name, after=after)


def _show(
    request: Request,
    backend: Backend,
    caller: Caller,
    name: str,
    *,
    after: str = "",
    form: Form | None = None,
    status: int = 200,
    **values: Any,
) -> Response:
    before = read(after, moment, number) if after else None
    with backend.transaction() as connection:
        now = connections.now(connection)
        row = schedules.get(connection, name, namespace=backend.namespace)
        history = ticks.history(connection, row.id, before=before, limit=_PAGE + 1)
        numbers = statistics.of_schedule(connection, row.id)
        sparks = summaries.sparks(connection, [row.id])[row.id]
        health = api.healths(backend, connection, [row])[row.id]
        offers = job_fields.offers(connection, backend, schedule_form.FIELDS)
    coming, trouble = _forecast(backend, caller, row)
    shown = history[:_PAGE]
    last = shown[-1] if len(history) > _PAGE else None
    return page(
        request, "schedule.html", caller=caller, backend=backend, here="schedules",
        of=f"schedule:{row.name}", now=now,
        status=status, row=row, timetable=humanize.timetable(row, backend.timezone), history=shown,
        next=None if last is None else cursor(last.due_at, last.id), after=after, sparks=sparks,
        health=health, numbers=numbers, coming=coming, trouble=trouble, form=form or _form(row),
        sections=schedule_form.SECTIONS, offers=offers, **({"checked": None} | values),
    )  # fmt: skip


def _forecast(
    backend: Backend, caller: Caller, row: Schedule
) -> tuple[list[decisions.UpcomingTick], str]:
    """The next times, or why they can't be said."""
    if not row.enabled or row.paused_at is not None or row.after is not None:
        return [], ""
    try:
        return decisions.schedule_forecast(backend, caller, row.name, 5).upcoming, ""
    except PgbeatError as error:  # a calendar, or a timetable, that can't be understood
        return [], str(error)


# -- changed


@router.post("/console/schedules/{name:path}")
def change_schedule(
    request: Request, backend: TheBackend, caller: TheAdmin, name: Name, fields: Fields
) -> Response:
    """Does what a form of the page asks for: `do`."""
    verb = fields.get("do", "")
    here = path("schedules", name)
    try:
        if verb == "check":
            checked = decisions.check_schedule(backend, caller, name)
            return _show(request, backend, caller, name, checked=checked)
        if verb == "edit":
            return _edit(request, backend, caller, name, fields)
        if verb == "trigger":
            made = decisions.trigger_schedule(backend, caller, name)
            return done(request, here, made.message, is_good=made.success)
        if verb == "delete":
            said = api.delete_schedule(backend, caller, name)
            return done(request, path("schedules"), _sentence(said))
        if verb == "pause":
            why = PauseReason(reason=fields.get("reason", "").strip()[:2000] or None)
            said = api.pause_schedule(backend, caller, name, why)
            return done(request, here, _sentence(said))
        if verb in _SWITCHES:
            return done(request, here, _sentence(_SWITCHES[verb](backend, caller, name)))
    except PgbeatError as error:
        with backend.transaction() as connection:  # NotFound is a page of its own
            schedules.get(connection, name, namespace=backend.namespace)
        status, _, detail = said_of(request, error)
        return _show(request, backend, caller, name, status=status, error=detail)
    raise unknown(fields)


_SWITCHES: dict[str, Callable[[Backend, Caller, str], Any]] = {
    "resume": api.resume_schedule,
    "enable": api.enable_schedule,
    "disable": api.disable_schedule,
}


def _sentence(said: Any) -> str:
    return f"{said.message}." + (f" Note: {said.note}." if said.note else "")


# -- edited


def _form(row: Schedule) -> Form:
    values = schedule_form.written(row)
    return Form(values, before=json.dumps(values))


def _edit(
    request: Request, backend: Backend, caller: Caller, name: str, posted: Mapping[str, str]
) -> Response:
    written = forms.given(schedule_form.FIELDS, posted)
    before = forms.before(posted)
    changed = {key: value for key, value in written.items() if value != before.get(key, "")}
    with backend.transaction() as connection:
        row = schedules.get(connection, name, namespace=backend.namespace)
    try:
        changes = schedule_form.changes(written, changed, row.job_policy)
        if not changes:
            return done(request, path("schedules", name), "Nothing was changed.")
        said = api.update_schedule(backend, caller, name, ScheduleChanges.model_validate(changes))
    except forms.REFUSED as error:
        status, errors = forms.refused(request, error, written, schedule_form.OTHERS)
        form = Form(written, errors, posted.get("before", ""))
        said_first = forms.headline(errors, "Nothing was changed")
        return _show(request, backend, caller, name, form=form, status=status, error=said_first)
    return done(request, path("schedules", name), _sentence(said))
