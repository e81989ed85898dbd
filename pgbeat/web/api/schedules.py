"""`/admin/scheduled-jobs`: lists, shows, creates and changes schedules."""

from datetime import datetime, timedelta
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from sqlalchemy import Connection

from pgbeat.broker.publishing.unit_of_work import UnitOfWork
from pgbeat.database import connections
from pgbeat.errors import InvalidInput, InvalidSchedule, Problem, Problems
from pgbeat.jobs.user_limits import require_call
from pgbeat.monitoring import beats, schedule_health, timeline_schedules
from pgbeat.monitoring.schedule_health import Health
from pgbeat.monitoring.timeline_schedules import Chosen
from pgbeat.schedules import control as schedule_control
from pgbeat.schedules import mistakes, ticks
from pgbeat.schedules import model as schedules
from pgbeat.schedules.control import Switched
from pgbeat.schedules.forecast import upcoming
from pgbeat.schedules.model import Schedule
from pgbeat.schedules.registry import check, condition_mistakes
from pgbeat.views import schedules as views
from pgbeat.web.api.bodies import Json
from pgbeat.web.api.labels import LabelFilter, labels_of
from pgbeat.web.api.paging import After, Limit, read_one, split
from pgbeat.web.api.schedule_models import (
    FoundSchedule,
    Name,
    NewSchedule,
    PauseReason,
    ScheduleChanges,
    ScheduleCursor,
    ScheduleDetail,
    ScheduleDone,
    SchedulePage,
    SchedulesSwitched,
)
from pgbeat.web.backend import Backend, TheBackend
from pgbeat.web.identity import Caller, TheAdmin, TheViewer

router = APIRouter(prefix="/admin/scheduled-jobs", tags=["scheduled jobs"])


def _found(row: Schedule, health: Health) -> FoundSchedule:
    return FoundSchedule.model_validate(views.with_health(row, health))


def healths(backend: Backend, connection: Connection, rows: list[Schedule]) -> dict[int, Health]:
    """Returns the health of each schedule by its id."""
    patience = beats.patience(backend.settings)
    return schedule_health.of_schedules(connection, rows, patience)


def worst(backend: Backend, connection: Connection, search: str | None, limit: int) -> Chosen:
    """Returns schedules by their health, the worst first."""
    patience = beats.patience(backend.settings)
    return timeline_schedules.worst(
        connection, backend.namespace, patience, search=search, limit=limit
    )


@router.get("", summary="List schedules")
def list_schedules(
    backend: TheBackend,
    caller: TheViewer,
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
) -> SchedulePage:
    """Lists schedules by name, or those first that fail or are late."""
    name, labels = read_one(after, str), labels_of(label)
    following = None
    with backend.transaction() as connection:
        if sort == "health":
            if state or labels or name is not None:
                said = "sort=health goes neither with state and label nor with after"
                raise InvalidInput.of("sort", "conflict", said)
            chosen = worst(backend, connection, search, limit)
            page, found = chosen.schedules, chosen.healths
        else:
            rows = schedules.page(
                connection,
                namespace=backend.namespace,
                state=state,
                search=search,
                after=name,
                labels=labels,
                limit=limit + 1,
            )
            page, following = split(rows, limit, "name")
            found = healths(backend, connection, page)
    redactor = backend.redactor(caller)
    rows = redactor.rows(page)
    healthy = [redactor.health(found[row.id], row.task) for row in rows]
    return SchedulePage(schedules=list(map(_found, rows, healthy)), next=following)


@router.post("", status_code=201, summary="Create a schedule")
def create_schedule(backend: TheBackend, caller: TheAdmin, body: NewSchedule) -> FoundSchedule:
    """Creates a schedule, once its task, launcher, arguments and condition are checked."""
    values, known = new_values(backend, caller, body)
    with backend.unit(caller) as unit:
        row = add(unit, backend, values, known)
        health = healths(backend, unit.connection, [row])[row.id]
    return _found(row, health)


def new_values(backend: Backend, caller: Caller, body: NewSchedule) -> tuple[Json, list[Problem]]:
    """Returns the values of a new schedule, and the mistakes in its call and condition."""
    values = body.model_dump(exclude_unset=True, exclude_none=True)
    return values, _known(backend, caller, values)


def _known(backend: Backend, caller: Caller, values: Json) -> list[Problem]:
    """Returns the mistakes in a call and a condition, before rows are locked."""
    problems = Problems()
    with problems.within():
        require_call(caller, values.get("task"), values.get("options", {}))
    return problems + condition_mistakes(backend.settings, values.get("condition_sql"))


def add(unit: UnitOfWork, backend: Backend, values: Json, known: list[Problem]) -> Schedule:
    """Adds a schedule with `new_values`, and checks it against the app."""

    def change(values: Json) -> Schedule:
        row = schedule_control.add(unit, **values)
        check(backend.celery, row)
        return row

    return mistakes.attempt(unit.connection, values, change, is_new=True, known=known)


@router.patch("/{name}", summary="Change a schedule")
def update_schedule(
    backend: TheBackend, caller: TheAdmin, name: Name, body: ScheduleChanges
) -> ScheduleDone:
    """Changes the given fields. A new timetable replaces the old one, and starts now."""
    values, enabled, known = changed_values(backend, caller, body)
    with backend.unit(caller) as unit:
        row = edit(unit, backend, name, values, enabled, known).after
    note = _FROM_CODE if row.source == "code" and _CODE_OWNS & values.keys() else None
    return ScheduleDone(
        message=f"Schedule '{name}' updated", next_run=_next(backend, row), note=note
    )


def changed_values(
    backend: Backend, caller: Caller, body: ScheduleChanges
) -> tuple[Json, bool | None, list[Problem]]:
    """Returns the changes, whether to enable it, and the mistakes in its call and condition."""
    values = body.model_dump(exclude_unset=True)
    enabled = values.pop("enabled", None)
    if not values and enabled is None:
        raise InvalidSchedule.of(
            "", "required", "there is nothing to change; give at least one field"
        )
    problems = Problems()
    for key in [key for key, value in values.items() if value is None]:
        with problems.within():
            values[key] = _cleared(key)
    if not values.keys().isdisjoint(schedules.TIMETABLES):
        values = dict.fromkeys(schedules.TIMETABLES) | values
    return values, enabled, problems + _known(backend, caller, values)


def edit(
    unit: UnitOfWork,
    backend: Backend,
    name: str,
    values: Json,
    enabled: bool | None,
    known: list[Problem],
) -> Switched:
    """Makes `changed_values`, and checks them against the app."""

    def change(values: Json) -> Switched:
        edited = schedule_control.edit(unit, name, values, enabled=enabled)
        if _CHECKED & values.keys():
            check(backend.celery, edited.after)
        return edited

    return mistakes.attempt(unit.connection, values, change, is_new=False, known=known)


#: Fields that are checked against the app.
_CHECKED = {"task", "launcher", "args", "kwargs", "options"}
#: Fields that the app's code decides about the schedules that it has.
_CODE_OWNS = {"task", "timezone", "args", "kwargs", "options", *schedules.TIMETABLES}
_FROM_CODE = "the app's code has it, and beat resets it when it starts"
_CLEARABLE = {
    "task", "queue", "condition_sql", "timezone", "starts_at", "ends_at", "max_runs", "calendar",
    "grace", "min_interval", "probe_after", "owner", "pause_after_failures", "check_in_url",
    "description",
    *schedules.TIMETABLES,
}  # fmt: skip
_EMPTY = {"jitter": timedelta(0), "job_policy": {}, "options": {}, "args": [], "kwargs": {},
          "labels": {}, "metadata": {}}  # fmt: skip


def _cleared(key: str) -> Any:
    """Returns the empty value of a field. Raises `InvalidSchedule` if it can't be empty."""
    if key in _EMPTY:
        return _EMPTY[key]
    if key not in _CLEARABLE:
        raise InvalidSchedule.of(
            key, "required", f"{key} can't be null; leave it out to keep it as it is"
        )
    return None


@router.delete("/{name}", summary="Delete a schedule")
def delete_schedule(backend: TheBackend, caller: TheAdmin, name: Name) -> ScheduleDone:
    """Deletes a schedule. Its history stays for its retention."""
    with backend.unit(caller) as unit:
        row = schedule_control.remove(unit, name)
    note = "the app's code has it, and beat adds it again when it starts; disable it instead"
    return ScheduleDone(
        message=f"Schedule '{name}' deleted", note=note if row.source == "code" else None
    )


def _switched(backend: Backend, row: Schedule, past: str) -> ScheduleDone:
    return ScheduleDone(message=f"Schedule '{row.name}' {past}", next_run=_next(backend, row))


@router.post("/{name}/enable", summary="Enable a schedule")
def enable_schedule(backend: TheBackend, caller: TheAdmin, name: Name) -> ScheduleDone:
    """Enables a schedule."""
    with backend.unit(caller) as unit:
        row = schedule_control.enable(unit, name).after
    return _switched(backend, row, "enabled")


@router.post("/{name}/disable", summary="Disable a schedule")
def disable_schedule(backend: TheBackend, caller: TheAdmin, name: Name) -> ScheduleDone:
    """Disables a schedule."""
    with backend.unit(caller) as unit:
        row = schedule_control.disable(unit, name).after
    return _switched(backend, row, "disabled")


@router.post("/{name}/pause", summary="Pause a schedule")
def pause_schedule(
    backend: TheBackend, caller: TheAdmin, name: Name, body: PauseReason | None = None
) -> ScheduleDone:
    """Holds a schedule. Due times in the pause are not caught up."""
    with backend.unit(caller) as unit:
        row = schedule_control.pause(unit, name, body.reason if body else None).after
    return _switched(backend, row, "paused")


@router.post("/{name}/resume", summary="Resume a schedule")
def resume_schedule(backend: TheBackend, caller: TheAdmin, name: Name) -> ScheduleDone:
    """Lets a paused schedule continue."""
    with backend.unit(caller) as unit:
        row = schedule_control.resume(unit, name).after
    return _switched(backend, row, "resumed")


@router.post("/pause", summary="Pause all schedules")
def pause_schedules(
    backend: TheBackend, caller: TheAdmin, body: PauseReason | None = None
) -> SchedulesSwitched:
    """Holds all existing schedules. Later ones are not paused."""
    with backend.unit(caller) as unit:
        made = schedule_control.pause_all(unit, body.reason if body else None)
    return SchedulesSwitched(schedules=[each.after.name for each in made])


@router.post("/resume", summary="Resume all schedules")
def resume_schedules(
    backend: TheBackend, caller: TheAdmin, body: PauseReason | None = None
) -> SchedulesSwitched:
    """Lets all paused schedules continue, or only those that were paused for this reason."""
    with backend.unit(caller) as unit:
        made = schedule_control.resume_all(unit, body.reason if body else None)
    return SchedulesSwitched(schedules=[each.after.name for each in made])


@router.get("/{name}/cursor", summary="Get a launcher's cursor")
def get_cursor(backend: TheBackend, caller: TheViewer, name: Name) -> ScheduleCursor:
    """Returns what the schedule's launcher keeps from one tick to the next."""
    with backend.transaction() as connection:
        row = schedules.get(connection, name, namespace=backend.namespace)
    return ScheduleCursor(cursor=row.cursor)


@router.put("/{name}/cursor", summary="Set a launcher's cursor")
def set_cursor(
    backend: TheBackend, caller: TheAdmin, name: Name, body: ScheduleCursor
) -> ScheduleCursor:
    """Sets the cursor of the schedule's launcher; null clears it."""
    with backend.unit(caller) as unit:
        return ScheduleCursor(cursor=schedule_control.set_cursor(unit, name, body.cursor))


@router.get("/{name}", summary="Get a schedule")
def get_schedule(backend: TheBackend, caller: TheViewer, name: Name) -> ScheduleDetail:
    """Returns a schedule with its newest jobs."""
    with backend.transaction() as connection:
        row = schedules.get(connection, name, namespace=backend.namespace)
        health = healths(backend, connection, [row])[row.id]
        redactor = backend.redactor(caller)
        row, health = redactor.row(row, row.task), redactor.health(health, row.task)
        last = next(map(redactor.tick, ticks.history(connection, row.id, limit=1)), None)
        found = views.detail(connection, row, health, last)
    return ScheduleDetail.model_validate(found)


def _next(backend: Backend, row: Schedule) -> datetime | None:
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
