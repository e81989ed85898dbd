"""`/console/schedules/NAME`: one schedule, what was decided on it, and what can be done to it."""

import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Path, Request, Response
from pydantic import ValidationError

from pgbeat import db, schedules, statistics, ticks
from pgbeat.errors import InvalidSchedule, PgbeatError
from pgbeat.schedules import TIMETABLES, Schedule
from pgbeat.timetables import span
from pgbeat.web.api import decisions
from pgbeat.web.api import schedules as api
from pgbeat.web.api.paging import cursor, moment, number, read
from pgbeat.web.api.schedule_models import ScheduleChanges
from pgbeat.web.backend import Backend, TheBackend
from pgbeat.web.identity import Caller, TheAdmin
from pgbeat.web.pages import figures, words
from pgbeat.web.pages.render import Fields, PageRoute, done, page, path, said_of, unknown

router = APIRouter(route_class=PageRoute)

Name = Annotated[str, Path(max_length=200)]
_PAGE = 25


class Form(NamedTuple):
    """The form that changes a schedule: what is written in it, and what is wrong with that."""

    values: Mapping[str, str]
    #: As it was when the form was made: only what is otherwise is changed.
    before: str
    errors: Mapping[str, str]


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
        now = db.now(connection)
        row = schedules.get(connection, name, namespace=backend.namespace)
        history = ticks.history(connection, row.id, before=before, limit=_PAGE + 1)
        numbers = statistics.of_schedule(connection, row.id)
        sparks = figures.sparks(connection, [row.id])[row.id]
    coming, trouble = _forecast(backend, caller, row)
    shown = history[:_PAGE]
    last = shown[-1] if len(history) > _PAGE else None
    return page(
        request, "schedule.html", caller=caller, backend=backend, here="schedules", now=now,
        status=status, row=row, timetable=words.timetable(row, backend.timezone), history=shown,
        next=None if last is None else cursor(last.due_at, last.id), after=after, sparks=sparks,
        numbers=numbers, coming=coming, trouble=trouble, form=form or _form(row),
        fields=_FIELDS, kinds=TIMETABLES, **({"checked": None} | values),
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
        if verb in _SWITCHES:
            return done(request, here, _sentence(_SWITCHES[verb](backend, caller, name)))
    except PgbeatError as error:
        with backend.transaction() as connection:  # NotFound is a page of its own
            schedules.get(connection, name, namespace=backend.namespace)
        status, _, detail = said_of(request, error)
        return _show(request, backend, caller, name, status=status, error=detail)
    raise unknown(fields)


_SWITCHES: dict[str, Callable[[Backend, Caller, str], Any]] = {
    "pause": api.pause_schedule,
    "resume": api.resume_schedule,
    "enable": api.enable_schedule,
    "disable": api.disable_schedule,
}


def _sentence(said: Any) -> str:
    return f"{said.message}." + (f" Note: {said.note}." if said.note else "")


# -- edited


class Field(NamedTuple):
    """A field of the form that changes a schedule."""

    name: str
    label: str
    kind: str = "text"
    hint: str = ""
    options: tuple[str, ...] = ()


_FIELDS = (
    Field("timezone", "Time zone", hint="such as Europe/Oslo; empty: the app's"),
    Field("task", "Task"),
    Field("args", "Arguments", "json", "a JSON list"),
    Field("kwargs", "Keyword arguments", "json", "a JSON object"),
    Field("queue", "Queue", hint="empty: as the app routes it"),
    Field("condition_sql", "Condition in SQL", "long", "launched when the first value is true"),
    Field("jitter", "Jitter", hint="later by up to that: 2 min"),
    Field("grace", "Grace", hint="how late it may be: 15 min; empty: however late"),
    Field("min_interval", "Least interval", hint="between two launches: 1 h"),
    Field("overlap", "While the job before it goes on", "choice",
          options=("allow", "skip", "queue_one", "cancel_previous")),
    Field("catch_up", "Of missed times", "choice", options=("latest", "all", "none")),
    Field("calendar", "Calendar"),
    Field("max_runs", "Most runs", "number"),
    Field("max_retries", "Retries", "number"),
    Field("owner", "Owner"),
)  # fmt: skip
_LENGTHS = {"jitter", "grace", "min_interval"}
_OBJECTS = {"args", "kwargs"}
#: What has always a value: an empty field is a mistake that the model tells.
_ALWAYS = {"overlap", "catch_up", "max_retries"}


def _written(row: Schedule) -> dict[str, str]:
    """The fields of the form, as the schedule is."""
    kind = next((each for each in TIMETABLES if getattr(row, each) is not None), "")
    values = {"kind": kind, "timetable": _text(kind, getattr(row, kind)) if kind else ""}
    return values | {field.name: _text(field.name, getattr(row, field.name)) for field in _FIELDS}


def _text(name: str, value: Any) -> str:
    if value is None:
        return ""
    if name in _OBJECTS:
        return json.dumps(value, ensure_ascii=False) if value else ""
    if name in _LENGTHS or name == "every":
        return span(value, units=4) if value else ""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    return str(value)


def _form(row: Schedule) -> Form:
    values = _written(row)
    return Form(values, json.dumps(values), {})


def _edit(
    request: Request, backend: Backend, caller: Caller, name: str, fields: Mapping[str, str]
) -> Response:
    names = ["kind", "timetable", *(field.name for field in _FIELDS)]
    given = {key: fields.get(key, "").replace("\r\n", "\n").strip() for key in names}
    before = _before(fields.get("before", ""))
    changed = {key: value for key, value in given.items() if value != before.get(key)}
    try:
        changes = _changes(given, changed)
        if not changes:
            return done(request, path("schedules", name), "Nothing was changed.")
        body = ScheduleChanges.model_validate(changes)
        said = api.update_schedule(backend, caller, name, body)
    except (ValidationError, _Mistakes, PgbeatError) as error:
        errors = _errors(error, given["kind"])
        status = said_of(request, error)[0] if isinstance(error, PgbeatError) else 422
        form = Form(given, fields.get("before", ""), errors)
        return _show(
            request, backend, caller, name, form=form, status=status,
            error=errors.get("", "Nothing was changed: see what is wrong below."),
        )  # fmt: skip
    return done(request, path("schedules", name), _sentence(said))


def _before(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise InvalidSchedule("the form is not whole; open the page again")
    return found


class _Mistakes(Exception):
    """Fields that can't be read, and why."""

    def __init__(self, errors: dict[str, str]) -> None:
        self.errors = errors


def _changes(given: Mapping[str, str], changed: Mapping[str, str]) -> dict[str, Any]:
    """What is to be changed, as the API takes it."""
    found: dict[str, Any] = {}
    errors: dict[str, str] = {}
    if {"kind", "timetable"} & changed.keys() and given["kind"] in TIMETABLES:
        if not given["timetable"]:
            errors["timetable"] = "when? A schedule needs a timetable"
        found[given["kind"]] = given["timetable"]
    for key in changed.keys() - {"kind", "timetable"}:
        value = changed[key]
        if not value:
            if key in _ALWAYS:
                errors[key] = "it needs a value"
            found[key] = None
        elif key in _OBJECTS:
            try:
                found[key] = json.loads(value)
            except (ValueError, RecursionError) as error:
                errors[key] = f"it is no JSON: {error}"
        else:
            found[key] = value
    if errors:
        raise _Mistakes(errors)
    return found


def _errors(error: Exception, kind: str) -> dict[str, str]:
    """What is wrong, by the field that it is to be shown beside; empty: none of them."""
    if isinstance(error, _Mistakes):
        return error.errors
    if isinstance(error, ValidationError):
        found = {}
        for each in error.errors():
            field = str(each["loc"][0]) if each["loc"] else ""
            said = str(each["msg"]).removeprefix("Value error, ")
            found["timetable" if field in TIMETABLES else field] = said
        return found
    said = str(error)
    names = [field.name for field in _FIELDS]
    words_of = re.findall(r"[a-z_]+", said.lower())
    for word in words_of[:6]:
        if word in (kind, *TIMETABLES):
            return {"timetable": said}
        if word in names or (word == "zone" and "timezone" in names):
            return {"timezone" if word == "zone" else word: said}
        if word in ("condition", "launcher"):
            return {"condition_sql": said}
    return {"": said}
