"""`/console/calendars`: calendars, and whether they exclude a time."""

import json
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Response

from pgbeat.errors import PgbeatError
from pgbeat.schedules.calendars import control as calendar_control
from pgbeat.schedules.calendars import model as calendars
from pgbeat.views import View
from pgbeat.views.definitions import calendar, calendar_check
from pgbeat.web.pages import forms
from pgbeat.web.pages.forms import Form, FormField, wide
from pgbeat.web.pages.render import AdminVisit, Name, PageRoute, ViewerVisit, Visit, path

router = APIRouter(route_class=PageRoute)

_NAME = FormField("name", "Name", hint="such as office; without a slash")
_DEFINITION = wide(
    "definition",
    "Definition",
    "long",
    'a JSON object: {"weekdays": ["sat", "sun"], "holidays": {"country": "NO"}}',
)
_CHECK = (
    FormField("at", "Time", "moment", "UTC; empty: now"),
    FormField(
        "timezone", "Schedule's time zone", hint="for a calendar without one; empty: the app's"
    ),
)


@router.get("/console/calendars")
def calendars_page(visit: ViewerVisit) -> Response:
    """Shows all calendars."""
    with visit.reading() as connection:
        rows = calendars.listing(connection, namespace=visit.namespace)
        users = calendars.users(connection, namespace=visit.namespace)
    shown = [(row, calendar(row, users), users.get(row.name, [])) for row in rows]
    return visit.page("calendars.html", "calendars", rows=shown)


# -- new


@router.get("/console/new/calendar")
def new_calendar_page(visit: AdminVisit) -> Response:
    """Shows the form."""
    return _new(visit, Form({}))


def _new(visit: Visit, form: Form) -> Response:
    return visit.page("new_calendar.html", "calendars", form=form, fields=(_NAME, _DEFINITION))


@router.post("/console/new/calendar")
def make_calendar(visit: AdminVisit) -> Response:
    """Creates the calendar, or shows the form with its mistakes."""
    written = visit.given((_NAME, _DEFINITION))
    try:
        if not written["name"]:
            raise forms.Mistakes({"name": "the name is missing"})
        definition = _read(written)
        with visit.unit() as unit:
            row, _ = calendar_control.put(unit, written["name"], definition, only_new=True)
    except forms.REFUSED as error:
        return _new(visit, _refused(visit, error, written, "No calendar was created"))
    return visit.redirect(path("calendars", row.name), f"Calendar '{row.name}' was created.")


def _read(written: Mapping[str, str]) -> Any:
    """Returns the definition. Raises `Mistakes`."""
    value = forms.read((_DEFINITION._replace(kind="json"),), written)["definition"]
    if not isinstance(value, dict):
        raise forms.Mistakes({"definition": "must be a JSON object"})
    return value


def _refused(visit: Visit, error: Exception, written: Mapping[str, str], nothing: str) -> Form:
    """Returns the refused form; what is wrong as a whole is wrong with the definition."""
    form = visit.refused(error, written, nothing)
    return form._replace(errors={key or "definition": why for key, why in form.errors.items()})


# -- one


@router.get("/console/calendars/{name}")
def calendar_page(
    visit: ViewerVisit, name: Name, at: str = "", timezone: str = "", check: str = ""
) -> Response:
    """Shows a calendar and, with `check`, whether it excludes the time `at`."""
    asked = Form({"at": at[:100], "timezone": timezone[:100]})
    if not check:
        return _show(visit, name, asked=asked)
    try:
        values = forms.read(_CHECK, asked.values)
        with visit.reading() as connection:
            row = calendars.get(connection, name, namespace=visit.namespace)
        timezone = values["timezone"] or visit.backend.timezone
        result = calendar_check(row, values["at"] or visit.now, timezone)
    except forms.Mistakes as mistakes:
        return _show(visit, name, asked=asked._replace(errors=mistakes.errors), status=422)
    except PgbeatError as error:
        return _show(visit, name, asked=asked, error=error)
    return _show(visit, name, asked=asked, check=result)


def _show(
    visit: Visit,
    name: str,
    *,
    form: Form | None = None,
    asked: Form | None = None,
    check: View | None = None,
    **more: Any,
) -> Response:
    with visit.reading() as connection:
        row = calendars.get(connection, name, namespace=visit.namespace)
        definition = json.dumps(row.definition, ensure_ascii=False, indent=2)
        users = calendars.users(connection, namespace=visit.namespace).get(name, [])
    return visit.page(
        "calendar.html",
        "calendars",
        form=form or Form({"definition": definition}),
        row=row,
        facts=calendar(row, {}),
        users=users,
        fields=(_DEFINITION,),
        asked=asked or Form({}),
        check=_CHECK,
        found=check,
        **more,
    )


@router.post("/console/calendars/{name}")
def change_calendar(visit: AdminVisit, name: Name) -> Response:
    """Changes or deletes the calendar, by the form's `do`."""
    if visit.verb(("edit", "delete")) == "edit":
        return _edit(visit, name)
    try:
        with visit.unit() as unit:
            calendar_control.remove(unit, name)
    except PgbeatError as error:
        return _show(visit, name, error=error)
    return visit.redirect(path("calendars"), f"Calendar '{name}' deleted.")


def _edit(visit: Visit, name: str) -> Response:
    written = visit.given((_DEFINITION,))
    with visit.reading() as connection:
        row = calendars.get(connection, name, namespace=visit.namespace)
    try:
        definition = _read(written)
        if definition == row.definition:
            return visit.redirect(path("calendars", name), "Nothing was changed.")
        with visit.unit() as unit:
            calendar_control.edit(unit, name, definition)
    except forms.REFUSED as error:
        return _show(visit, name, form=_refused(visit, error, written, "Nothing was changed"))
    return visit.redirect(path("calendars", name), f"Calendar '{name}' was changed.")
