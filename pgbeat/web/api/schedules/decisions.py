"""`/admin/scheduled-jobs/{name}/…`: a schedule's ticks, past and to come, and new ones by hand."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Query
from pydantic import AwareDatetime, BaseModel, Field

from pgbeat.beat.verbs import control, missed
from pgbeat.beat.verbs.dry_run import dry_run
from pgbeat.beat.verbs.missed import Missed
from pgbeat.database import connections
from pgbeat.schedules import model as schedules
from pgbeat.schedules import ticks
from pgbeat.views import schedules as views
from pgbeat.web.api.bodies import Body, Next, of_row
from pgbeat.web.api.paging import After, Limit, moment, number, read, split
from pgbeat.web.api.schedules.schedule_models import FoundTick, Name, TickStats
from pgbeat.web.calls import AdminCall, ViewerCall, WebCall

router = APIRouter(prefix="/admin/scheduled-jobs", tags=["scheduled jobs"])


@of_row(ticks.Tick, ("schedule_id", "more_job_ids"))
class TriggeredSchedule(BaseModel):
    """The tick of a schedule that was triggered by hand."""

    job_id: UUID | None
    job_ids: list[UUID] = Field(description="All jobs of the tick; `job_id` is the first.")
    success: bool
    message: str


class CheckedSchedule(BaseModel):
    """The outcome that a schedule would have if it were due now."""

    outcome: Literal["launched", "skipped", "failed", "waiting"]
    reason: str | None
    error: str | None
    objections: list[str] = Field(description="Why policies would skip it, whatever the outcome.")
    jobs: int = Field(description="How many jobs its launcher asks for.")


class TickHistory(BaseModel):
    """A page of a schedule's ticks, the newest first."""

    schedule: str
    ticks: list[FoundTick]
    stats: TickStats
    next: Next


class UpcomingTick(BaseModel):
    """A due time to come."""

    at: datetime = Field(description="When it is decided.")
    due_at: datetime
    skip: str | None = Field(description="Why it will be skipped, if that is known.")
    args: list[Any] | None = Field(
        description="The schedule's arguments, with placeholders filled in; null if the app's code "
        "makes them, or a placeholder can't be filled in."
    )
    kwargs: dict[str, Any] | None


class ScheduleForecast(BaseModel):
    """The next due times of a schedule."""

    schedule: str
    timezone: str
    times: list[UpcomingTick]


class BackfillSpan(Body):
    """A span of the past, both ends inclusive."""

    start: AwareDatetime = Field(examples=["2026-11-20T00:00:00Z"])
    end: AwareDatetime | None = Field(
        None, description="By default, now.", examples=["2026-11-21T00:00:00Z"]
    )
    limit: int = Field(100, ge=1, le=1000, description="More due times than this are refused.")
    dry_run: bool = Field(False, description="Only say what would be launched.")


class Backfilled(BaseModel):
    """The outcomes of a backfill."""

    success: bool = Field(description="Whether none failed.")
    message: str
    dry_run: bool
    times: list[datetime] = Field(description="The missed due times, oldest first.")
    launched: int
    skipped: int
    failed: int
    remaining: int = Field(
        description="Due times left over, after too many failures or half a minute; ask again."
    )
    launched_before: int
    excluded: int = Field(description="Due times that its calendar excludes.")
    pending: int = Field(description="Due times that beat has yet to decide.")


#: Seconds after which a backfill starts no further due time.
_PATIENCE = 30.0
#: Due times that a request examines, which takes about a second.
_EXAMINED = 20_000


@router.post("/{name}/trigger", summary="Trigger a schedule")
def trigger_schedule(call: AdminCall, name: Name) -> TriggeredSchedule:
    """Decides a schedule as if it were due now. Its conditions are checked as usual."""
    with call.work() as unit:
        tick = control.trigger(unit, name, job_source="user_api").tick
    outcome = {"success": tick.outcome != "failed", "message": triggered(tick)}
    return TriggeredSchedule.model_validate(views.made(tick) | outcome)


def triggered(tick: ticks.Tick) -> str:
    """Returns what became of a trigger, without a full stop."""
    if tick.outcome == "launched":
        return f"Schedule '{tick.schedule}' triggered manually"
    why = f"was skipped: {tick.reason}" if tick.outcome == "skipped" else f"failed: {tick.error}"
    return f"Schedule '{tick.schedule}' {why}"


@router.post("/{name}/check", summary="Check whether a schedule would launch")
def check_schedule(call: AdminCall, name: Name) -> CheckedSchedule:
    """Evaluates a schedule's conditions and policies, and launches nothing."""
    with call.backend.session() as connection:
        run = dry_run(connection, call.backend.celery, call.backend.settings, name)
    return CheckedSchedule(
        outcome=run.outcome,
        reason=run.reason,
        error=run.error,
        objections=[objection.reason for objection in run.objections],
        jobs=len(run.evaluation.requests),
    )


@router.post("/{name}/backfill", summary="Launch missed due times")
def backfill_schedule(call: AdminCall, name: Name, body: BackfillSpan) -> Backfilled:
    """Decides the due times in a span of the past that no tick launched, oldest first.

    Conditions are evaluated as of now. It stops when as many due times fail in a row as the
    schedule has retries, and after half a minute; a further request continues it.
    """
    span, done = carry_out(call, name, body)
    counts = Counter[str](tick.outcome for tick in done.ticks)
    return Backfilled(
        success=not counts["failed"],
        message=backfilled(name, span.times, counts, dry_run=body.dry_run),
        dry_run=body.dry_run,
        times=[time.astimezone(UTC) for time in span.times],
        launched=counts["launched"],
        skipped=counts["skipped"],
        failed=counts["failed"],
        remaining=done.remaining,
        launched_before=span.launched,
        excluded=span.excluded,
        pending=span.pending,
    )


def carry_out(call: WebCall, name: str, body: BackfillSpan) -> tuple[Missed, control.BackfillRun]:
    """Finds the due times that a schedule missed in a span and launches them, unless `dry_run`."""
    with call.backend.transaction() as connection:
        now = connections.now(connection)
        row = schedules.get(connection, name, namespace=call.namespace)
        start, end, timezone = body.start, body.end or now, call.backend.timezone
        missed.check_period(start, end, now)
        span = missed.find(
            connection, row, start, end, timezone=timezone, limit=body.limit, most=_EXAMINED
        )
    if body.dry_run or not span.times:
        return span, control.BackfillRun()
    with call.work() as unit:
        return span, control.backfill(
            unit, name, span.times, job_source="user_api", is_over=control.after(_PATIENCE)
        )


def backfilled(
    name: str, times: Sequence[datetime], counts: Mapping[str, int], *, dry_run: bool = False
) -> str:
    """Returns what a backfill did, or would do, without a full stop."""
    if not times:
        return f"Schedule '{name}' missed nothing in that time"
    number = "1 due time" if len(times) == 1 else f"{len(times)} due times"
    if dry_run:
        return f"Schedule '{name}' would be launched for {number}"
    parts = [f"{counts[word]} {word}" for word in ("launched", "skipped", "failed") if counts[word]]
    return f"Schedule '{name}' backfilled: {', '.join(parts) or 'launched meanwhile'}"


@router.get("/{name}/history", summary="List a schedule's ticks")
def schedule_history(
    call: ViewerCall, name: Name, limit: Limit = 50, after: After = None
) -> TickHistory:
    """Lists a schedule's ticks, the newest first, with counts of all that are kept."""
    before = read(after, moment, number)
    with call.listing() as connection:
        row = schedules.get(connection, name, namespace=call.namespace)
        entries = ticks.history(connection, row.id, before=before, limit=limit + 1)
        counts = ticks.stats(connection, row.id)
    page, following = split(entries, limit, "due_at", "id")
    masked = [call.redactor.tick(entry, row.task) for entry in page]
    return TickHistory(
        schedule=name,
        ticks=[FoundTick.model_validate(views.tick(entry)) for entry in masked],
        stats=TickStats.model_validate(views.outcomes(counts)),
        next=following,
    )


@router.get("/{name}/forecast", summary="Forecast a schedule")
def schedule_forecast(
    call: ViewerCall, name: Name, count: Annotated[int, Query(ge=1, le=100)] = 10
) -> ScheduleForecast:
    """Lists the next due times of a schedule, and says which of them will be skipped."""
    timezone = call.backend.timezone
    with call.backend.transaction() as connection:
        row = schedules.get(connection, name, namespace=call.namespace)
        now = connections.now(connection)
        times = views.forecast(connection, row, now, timezone, call.redactor, count)
    return ScheduleForecast.model_validate(times)
