"""`/console/calendars`: what schedules leave out, and whether a time is left out."""

import json
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response

from pgbeat.database import connections
from pgbeat.errors import PgbeatError
from pgbeat.schedules import calendars
from pgbeat.schedules.calendars import Calendar
from pgbeat.web.api import calendars as api
from pgbeat.web.backend import Backend, TheBackend
from pgbeat.web.identity import Caller, TheAdmin
from pgbeat.web.pages import forms
from pgbeat.web.pages.forms import Field, Form
from pgbeat.web.pages.render import Fields, PageRoute, done, page, path, said_of, unknown

router = APIRouter(route_class=PageRoute)

Name = Annotated[str, Path(max_length=200)]

_NAME = Field("name", "Name", hint="such as office; without a slash")
_DEFINITION = Field(
    "definition", "Definition", "long", is_wide=True,
    hint='a JSON object: {"weekdays": ["sat", "sun"], "holidays": {"country": "NO"}}',
)  # fmt: skip
_CHECK = (
    Field("at", "Time", "moment", "UTC; empty: now"),
    Field("timezone", "Zone of the schedule", hint="for a calendar without one; empty: the app's"),
)


@router.get("/console/calendars")
def calendars_page(request: Request, backend: TheBackend, caller: TheAdmin) -> Response:
    """All calendars."""
    with backend.transaction() as connection:
        now = connections.now(connection)
        rows = calendars.listing(connection, namespace=backend.namespace)
        users = calendars.users(connection, namespace=backend.namespace)
    return page(
        request, "calendars.html", caller=caller, backend=backend, here="calendars", now=now,
        rows=[(row, api.shown(row), users.get(row.name, [])) for row in rows],
    )  # fmt: skip


# -- made


@router.get("/console/new/calendar")
def new_calendar_page(request: Request, backend: TheBackend, caller: TheAdmin) -> Response:
    """The form that makes one."""
    return _new(request, backend, caller, Form({}))


def _new(
    request: Request, backend: Backend, caller: Caller, form: Form, *, status: int = 200
) -> Response:
    return page(
        request, "new_calendar.html", caller=caller, backend=backend, here="calendars", form=form,
        fields=(_NAME, _DEFINITION), status=status,
        error=forms.headline(form.errors, "Nothing was made"),
    )  # fmt: skip


@router.post("/console/new/calendar")
def make_calendar(
    request: Request, backend: TheBackend, caller: TheAdmin, posted: Fields
) -> Response:
    """Makes it, or says beside the fields why not."""
    written = forms.given((_NAME, _DEFINITION), posted)
    try:
        if not written["name"]:
            raise forms.Mistakes({"name": "it needs a name"})
        values = {"name": written["name"], "definition": _read(written)}
        made = api.create_calendar(backend, caller, api.NewCalendar.model_validate(values))
    except forms.REFUSED as error:
        status, errors = _refused(request, error, written)
        return _new(request, backend, caller, Form(written, errors), status=status)
    return done(request, path("calendars", made.name), f"Calendar '{made.name}' was made.")


def _read(written: Mapping[str, str]) -> Any:
    """The definition that was written. Raises `Mistakes`."""
    found = forms.read((_DEFINITION._replace(kind="json"),), written)["definition"]
    if not isinstance(found, dict):
        raise forms.Mistakes({"definition": "it must be a JSON object"})
    return found


def _refused(
    request: Request, error: Exception, written: Mapping[str, str]
) -> tuple[int, dict[str, str]]:
    """As `forms.refused` has it; what is said of no field is about the definition."""
    status, errors = forms.refused(request, error, written)
    return status, {key or "definition": said for key, said in errors.items()}


# -- one


@router.get("/console/calendars/{name}")
def calendar_page(
    request: Request,
    backend: TheBackend,
    caller: TheAdmin,
    name: Name,
    at: str = "",
    timezone: str = "",
    check: str = "",
) -> Response:
    """One calendar; with `check`, whether it excludes the time `at`."""
    asked = {"at": at[:100], "timezone": timezone[:100]}
    if not check:
        return _show(request, backend, caller, name, asked=Form(asked))
    try:
        values = forms.read(_CHECK, asked)
        found = api.check_calendar(backend, caller, name, values["at"], values["timezone"])
    except forms.Mistakes as mistakes:
        form = Form(asked, mistakes.errors)
        return _show(request, backend, caller, name, asked=form, status=422)
    except PgbeatError as error:
        status, _, said = said_of(request, error)
        return _show(request, backend, caller, name, asked=Form(asked), status=status, error=said)
    return _show(request, backend, caller, name, asked=Form(asked), found=found)


def _show(
    request: Request,
    backend: Backend,
    caller: Caller,
    name: str,
    *,
    form: Form | None = None,
    asked: Form | None = None,
    found: api.CalendarCheck | None = None,
    status: int = 200,
    error: str | None = None,
) -> Response:
    with backend.transaction() as connection:
        now = connections.now(connection)
        row = calendars.get(connection, name, namespace=backend.namespace)
        users = calendars.users(connection, namespace=backend.namespace).get(name, [])
    return page(
        request, "calendar.html", caller=caller, backend=backend, here="calendars", now=now,
        row=row, facts=api.shown(row), users=users, form=form or Form(_written(row)),
        fields=(_DEFINITION,), asked=asked or Form({}), check=_CHECK, found=found, status=status,
        error=error,
    )  # fmt: skip


def _written(row: Calendar) -> dict[str, str]:
    return {"definition": json.dumps(row.definition, ensure_ascii=False, indent=2)}


@router.post("/console/calendars/{name}")
def change_calendar(
    request: Request, backend: TheBackend, caller: TheAdmin, name: Name, posted: Fields
) -> Response:
    """Changes the calendar, or deletes it: `do`."""
    verb = posted.get("do", "")
    if verb == "edit":
        return _edit(request, backend, caller, name, posted)
    if verb != "delete":
        raise unknown(posted)
    try:
        said = api.delete_calendar(backend, caller, name).message
    except PgbeatError as error:
        status, _, detail = said_of(request, error)
        return _show(request, backend, caller, name, status=status, error=detail)
    return done(request, path("calendars"), f"{said}.")


def _edit(
    request: Request, backend: Backend, caller: Caller, name: str, posted: Mapping[str, str]
) -> Response:
    written = forms.given((_DEFINITION,), posted)
    with backend.transaction() as connection:
        row = calendars.get(connection, name, namespace=backend.namespace)
    try:
        definition = _read(written)
        if definition == row.definition:
            return done(request, path("calendars", name), "Nothing was changed.")
        body = api.CalendarFields.model_validate({"definition": definition})
        api.put_calendar(backend, caller, name, body, Response())
    except forms.REFUSED as error:
        status, errors = _refused(request, error, written)
        said = forms.headline(errors, "Nothing was changed")
        form = Form(written, errors)
        return _show(request, backend, caller, name, form=form, status=status, error=said)
    return done(request, path("calendars", name), f"Calendar '{name}' was changed.")
