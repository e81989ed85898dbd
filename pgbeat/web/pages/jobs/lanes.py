"""`/console/lanes`: lanes with their slots and waiting lines."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fastapi import APIRouter, Response

from pgbeat.broker.publishing.unit_of_work import UnitOfWork
from pgbeat.errors import ConfigError, NotFound, PgbeatError
from pgbeat.jobs.lanes import concurrency, occupancy
from pgbeat.jobs.lanes import model as lanes
from pgbeat.jobs.lanes.occupancy import InLine
from pgbeat.jobs.lanes.waiting import Where
from pgbeat.jobs.policy import task_policies
from pgbeat.jobs.rows import ids
from pgbeat.jobs.verbs import control, lane_control
from pgbeat.web.api.visible import visible_job
from pgbeat.web.pages import forms, load_chart
from pgbeat.web.pages.forms import Form
from pgbeat.web.pages.jobs import lane_form
from pgbeat.web.pages.render import AdminVisit, Name, PageRoute, ViewerVisit, Visit, path

router = APIRouter(route_class=PageRoute)

_SHOWN = 50


@router.get("/console/lanes")
def lanes_page(visit: ViewerVisit) -> Response:
    """Shows all lanes."""
    with visit.reading() as connection:
        rows = lanes.listing(connection, visit.namespace)
    try:
        tasks, problem = task_policies.all_of(visit.backend.celery), ""
    except ConfigError as error:
        tasks, problem = {}, str(error)
    return visit.page("lanes.html", "lanes", rows=rows, tasks=tasks, problem=problem)


# -- new


@router.get("/console/new/lane")
def new_lane_page(visit: AdminVisit) -> Response:
    """Shows the form."""
    return _new(visit, Form({}))


def _new(visit: Visit, form: Form) -> Response:
    fields = (lane_form.NAME, *lane_form.FIELDS)
    return visit.page("new_lane.html", "lanes", form=form, fields=fields, offers=lane_form.offers())


@router.post("/console/new/lane")
def make_lane(visit: AdminVisit) -> Response:
    """Creates the lane, or shows the form with its mistakes."""
    written = visit.given((lane_form.NAME, *lane_form.FIELDS))
    name = written["name"]
    try:
        if not name:
            raise forms.Mistakes({"name": "the name is missing"})
        _save(visit, name, {key: text for key, text in written.items() if text}, only="new")
    except forms.REFUSED as error:
        return _new(visit, visit.refused(error, written, "No lane was created"))
    return visit.redirect(path("lanes", name), f"Lane '{name}' was created.")


# -- one


@router.get("/console/lanes/{name}")
def lane_page(visit: ViewerVisit, name: Name, span: str = load_chart.USUAL) -> Response:
    """Shows a lane."""
    return _show(visit, name, span=span)


def _show(
    visit: Visit, name: str, *, form: Form | None = None, span: str = load_chart.USUAL, **more: Any
) -> Response:
    with visit.reading() as connection:
        lane = lanes.get(connection, name, namespace=visit.namespace)
        holders = occupancy.holders(connection, lane, limit=_SHOWN)
        # This process may not have loaded the code of the lane's policy.
        is_known = lane.policy is None or lane.policy in concurrency.registered()
        line = occupancy.line(connection, lane, limit=_SHOWN + 1) if is_known else None
        chart = load_chart.chart_of(visit, connection, "lane", name, span)
    return visit.page(
        "lane.html",
        "lanes",
        form=form or forms.original(lane_form.written(lane)),
        lane=lane,
        chart=chart,
        holders=holders,
        line=line,
        neighbours=_neighbours(line or ()),
        shown=_SHOWN,
        fields=lane_form.FIELDS,
        offers=lane_form.offers(),
        **more,
    )


def _neighbours(line: Sequence[InLine]) -> dict[str, tuple[str | None, str | None]]:
    """Returns, for each job in line, the ids of the jobs of its key before and after it.

    In a fair lane its place is one among these; in others all jobs have the same key.
    """
    keys: dict[str, list[str]] = {}
    for waiter in line:
        if not waiter.is_direct:
            keys.setdefault(waiter.fair_key, []).append(waiter.id)
    return {
        job: (before, after)
        for ids in keys.values()
        for before, job, after in zip([None, *ids], ids, [*ids[1:], None], strict=False)
    }


# -- changing


@router.post("/console/lanes/{name}")
def change_lane(visit: AdminVisit, name: Name) -> Response:
    """Does what the form's `do` says."""
    verb = visit.verb(("edit", *_VERBS))
    if verb == "edit":
        return _edit(visit, name)
    try:
        with visit.unit() as unit:
            where, message = _VERBS[verb](visit, unit, name)
    except PgbeatError as error:
        return _show(visit, name, error=error)
    return visit.redirect(where, message)


def _edit(visit: Visit, name: str) -> Response:
    written = visit.given(lane_form.FIELDS)
    changed = visit.changed(written)
    if not changed:
        return visit.redirect(path("lanes", name), "Nothing was changed.")
    try:
        _save(visit, name, changed, only="there")
    except forms.REFUSED as error:
        return _show(visit, name, form=visit.refused(error, written, "Nothing was changed"))
    return visit.redirect(path("lanes", name), f"Lane '{name}' was changed.")


def _save(visit: Visit, name: str, texts: Mapping[str, str], *, only: Any) -> None:
    changes = lane_control.read_changes(forms.read(lane_form.FIELDS, texts))
    with visit.unit() as unit:
        shown = {"max_running": None} if only == "new" else {}  # empty for no limit
        lane_control.save(unit, name, shown | changes, only=only)


#: The path of the next page, and its message.
Done = tuple[str, str]
LaneVerb = Callable[[Visit, UnitOfWork, str], Done]


def _pause(visit: Visit, unit: UnitOfWork, name: str) -> Done:
    lane_control.pause(unit, name)
    return path("lanes", name), f"Lane '{name}' is paused; running jobs continue."


def _resume(visit: Visit, unit: UnitOfWork, name: str) -> Done:
    lane_control.resume(unit, name)
    return path("lanes", name), f"Lane '{name}' continues."


def _delete(visit: Visit, unit: UnitOfWork, name: str) -> Done:
    lane_control.remove(unit, name, force=visit.posted.get("force") == "yes")
    return path("lanes"), f"Lane '{name}' deleted."


def _release(visit: Visit, unit: UnitOfWork, name: str) -> Done:
    number = forms.natural(visit.text("direct").removeprefix("direct/"), 2**31 - 1)
    if number is None:
        raise NotFound(f"there is no direct execution {visit.text('direct', 80)!r}")
    lane_control.release(unit, name, number)
    return path("lanes", name), f"Direct execution {number} released from lane '{name}'."


def _move(where: Where, beside: str = "") -> LaneVerb:
    """Returns the verb that moves job `job`, next to the job in the field `beside` if given."""

    def move(visit: Visit, unit: UnitOfWork, name: str) -> Done:
        job_id = ids.parse(visit.text("job"), "job")
        other = ids.parse(visit.text(beside), "job") if beside else None
        visible_job(unit.connection, visit, job_id)
        _, place = control.move(unit, job_id, where, other)
        message = f"Job {str(job_id)[:8]} is number {place} of the line."
        return f"{path('lanes', name)}#job-{job_id}", message

    return move


_VERBS: dict[str, LaneVerb] = {
    "pause": _pause,
    "resume": _resume,
    "delete": _delete,
    "release": _release,
    "first": _move("front"),
    "up": _move("before", "ahead"),
    "down": _move("after", "behind"),
    "last": _move("back"),
}
