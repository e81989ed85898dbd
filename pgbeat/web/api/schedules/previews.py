"""`/admin/scheduled-jobs/preview`: what a schedule would be, before it is saved."""

import time
from datetime import datetime
from itertools import islice
from typing import Annotated
from zoneinfo import ZoneInfo

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field
from sqlalchemy import Connection

from pgbeat.access import audit, audit_words
from pgbeat.beat.verbs.dry_run import dry_run_of
from pgbeat.broker.publishing.unit_of_work import UnitOfWork
from pgbeat.database import connections
from pgbeat.schedules import checked, control
from pgbeat.schedules.forecast import Expected, of_schedule
from pgbeat.schedules.model import Schedule
from pgbeat.schedules.timetable_words import timetable
from pgbeat.web.api.bodies import Json
from pgbeat.web.api.schedules.schedule_models import Name, NewSchedule, ScheduleChanges
from pgbeat.web.backend import WebBackend
from pgbeat.web.calls import AdminCall

router = APIRouter(prefix="/admin/scheduled-jobs", tags=["scheduled jobs"])

_TIMES = 5

Checked = Annotated[bool, Query(description="Evaluate its condition and its policies, too.")]


class PreviewedTime(BaseModel):
    """A due time."""

    at: datetime
    local: str = Field(
        description="In the schedule's time zone.", examples=["Fri 2026-11-27 02:00 CET"]
    )
    skip: str | None = Field(description="Why it will be skipped, if that is known.")


class PreviewedChange(BaseModel):
    """A field that changes, in words."""

    field: str
    before: str | None
    after: str | None


class ConditionResult(BaseModel):
    """What its launcher and its policies say now."""

    outcome: str = Field(examples=["launched", "skipped", "failed", "waiting"])
    reason: str | None
    error: str | None
    seconds: float = Field(description="How long that took.")


class SchedulePreview(BaseModel):
    """What a schedule would be. Nothing was saved or launched."""

    timetable: str = Field(description="In words.", examples=["every day at 02:00 (Europe/Oslo)"])
    timezone: str
    upcoming: list[PreviewedTime]
    changes: list[PreviewedChange] = Field(description="What an edit would change.")
    condition: ConditionResult | None = Field(description="With `check`.")


@router.post("/preview", summary="Preview a new schedule")
def preview_schedule(call: AdminCall, body: NewSchedule, check: Checked = False) -> SchedulePreview:
    """Checks a schedule as if it were created, and says when it would be due. Saves nothing."""
    values = body.model_dump(exclude_unset=True, exclude_none=True)
    with call.work() as unit:
        return of_new(unit, call.backend, values, is_check=check)


def of_new(
    unit: UnitOfWork, backend: WebBackend, values: Json, *, is_check: bool
) -> SchedulePreview:
    """Returns the preview of a new schedule; with `is_check`, of its condition too."""
    with unit.transaction(dry_run=True):
        row = checked.add(unit, values)
        preview = _preview(backend, unit, None, row)
    return _checked(backend, unit, preview, row) if is_check else preview


@router.post("/{name}/preview", summary="Preview changes of a schedule")
def preview_changes(
    call: AdminCall, name: Name, body: ScheduleChanges, check: Checked = False
) -> SchedulePreview:
    """Checks changes as if they were made, and says what would change. Saves nothing."""
    values = body.model_dump(exclude_unset=True)
    with call.work() as unit:
        return of_changes(unit, call.backend, name, values, is_check=check)


def of_changes(
    unit: UnitOfWork, backend: WebBackend, name: str, values: Json, *, is_check: bool
) -> SchedulePreview:
    """Returns the preview of a schedule's changes; with `is_check`, of its condition too."""
    with unit.transaction(dry_run=True):
        before, row = checked.edit(unit, name, values)
        preview = _preview(backend, unit, before, row)
    return _checked(backend, unit, preview, row) if is_check else preview


def due_times(unit: UnitOfWork, backend: WebBackend, values: Json) -> SchedulePreview:
    """Returns when a new schedule with these values would be due; its task is not checked."""
    with unit.transaction(dry_run=True):
        preview = _preview(backend, unit, None, control.add(unit, **values))
    return preview


def _preview(
    backend: WebBackend, unit: UnitOfWork, before: Schedule | None, row: Schedule
) -> SchedulePreview:
    now = connections.now(unit.connection)
    zone = row.timezone or backend.timezone
    words, plain = timetable(row, backend.timezone)
    return SchedulePreview(
        timetable=words or plain,
        timezone=zone,
        upcoming=[
            PreviewedTime(at=due.at, local=_local(due.at, zone), skip=due.skip)
            for due in _upcoming(unit.connection, row, now, backend.timezone)
        ],
        changes=[
            PreviewedChange(field=change.column, before=change.before, after=change.after)
            for change in _changes(before, row)
        ],
        condition=None,
    )


def _upcoming(
    connection: Connection, row: Schedule, now: datetime, timezone: str
) -> list[Expected]:
    times = row.timetable(timezone)
    if times is None:
        return []
    return list(islice(of_schedule(connection, row, times, now, timezone), _TIMES))


def _local(at: datetime, zone: str) -> str:
    clock = "%H:%M:%S" if at.second else "%H:%M"
    return f"{at.astimezone(ZoneInfo(zone)):%a %Y-%m-%d {clock} %Z}"


def _changes(before: Schedule | None, after: Schedule) -> list[audit_words.Change]:
    if before is None:
        return []
    old, new = audit.plain(before.audited[2]), audit.plain(after.audited[2])
    return audit_words.changes(*audit.differing(old, new))


def _checked(
    backend: WebBackend, unit: UnitOfWork, preview: SchedulePreview, row: Schedule
) -> SchedulePreview:
    began = time.monotonic()
    result = dry_run_of(unit.connection, backend.celery, backend.settings, row)
    condition = ConditionResult(
        outcome=result.outcome,
        reason=result.reason,
        error=result.error,
        seconds=round(time.monotonic() - began, 3),
    )
    return preview.model_copy(update={"condition": condition})
