"""`/timeline`: what schedules did and what is due next, over time."""

from datetime import datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field
from sqlalchemy import Connection

from pgbeat.access.redaction import Redactor
from pgbeat.monitoring import beats
from pgbeat.monitoring import timeline as timelines
from pgbeat.monitoring.timeline import ScheduleTimeline, Timeline
from pgbeat.web.api.bodies import of_row
from pgbeat.web.api.schedules.schedule_models import ScheduleHealth
from pgbeat.web.calls import ViewerCall, WebCall

router = APIRouter(tags=["scheduler"])


@of_row(timelines.Piece, ("task",))
class TimelinePiece(BaseModel):
    """A run, a job that waits or a decision not to launch; or several of a kind, close together."""

    end: datetime | None = Field(description="When the last one ended; null if it still runs.")
    said: str | None = Field(
        description="The error, why it was skipped, or the event that it waits for; of several, of "
        "one."
    )


@of_row(timelines.Coming)
class TimelineComing(BaseModel):
    """A due time to come."""

    is_certain: bool = Field(description="Whether time alone decides that it is launched.")
    skip: str | None = Field(description="Why it will be skipped, if that is known.")


@of_row(timelines.ScheduleTimeline)
class TimelineRow(BaseModel):
    """A schedule's part."""

    schedule: str
    state: str
    health: ScheduleHealth
    complete_since: datetime = Field(description="Before that, there are only failed jobs.")
    pieces: list[TimelinePiece]
    coming: list[TimelineComing]
    trouble: str | None = Field(description="Why it is not known what comes.")


@of_row(Timeline)
class FoundTimeline(BaseModel):
    """Schedules × time, those that fail or are late first."""

    rows: list[TimelineRow]
    has_more: bool = Field(description="Whether schedules were left out.")


@router.get("/timeline", summary="Get the timeline")
def get_timeline(
    call: ViewerCall,
    span: Annotated[
        Literal["1h", "1d", "1w"], Query(description="Three quarters of it are past.")
    ] = "1h",
    search: Annotated[str | None, Query(max_length=200, description="Part of a name.")] = None,
    limit: Annotated[int, Query(ge=1, le=100)] = timelines.ROWS,
) -> FoundTimeline:
    """Returns what schedules did and what is due next; those that fail, are late or run come first.

    Of each schedule, the newest 300 executions and ticks are read, and 60 due times to come.
    """
    with call.listing() as connection:
        timeline = read_timeline(connection, call, span, search, limit)
    return FoundTimeline.model_validate(
        timeline._asdict() | {"rows": [_row(row) for row in timeline.rows]}, from_attributes=True
    )


def _row(row: ScheduleTimeline) -> dict[str, object]:
    health = ScheduleHealth.model_validate(row.health, from_attributes=True)
    named = {"schedule": row.schedule.name, "state": row.schedule.state, "health": health}
    return row._asdict() | named


def read_timeline(
    connection: Connection,
    call: WebCall,
    span: str,
    search: str | None,
    limit: int = timelines.ROWS,
) -> Timeline:
    """Reads the timeline, masked."""
    patience = beats.patience(call.backend.settings)
    timeline = timelines.timeline(
        connection,
        call.namespace,
        call.backend.timezone,
        patience,
        span=span,
        search=search,
        limit=limit,
    )
    return timeline._replace(rows=[_masked(row, call.redactor) for row in timeline.rows])


def _masked(row: ScheduleTimeline, redactor: Redactor) -> ScheduleTimeline:
    pieces = []
    for piece in row.pieces:
        task = row.schedule.task if piece.kind == "not_launched" else piece.task
        mask = redactor.whole if piece.kind == "waiting" else redactor.error
        if piece.said is not None and piece.kind != "skipped":  # that is the schedule's reason
            piece = piece._replace(said=mask(task, piece.said))
        pieces.append(piece)
    return row._replace(pieces=pieces, health=redactor.health(row.health, row.schedule.task))
