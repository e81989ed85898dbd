"""`/admin/scheduled-jobs`: lists, shows, creates and changes schedules."""

from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, Literal, NamedTuple

from fastapi import APIRouter, Query
from sqlalchemy import Connection

from pgbeat.database import connections
from pgbeat.errors import InvalidInput
from pgbeat.jobs.preparing.details import parse_labels
from pgbeat.monitoring import beats, schedule_health, timeline_schedules
from pgbeat.monitoring.schedule_health import Health
from pgbeat.schedules import checked, ticks
from pgbeat.schedules import control as schedule_control
from pgbeat.schedules import model as schedules
from pgbeat.schedules.control import Switched
from pgbeat.schedules.forecast import upcoming
from pgbeat.schedules.model import Schedule
from pgbeat.views import schedules as views
from pgbeat.web.api.labels import LabelFilter
from pgbeat.web.api.paging import After, Limit, read_one, split
from pgbeat.web.api.schedules import schedule_models as models
from pgbeat.web.backend import WebBackend
from pgbeat.web.calls import AdminCall, ViewerCall, WebCall

router = APIRouter(prefix="/admin/scheduled-jobs", tags=["scheduled jobs"])


def _found(row: Schedule, health: Health) -> models.FoundSchedule:
    return models.FoundSchedule.model_validate(views.with_health(row, health))


def healths(backend: WebBackend, connection: Connection, rows: list[Schedule]) -> dict[int, Health]:
    """Returns the health of each schedule by its id."""
    patience = beats.patience(backend.settings)
    return schedule_health.of_schedules(connection, rows, patience)


class SchedulesListed(NamedTuple):
    """Schedules with their health, masked, and the cursor of those that follow."""

    rows: list[Schedule]
    healths: dict[int, Health]
    next: str | None


def listed(
    call: WebCall,
    connection: Connection,
    search: str | None,
    limit: int,
    *,
    by_health: bool,
    **more: Any,
) -> SchedulesListed:
    """Returns schedules with `more` of `schedules.page`; with `by_health`, the worst first."""
    following = None
    if by_health:
        patience = beats.patience(call.backend.settings)
        rows, health, _ = timeline_schedules.worst(
            connection, call.namespace, patience, search=search, limit=limit
        )
    else:
        rows = schedules.page(
            connection, namespace=call.namespace, search=search, limit=limit + 1, **more
        )
        rows, following = split(rows, limit, "name")
        health = healths(call.backend, connection, rows)
    masked = {row.id: call.redactor.health(health[row.id], row.task) for row in rows}
    return SchedulesListed(call.redactor.rows(rows), masked, following)


@router.get("", summary="List schedules")
def list_schedules(
    call: ViewerCall,
    state: Annotated[schedules.State | None, Query()] = None,
    search: Annotated[str | None, Query(max_length=200, description="Part of a name.")] = None,
    label: LabelFilter = None,
    sort: Annotated[
        Literal["name", "health"],
        Query(
            description="`health` returns the worst, chosen by what is newest, as one page. "
            "It goes with `search` only."
        ),
    ] = "name",
    limit: Limit = 50,
    after: After = None,
) -> models.SchedulePage:
    """Lists schedules by name, or those first that fail or are late."""
    more = {"state": state, "after": read_one(after, str), "labels": parse_labels(label or ())}
    by_health = sort == "health"
    if by_health and any(more.values()):
        message = "sort=health goes neither with state and label nor with after"
        raise InvalidInput.of("sort", "conflict", message)
    with call.listing() as connection:
        page = listed(call, connection, search, limit, by_health=by_health, **more)
    shown = [_found(row, page.healths[row.id]) for row in page.rows]
    return models.SchedulePage(schedules=shown, next=page.next)


@router.post("", status_code=201, summary="Create a schedule")
def create_schedule(call: AdminCall, body: models.NewSchedule) -> models.FoundSchedule:
    """Creates a schedule, once its task, launcher, arguments and condition are checked."""
    values = body.model_dump(exclude_unset=True, exclude_none=True)
    with call.unit() as unit:
        row = checked.add(unit, values)
        health = healths(call.backend, unit.connection, [row])[row.id]
    return _found(row, health)


@router.patch("/{name}", summary="Change a schedule")
def update_schedule(
    call: AdminCall, name: models.Name, body: models.ScheduleChanges
) -> models.ScheduleDone:
    """Changes the given fields. A new timetable replaces the old one, and starts now."""
    with call.unit() as unit:
        row = checked.edit(unit, name, body.model_dump(exclude_unset=True)).after
    is_reset = row.source == "code" and checked.CODE_OWNS & body.model_fields_set
    note = checked.RESET if is_reset else None
    return models.ScheduleDone(
        message=f"Schedule '{name}' updated", next_run=_next(call.backend, row), note=note
    )


@router.delete("/{name}", summary="Delete a schedule")
def delete_schedule(call: AdminCall, name: models.Name) -> models.ScheduleDone:
    """Deletes a schedule. Its history stays for its retention."""
    with call.unit() as unit:
        row = schedule_control.remove(unit, name)
    return models.ScheduleDone(
        message=f"Schedule '{name}' deleted", note=checked.ADDED if row.source == "code" else None
    )


def _switched(
    call: WebCall, name: str, switch: Callable[..., Switched], past: str, *reason: str | None
) -> models.ScheduleDone:
    with call.unit() as unit:
        row = switch(unit, name, *reason).after
    return models.ScheduleDone(
        message=f"Schedule '{name}' {past}", next_run=_next(call.backend, row)
    )


@router.post("/{name}/enable", summary="Enable a schedule")
def enable_schedule(call: AdminCall, name: models.Name) -> models.ScheduleDone:
    """Enables a schedule."""
    return _switched(call, name, schedule_control.enable, "enabled")


@router.post("/{name}/disable", summary="Disable a schedule")
def disable_schedule(call: AdminCall, name: models.Name) -> models.ScheduleDone:
    """Disables a schedule."""
    return _switched(call, name, schedule_control.disable, "disabled")


@router.post("/{name}/pause", summary="Pause a schedule")
def pause_schedule(
    call: AdminCall, name: models.Name, body: models.PauseReason | None = None
) -> models.ScheduleDone:
    """Holds a schedule. Due times in the pause are not caught up."""
    reason = body.reason if body else None
    return _switched(call, name, schedule_control.pause, "paused", reason)


@router.post("/{name}/resume", summary="Resume a schedule")
def resume_schedule(call: AdminCall, name: models.Name) -> models.ScheduleDone:
    """Lets a paused schedule continue."""
    return _switched(call, name, schedule_control.resume, "resumed")


@router.post("/pause", summary="Pause all schedules")
def pause_schedules(
    call: AdminCall, body: models.PauseReason | None = None
) -> models.SchedulesSwitched:
    """Holds all existing schedules. Later ones are not paused."""
    with call.unit() as unit:
        changes = schedule_control.pause_all(unit, body.reason if body else None)
    return models.SchedulesSwitched(schedules=[change.after.name for change in changes])


@router.post("/resume", summary="Resume all schedules")
def resume_schedules(
    call: AdminCall, body: models.PauseReason | None = None
) -> models.SchedulesSwitched:
    """Lets all paused schedules continue, or only those that were paused for this reason."""
    with call.unit() as unit:
        changes = schedule_control.resume_all(unit, body.reason if body else None)
    return models.SchedulesSwitched(schedules=[change.after.name for change in changes])


@router.get("/{name}/cursor", summary="Get a launcher's cursor")
def get_cursor(call: ViewerCall, name: models.Name) -> models.ScheduleCursor:
    """Returns what the schedule's launcher keeps from one tick to the next."""
    with call.backend.transaction() as connection:
        row = schedules.get(connection, name, namespace=call.namespace)
    return models.ScheduleCursor(cursor=row.cursor)


@router.put("/{name}/cursor", summary="Set a launcher's cursor")
def set_cursor(
    call: AdminCall, name: models.Name, body: models.ScheduleCursor
) -> models.ScheduleCursor:
    """Sets the cursor of the schedule's launcher; null clears it."""
    with call.unit() as unit:
        return models.ScheduleCursor(cursor=schedule_control.set_cursor(unit, name, body.cursor))


@router.get("/{name}", summary="Get a schedule")
def get_schedule(call: ViewerCall, name: models.Name) -> models.ScheduleDetail:
    """Returns a schedule with its newest jobs."""
    with call.backend.transaction() as connection:
        row = schedules.get(connection, name, namespace=call.namespace)
        health = healths(call.backend, connection, [row])[row.id]
        redactor = call.redactor
        row, health = redactor.row(row, row.task), redactor.health(health, row.task)
        newest = ticks.history(connection, row.id, limit=1)
        last = redactor.tick(newest[0], row.task) if newest else None
        detail = views.detail(connection, row, health, last)
    return models.ScheduleDetail.model_validate(detail)


def _next(backend: WebBackend, row: Schedule) -> datetime | None:
    """Returns when a schedule is due next, even before beat has computed it."""
    if not row.enabled or row.paused_at is not None:
        return None
    if row.next_run is not None:
        return row.next_run
    timetable = row.timetable(backend.timezone)
    if timetable is None:
        return None
    with backend.session() as connection:
        first = next(upcoming(row, timetable, connections.now(connection)), None)
    return None if first is None else first.at
