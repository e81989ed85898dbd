"""`/admin/scheduled-jobs/{name}/…`: decisions on a schedule, made now, made so far and to come."""

import time
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Query
from pydantic import AwareDatetime, BaseModel, Field

from pgbeat.beat import control, missed
from pgbeat.beat.dry_run import dry_run
from pgbeat.database import connections
from pgbeat.errors import InvalidPlaceholder
from pgbeat.schedules import calendars, ticks
from pgbeat.schedules import model as schedules
from pgbeat.schedules.forecast import Expected, call, exclusion, upcoming
from pgbeat.timetables import Timetable
from pgbeat.web.api.bodies import Body
from pgbeat.web.api.paging import After, Limit, cursor, moment, number, read
from pgbeat.web.api.schedule_models import Name
from pgbeat.web.backend import TheBackend
from pgbeat.web.identity import TheAdmin

router = APIRouter(prefix="/admin/scheduled-jobs", tags=["scheduled jobs"])


class TriggeredSchedule(BaseModel):
    """What became of a schedule that was decided now."""

    success: bool
    outcome: Literal["launched", "skipped", "failed"]
    job_id: UUID | None
    job_ids: list[UUID] = Field(description="All of its jobs; `job_id` is the first.")
    message: str
    reason: str | None = None
    error: str | None = None


class CheckedSchedule(BaseModel):
    """What would become of a schedule, were it due now."""

    outcome: Literal["launched", "skipped", "failed", "waiting"]
    reason: str | None
    error: str | None
    objections: list[str] = Field(description="What policies say against it, whatever it is.")
    jobs: int = Field(description="How many jobs its launcher asks for.")


class LaunchedJob(BaseModel):
    """A job of a decision; its state is that of its last retry."""

    id: UUID
    run_key: str | None
    state: str | None = Field(description="null where it is no longer kept.")
    error: str | None


class Tick(BaseModel):
    """A decision on a due time."""

    run_time: datetime = Field(description="The due time.")
    decided_at: datetime
    outcome: Literal["success", "skipped", "failed"]
    trigger: str
    job_id: UUID | None
    job_state: str | None
    jobs: list[LaunchedJob] = Field(
        description="All of its jobs: several where the launcher asked for them. `job_id` and "
        "`job_state` are of the first."
    )
    conditions_met: bool
    reason: str | None
    error: str | None
    missed: int
    note: str | None


class TickStats(BaseModel):
    """Counts of decisions and of their jobs, as far back as they are kept."""

    total_runs: int
    successful_runs: int = Field(description="Decisions that launched.")
    skipped_runs: int
    failed_runs: int = Field(description="Decisions that failed.")
    jobs_completed: int = Field(description="Of retried jobs the last attempt counts.")
    jobs_failed: int
    success_rate: str | None = Field(
        description="Of the jobs that ended and the decisions that failed, how many completed.",
        examples=["75%"],
    )


class TickHistory(BaseModel):
    """A page of a schedule's decisions, the newest first."""

    schedule_name: str
    history: list[Tick]
    stats: TickStats
    next: str | None = Field(description="For the next page; null on the last one.")


class UpcomingTick(BaseModel):
    """A time at which a schedule will be due."""

    at: datetime
    skip: str | None = Field(description="Why it will be skipped, where that is known.")
    args: list[Any] | None = Field(
        description="What its row says, placeholders filled in; null where the app's code says it, "
        "or where a placeholder can't be filled in."
    )
    kwargs: dict[str, Any] | None


class ScheduleForecast(BaseModel):
    """When a schedule will be due."""

    schedule_name: str
    upcoming: list[UpcomingTick]


class BackfillSpan(Body):
    """A span of the past, both ends inclusive."""

    start: AwareDatetime = Field(examples=["2026-11-20T00:00:00Z"])
    end: AwareDatetime | None = Field(
        None, description="Now, if it isn't given.", examples=["2026-11-21T00:00:00Z"]
    )
    limit: int = Field(100, ge=1, le=1000, description="More due times than that are refused.")
    dry_run: bool = Field(False, description="Only say what would be launched.")


class Backfilled(BaseModel):
    """What became of due times that were missed."""

    success: bool = Field(description="Whether none failed.")
    message: str
    dry_run: bool
    times: list[datetime] = Field(description="Those that were missed, oldest first.")
    launched: int
    skipped: int
    failed: int
    remaining: int = Field(
        description="Those left over, after too many failures or half a minute; ask again."
    )
    launched_before: int
    excluded: int = Field(description="Those that its calendar leaves out.")
    pending: int = Field(description="Those that are still for the beat to decide.")


#: Seconds after which a backfill begins with no further due time.
_PATIENCE = 30.0
#: Due times that are looked at for one: a request is answered within a second or so.
_LOOKED = 20_000


@router.post("/{name}/trigger", summary="Decide a schedule now")
def trigger_schedule(backend: TheBackend, caller: TheAdmin, name: Name) -> TriggeredSchedule:
    """Decides a schedule as if it were due now; its conditions are checked as ever."""
    with backend.work(caller) as unit:
        tick = control.trigger(unit, name, job_source="user_api").tick
    said = {
        "launched": f"Schedule '{name}' triggered manually",
        "skipped": f"Schedule '{name}' was skipped: {tick.reason}",
        "failed": f"Schedule '{name}' failed: {tick.error}",
    }
    return TriggeredSchedule(
        success=tick.outcome != "failed",
        outcome=tick.outcome,
        job_id=None if tick.job_id is None else UUID(tick.job_id),
        job_ids=[UUID(job_id) for job_id in tick.job_ids],
        message=said[tick.outcome],
        reason=tick.reason,
        error=tick.error,
    )


@router.post("/{name}/check", summary="Say what would become of a schedule now")
def check_schedule(backend: TheBackend, caller: TheAdmin, name: Name) -> CheckedSchedule:
    """Asks a schedule's conditions and policies, and launches nothing."""
    with backend.session() as connection:
        found = dry_run(connection, backend.celery, backend.settings, name)
    return CheckedSchedule(
        outcome=found.outcome,
        reason=found.reason,
        error=found.error,
        objections=[objection.reason for objection in found.objections],
        jobs=len(found.evaluation.requests),
    )


@router.post("/{name}/backfill", summary="Launch what was missed")
def backfill_schedule(
    backend: TheBackend, caller: TheAdmin, name: Name, body: BackfillSpan
) -> Backfilled:
    """Decides the due times of a span of the past that were not launched, oldest first.

    Conditions are asked as things are now. It stops when as many fail in a row as the schedule has
    retries, and after half a minute; asked again, it goes on.
    """
    with backend.transaction() as connection:
        now = connections.now(connection)
        row = schedules.get(connection, name, namespace=backend.namespace)
        end = body.end or now
        missed.check_period(body.start, end, now)
        found = missed.find(
            connection,
            row,
            body.start,
            end,
            timezone=backend.timezone,
            limit=body.limit,
            most=_LOOKED,
        )
    done = control.BackfillRun()
    if found.times and not body.dry_run:
        until = time.monotonic() + _PATIENCE
        with backend.work(caller) as unit:
            done = control.backfill(
                unit,
                name,
                found.times,
                job_source="user_api",
                is_over=lambda done: time.monotonic() > until,
            )
    counts = Counter[str](tick.outcome for tick in done.ticks)
    return Backfilled(
        success=not counts["failed"],
        message=_said(name, found.times, counts, dry_run=body.dry_run),
        dry_run=body.dry_run,
        times=[each.astimezone(UTC) for each in found.times],
        launched=counts["launched"],
        skipped=counts["skipped"],
        failed=counts["failed"],
        remaining=done.remaining,
        launched_before=found.launched,
        excluded=found.excluded,
        pending=found.pending,
    )


def _said(name: str, times: list[datetime], counts: Counter[str], *, dry_run: bool) -> str:
    if not times:
        return f"Schedule '{name}' missed nothing then"
    number = "1 due time" if len(times) == 1 else f"{len(times)} due times"
    if dry_run:
        return f"Schedule '{name}' would be launched for {number}"
    parts = [f"{counts[word]} {word}" for word in ("launched", "skipped", "failed") if counts[word]]
    return f"Schedule '{name}' backfilled: {', '.join(parts) or 'launched meanwhile'}"


@router.get("/{name}/history", summary="List a schedule's decisions")
def schedule_history(
    backend: TheBackend, caller: TheAdmin, name: Name, limit: Limit = 50, after: After = None
) -> TickHistory:
    """A schedule's decisions, the newest first, and counts of all that are kept."""
    before = None if after is None else read(after, moment, number)
    with backend.transaction() as connection:
        row = schedules.get(connection, name, namespace=backend.namespace)
        entries = ticks.history(connection, row.id, before=before, limit=limit + 1)
        counts = ticks.stats(connection, row.id)
    last = entries[limit - 1] if len(entries) > limit else None
    rate = counts.success_rate
    return TickHistory(
        schedule_name=name,
        history=[_tick(entry) for entry in entries[:limit]],
        stats=TickStats(
            total_runs=counts.total,
            successful_runs=counts.launched,
            skipped_runs=counts.skipped,
            failed_runs=counts.failed,
            jobs_completed=counts.jobs_completed,
            jobs_failed=counts.jobs_failed,
            success_rate=None if rate is None else f"{rate:.0%}",
        ),
        next=None if last is None else cursor(last.due_at, last.id),
    )


def _tick(entry: ticks.Entry) -> Tick:
    words: dict[str, Literal["success", "skipped", "failed"]] = {
        "launched": "success", "skipped": "skipped", "failed": "failed",
    }  # fmt: skip
    return Tick(
        run_time=entry.due_at,
        decided_at=entry.decided_at,
        outcome=words[entry.outcome],
        trigger=entry.trigger,
        job_id=entry.job_id,
        job_state=entry.job_state,
        jobs=[
            LaunchedJob(id=job.id, run_key=job.run_key, state=job.state, error=job.error)
            for job in entry.jobs
        ],
        conditions_met=entry.outcome == "launched",
        reason=entry.reason,
        error=entry.error,
        missed=entry.missed,
        note=entry.note,
    )


def _upcoming(
    due: Expected, now: datetime, timetable: Timetable | None, timezone: str
) -> UpcomingTick:
    args: Any = None
    kwargs: Any = None
    if timetable is not None:
        with suppress(InvalidPlaceholder):
            args, kwargs = call(due, timetable, timezone)
    return UpcomingTick(
        at=max(due.at, now).astimezone(UTC), skip=due.skip, args=args, kwargs=kwargs
    )


@router.get("/{name}/forecast", summary="Say when a schedule will be due")
def schedule_forecast(
    backend: TheBackend,
    caller: TheAdmin,
    name: Name,
    count: Annotated[int, Query(ge=1, le=100)] = 10,
) -> ScheduleForecast:
    """The next times at which a schedule will be due, and which of them are skipped already."""
    with backend.transaction() as connection:
        row = schedules.get(connection, name, namespace=backend.namespace)
        now = connections.now(connection)
        named = [row.calendar] if row.calendar else []
        known = calendars.load(connection, named, namespace=row.namespace)
    timetable = row.timetable(backend.timezone)
    is_idle = timetable is None or not row.enabled
    excluded = exclusion(known, row, backend.timezone)
    times = () if is_idle or timetable is None else upcoming(row, timetable, now, excluded=excluded)
    return ScheduleForecast(
        schedule_name=name,
        upcoming=[
            _upcoming(each, now, timetable, backend.timezone) for each in islice(times, count)
        ],
    )
