"""`/console/lanes`: limits on what runs at once, who has their slots, and who waits and why."""

import json
from collections.abc import Callable, Mapping
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Path, Request, Response

from pgbeat.database import connections
from pgbeat.errors import NotFound, PgbeatError
from pgbeat.jobs import lane_control
from pgbeat.jobs.lanes import concurrency, occupancy
from pgbeat.jobs.lanes import model as lanes
from pgbeat.jobs.lanes.model import Lane
from pgbeat.web.api import jobs as jobs_api
from pgbeat.web.api import lanes as api
from pgbeat.web.backend import Backend, TheBackend
from pgbeat.web.identity import Caller, TheAdmin
from pgbeat.web.pages import forms, lane_form
from pgbeat.web.pages.forms import Form
from pgbeat.web.pages.render import Fields, PageRoute, done, page, path, said_of, unknown

router = APIRouter(route_class=PageRoute)

Name = Annotated[str, Path(max_length=200)]
_SHOWN = 50


@router.get("/console/lanes")
def lanes_page(request: Request, backend: TheBackend, caller: TheAdmin) -> Response:
    """All lanes."""
    with backend.transaction() as connection:
        now = connections.now(connection)
        rows = lanes.listing(connection, backend.namespace)
    return page(
        request, "lanes.html", caller=caller, backend=backend, here="lanes", now=now, rows=rows
    )


# -- made


@router.get("/console/new/lane")
def new_lane_page(request: Request, backend: TheBackend, caller: TheAdmin) -> Response:
    """The form."""
    return _form_page(request, backend, caller, Form({}))


def _form_page(
    request: Request, backend: Backend, caller: Caller, form: Form, *, status: int = 200
) -> Response:
    error = forms.headline(form.errors, "Nothing was made")
    return page(
        request, "lane_new.html", caller=caller, backend=backend, here="lanes", form=form,
        fields=(lane_form.NAME, *lane_form.FIELDS), offers=lane_form.offers(), status=status,
        error=error,
    )  # fmt: skip


@router.post("/console/new/lane")
def make_lane(request: Request, backend: TheBackend, caller: TheAdmin, posted: Fields) -> Response:
    """Makes it, or says beside the fields why not."""
    given = forms.given((lane_form.NAME, *lane_form.FIELDS), posted)
    try:
        if not given["name"]:
            raise forms.Mistakes({"name": "it needs a name"})
        written = {name for name in given if given[name]}
        body = api.LaneChanges.model_validate(lane_form.changes(given, written))
        with backend.unit(caller) as unit:
            lane_control.save(unit, given["name"], body.changes(), only="new")
    except forms.REFUSED as error:
        status, errors = forms.refused(request, error, given)
        return _form_page(request, backend, caller, Form(given, errors), status=status)
    return done(request, path("lanes", given["name"]), f"Lane '{given['name']}' was made.")


# -- one


@router.get("/console/lanes/{name}")
def lane_page(request: Request, backend: TheBackend, caller: TheAdmin, name: Name) -> Response:
    """One lane."""
    return _show(request, backend, caller, name)


def _show(
    request: Request,
    backend: Backend,
    caller: Caller,
    name: str,
    *,
    form: Form | None = None,
    status: int = 200,
    error: str | None = None,
) -> Response:
    with backend.transaction() as connection:
        now = connections.now(connection)
        lane = lanes.get(connection, backend.namespace, name)
        holders = occupancy.holders(connection, lane, limit=_SHOWN)
        # A policy of the app's code may not be known here.
        is_known = lane.policy is None or lane.policy in concurrency.registered()
        line = occupancy.line(connection, lane, limit=_SHOWN + 1) if is_known else None
    return page(
        request, "lane.html", caller=caller, backend=backend, here="lanes", now=now, lane=lane,
        holders=holders, line=line, shown=_SHOWN, form=form or _form(lane), status=status,
        fields=lane_form.FIELDS, offers=lane_form.offers(), error=error,
    )  # fmt: skip


def _form(lane: Lane) -> Form:
    values = lane_form.written(lane)
    return Form(values, before=json.dumps(values))


# -- changed


@router.post("/console/lanes/{name}")
def change_lane(
    request: Request, backend: TheBackend, caller: TheAdmin, name: Name, posted: Fields
) -> Response:
    """Does what a form of the page asks for: `do`."""
    verb = posted.get("do", "")
    if verb == "edit":
        return _edit(request, backend, caller, name, posted)
    change = _CHANGES.get(verb)
    if change is None:
        raise unknown(posted)
    try:
        where, said = change(backend, caller, name, posted)
    except PgbeatError as error:
        status, _, detail = said_of(request, error)
        # NotFound of the lane is a page of its own.
        return _show(request, backend, caller, name, status=status, error=detail)
    return done(request, where, said)


def _edit(
    request: Request, backend: Backend, caller: Caller, name: str, posted: Mapping[str, str]
) -> Response:
    given = forms.given(lane_form.FIELDS, posted)
    before = forms.before(posted)
    changed = {key for key, value in given.items() if value != before.get(key, "")}
    try:
        changes = lane_form.changes(given, changed)
        if not changes:
            return done(request, path("lanes", name), "Nothing was changed.")
        body = api.LaneChanges.model_validate(changes)
        with backend.unit(caller) as unit:
            lane_control.save(unit, name, body.changes(), only="there")
    except forms.REFUSED as error:
        status, errors = forms.refused(request, error, given)
        form = Form(given, errors, posted.get("before", ""))
        said = forms.headline(errors, "Nothing was changed")
        return _show(request, backend, caller, name, form=form, status=status, error=said)
    return done(request, path("lanes", name), f"Lane '{name}' was changed.")


Posted = Mapping[str, str]
#: Where it leads to, and what is said there.
Done = tuple[str, str]


def _pause(backend: Backend, caller: Caller, name: str, posted: Posted) -> Done:
    api.pause_lane(backend, caller, name)
    return path("lanes", name), f"Lane '{name}' is paused; what has a slot goes on."


def _resume(backend: Backend, caller: Caller, name: str, posted: Posted) -> Done:
    api.resume_lane(backend, caller, name)
    return path("lanes", name), f"Lane '{name}' goes on."


def _delete(backend: Backend, caller: Caller, name: str, posted: Posted) -> Done:
    said = api.delete_lane(backend, caller, name, force=posted.get("force") == "yes")
    return path("lanes"), f"{said.message}."


def _release(backend: Backend, caller: Caller, name: str, posted: Posted) -> Done:
    number = posted.get("direct", "").removeprefix("direct/")
    if not (number.isascii() and number.isdigit()) or not 0 < int(number) < 2**31:
        raise NotFound(f"{posted.get('direct', '')!r} is no direct execution")
    said = api.release_reservation(backend, caller, name, int(number))
    return path("lanes", name), f"{said.message}."


def _move(where: str, beside: str = "") -> Callable[[Backend, Caller, str, Posted], Done]:
    """Moves job `job`, next to the one that the field `beside` has: whoever was there when the page
    was made."""

    def move(backend: Backend, caller: Caller, name: str, posted: Posted) -> Done:
        body: dict[str, Any] = {"where": where}
        if beside:
            body["other"] = _job(posted.get(beside, ""))
        job_id = _job(posted.get("job", ""))
        moved = jobs_api.move_job(backend, caller, job_id, jobs_api.JobMove.model_validate(body))
        said = f"Job {str(job_id)[:8]} is number {moved.place} of the line."
        return f"{path('lanes', name)}#job-{job_id}", said

    return move


def _job(written: str) -> UUID:
    try:
        return UUID(written)
    except ValueError:
        raise NotFound(f"{written!r} is no job") from None


_CHANGES: dict[str, Callable[[Backend, Caller, str, Posted], Done]] = {
    "pause": _pause,
    "resume": _resume,
    "delete": _delete,
    "release": _release,
    "first": _move("front"),
    "up": _move("before", "ahead"),
    "down": _move("after", "behind"),
    "last": _move("back"),
}
