"""`/admin/scheduled-jobs`: what makes jobs by a timetable."""

from contextlib import suppress
from datetime import datetime, timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Query
from sqlalchemy import Connection

from pgbeat.database import connections
from pgbeat.errors import ConditionError, InvalidSchedule
from pgbeat.jobs import model as jobs
from pgbeat.jobs.prepare import require_call
from pgbeat.monitoring import beats, schedule_health
from pgbeat.monitoring.schedule_health import Health
from pgbeat.schedules import control as schedule_control
from pgbeat.schedules import model as schedules
from pgbeat.schedules.forecast import upcoming
from pgbeat.schedules.model import Schedule
from pgbeat.schedules.registry import check, check_condition
from pgbeat.web.api.bodies import Json
from pgbeat.web.api.labels import LabelFilter, labels_of
from pgbeat.web.api.paging import After, Limit, cursor, read
from pgbeat.web.api.schedule_models import (
    FoundSchedule,
    Name,
    NewSchedule,
    PauseReason,
    RecentJob,
    ScheduleChanges,
    ScheduleCursor,
    ScheduleDetail,
    ScheduleDone,
    SchedulePage,
    SchedulesSwitched,
    shown,
)
from pgbeat.web.backend import Backend, TheBackend
from pgbeat.web.identity import TheAdmin

router = APIRouter(prefix="/admin/scheduled-jobs", tags=["scheduled jobs"])


def _found(row: Schedule, health: Health) -> FoundSchedule:
    return FoundSchedule.model_validate(shown(row, health))


def healths(backend: Backend, connection: Connection, rows: list[Schedule]) -> dict[int, Health]:
    """Returns the health of each schedule by its id."""
    patience = timedelta(seconds=beats.patience(backend.settings))
    return schedule_health.of_schedules(connection, rows, patience)


@router.get("", summary="List schedules")
def list_schedules(
    backend: TheBackend,
    caller: TheAdmin,
    state: Annotated[schedules.State | None, Query()] = None,
    search: Annotated[str | None, Query(max_length=200, description="Part of a name.")] = None,
    label: LabelFilter = None,
    limit: Limit = 50,
    after: After = None,
) -> SchedulePage:
    """Schedules by name."""
    name = None if after is None else read(after, str)[0]
    with backend.transaction() as connection:
        rows = schedules.page(
            connection, namespace=backend.namespace, state=state, search=search, after=name,
            labels=labels_of(label), limit=limit + 1,
        )  # fmt: skip
        found = healths(backend, connection, rows[:limit])
    more = rows[limit - 1].name if len(rows) > limit else None
    return SchedulePage(
        schedules=[_found(row, found[row.id]) for row in rows[:limit]],
        next=None if more is None else cursor(more),
    )


@router.post("", status_code=201, summary="Make a schedule")
def create_schedule(backend: TheBackend, caller: TheAdmin, body: NewSchedule) -> FoundSchedule:
    """Makes a schedule. Task, launcher, arguments and condition are checked against the app."""
    values = body.model_dump(exclude_unset=True, exclude_none=True)
    name = values.pop("name")
    require_call(caller, values.get("task"), values.get("options", {}))
    _try_condition(backend, values)
    with backend.unit(caller) as unit:
        row = schedule_control.add(unit, name, **(backend.schedule_defaults | values))
        check(backend.celery, row)
        health = healths(backend, unit.connection, [row])[row.id]
    return _found(row, health)


def _try_condition(backend: Backend, values: Json) -> None:
    """Refuses a condition that can never hold; one that fails as things are may be mended."""
    condition = values.get("condition_sql")
    if condition is None or not condition.strip():
        return
    engine = connections.engine(backend.settings.url, "pgbeat condition")
    with engine.connect() as connection, suppress(ConditionError):
        check_condition(connection, condition, backend.settings.condition_timeout)


@router.patch("/{name}", summary="Change a schedule")
def update_schedule(
    backend: TheBackend, caller: TheAdmin, name: Name, body: ScheduleChanges
) -> ScheduleDone:
    """Changes what is given. A new timetable takes the place of the old one, and counts from
    now."""
    values = body.model_dump(exclude_unset=True)
    enabled = values.pop("enabled", None)
    if not values and enabled is None:
        raise InvalidSchedule.of(
            "", "required", "there is nothing to change; give at least one field"
        )
    values = {key: _cleared(key) if value is None else value for key, value in values.items()}
    if not values.keys().isdisjoint(schedules.TIMETABLES):
        values = dict.fromkeys(schedules.TIMETABLES) | values
    require_call(caller, values.get("task"), values.get("options", {}))
    _try_condition(backend, values)
    with backend.unit(caller) as unit:
        row = schedule_control.edit(unit, name, values, enabled=enabled).after
        if _CHECKED & values.keys():
            check(backend.celery, row)
    note = _FROM_CODE if row.source == "code" and _CODE_OWNS & values.keys() else None
    return ScheduleDone(
        message=f"Schedule '{name}' updated", next_run=_next(backend, row), note=note
    )


#: What says what is launched: checked against the app where it is changed.
_CHECKED = {"task", "launcher", "args", "kwargs", "options"}
#: What the code of the app decides about the schedules that it makes.
_CODE_OWNS = {"task", "timezone", "args", "kwargs", "options", *schedules.TIMETABLES}
_FROM_CODE = "it is made by the app's code, and beat sets it back when it starts"
_CLEARABLE = {
    "task", "queue", "condition_sql", "timezone", "starts_at", "ends_at", "max_runs", "calendar",
    "grace", "min_interval", "probe_after", "owner", "pause_after_failures", "description",
    *schedules.TIMETABLES,
}  # fmt: skip
_EMPTY = {"jitter": timedelta(0), "job_policy": {}, "options": {}, "args": [], "kwargs": {},
          "labels": {}, "metadata": {}}  # fmt: skip


def _cleared(key: str) -> Any:
    """What a field is without a value. Raises `InvalidSchedule` for one that has always one."""
    if key in _EMPTY:
        return _EMPTY[key]
    if key not in _CLEARABLE:
        raise InvalidSchedule.of(
            key, "required", f"{key} can't be null; leave it out to keep it as it is"
        )
    return None


@router.delete("/{name}", summary="Delete a schedule")
def delete_schedule(backend: TheBackend, caller: TheAdmin, name: Name) -> ScheduleDone:
    """Deletes a schedule. Its history stays until it is as old as it is kept."""
    with backend.unit(caller) as unit:
        row = schedule_control.remove(unit, name)
    note = "it is made by the app's code, and comes back when beat starts; disable it instead"
    return ScheduleDone(
        message=f"Schedule '{name}' deleted", note=note if row.source == "code" else None
    )


def _switched(backend: Backend, row: Schedule, past: str) -> ScheduleDone:
    return ScheduleDone(message=f"Schedule '{row.name}' {past}", next_run=_next(backend, row))


@router.post("/{name}/enable", summary="Enable a schedule")
def enable_schedule(backend: TheBackend, caller: TheAdmin, name: Name) -> ScheduleDone:
    """Puts a schedule (back) in service."""
    with backend.unit(caller) as unit:
        row = schedule_control.enable(unit, name).after
    return _switched(backend, row, "enabled")


@router.post("/{name}/disable", summary="Disable a schedule")
def disable_schedule(backend: TheBackend, caller: TheAdmin, name: Name) -> ScheduleDone:
    """Takes a schedule out of service."""
    with backend.unit(caller) as unit:
        row = schedule_control.disable(unit, name).after
    return _switched(backend, row, "disabled")


@router.post("/{name}/pause", summary="Pause a schedule")
def pause_schedule(
    backend: TheBackend, caller: TheAdmin, name: Name, body: PauseReason | None = None
) -> ScheduleDone:
    """Holds a schedule; what falls due meanwhile is not made up for."""
    reason = None if body is None else body.reason
    with backend.unit(caller) as unit:
        row = schedule_control.pause(unit, name, reason).after
    return _switched(backend, row, "paused")


@router.post("/{name}/resume", summary="Resume a schedule")
def resume_schedule(backend: TheBackend, caller: TheAdmin, name: Name) -> ScheduleDone:
    """Lets a paused schedule go on."""
    with backend.unit(caller) as unit:
        row = schedule_control.resume(unit, name).after
    return _switched(backend, row, "resumed")


@router.post("/pause", summary="Pause all schedules")
def pause_schedules(
    backend: TheBackend, caller: TheAdmin, body: PauseReason | None = None
) -> SchedulesSwitched:
    """Holds all schedules that there are now; those that are added later are not paused."""
    reason = None if body is None else body.reason
    with backend.unit(caller) as unit:
        made = schedule_control.pause_all(unit, reason)
    return SchedulesSwitched(schedules=[each.after.name for each in made])


@router.post("/resume", summary="Resume all schedules")
def resume_schedules(
    backend: TheBackend, caller: TheAdmin, body: PauseReason | None = None
) -> SchedulesSwitched:
    """Lets all paused schedules go on; with a reason, those that were paused for it."""
    reason = None if body is None else body.reason
    with backend.unit(caller) as unit:
        made = schedule_control.resume_all(unit, reason)
    return SchedulesSwitched(schedules=[each.after.name for each in made])


@router.get("/{name}/cursor", summary="Get a launcher's cursor")
def get_cursor(backend: TheBackend, caller: TheAdmin, name: Name) -> ScheduleCursor:
    """What the schedule's launcher keeps from one decision to the next."""
    with backend.transaction() as connection:
        row = schedules.get(connection, name, namespace=backend.namespace)
    return ScheduleCursor(cursor=row.cursor)


@router.put("/{name}/cursor", summary="Set a launcher's cursor")
def set_cursor(
    backend: TheBackend, caller: TheAdmin, name: Name, body: ScheduleCursor
) -> ScheduleCursor:
    """Sets where the schedule's launcher goes on from; null clears it."""
    with backend.unit(caller) as unit:
        return ScheduleCursor(cursor=schedule_control.set_cursor(unit, name, body.cursor))


@router.get("/{name}", summary="Get a schedule")
def get_schedule(backend: TheBackend, caller: TheAdmin, name: Name) -> ScheduleDetail:
    """A schedule, with its newest jobs."""
    with backend.transaction() as connection:
        row = schedules.get(connection, name, namespace=backend.namespace)
        which = jobs.Filter(backend.namespace, schedule_id=row.id)
        newest = jobs.listing(connection, which, limit=10)
        health = healths(backend, connection, [row])[row.id]
    recent = [
        RecentJob(
            job_id=job.id,
            status=job.state,
            created_at=job.created_at,
            completed_at=job.finished_at,
        )
        for job in newest
    ]
    return ScheduleDetail.model_validate(shown(row, health) | {"recent_jobs": recent})


def _next(backend: Backend, row: Schedule) -> datetime | None:
    """When a schedule is due next, beat having computed it or not yet."""
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
