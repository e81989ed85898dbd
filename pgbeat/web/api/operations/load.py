"""`/load`: what ended over time, how long it waited and ran, and how much waited."""

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from pgbeat.monitoring.rollups import load as loads
from pgbeat.web.api.bodies import Length, of_row
from pgbeat.web.calls import ViewerCall

router = APIRouter(tags=["scheduler"])


@of_row(loads.Point)
class LoadPoint(BaseModel):
    """The load of one step. Durations are seconds, of jobs that began and have ended."""

    at: datetime = Field(description="When the step begins.")
    waiting_p50: float | None = Field(examples=[0.012])
    waiting_p95: float | None = Field(examples=[0.25])
    running_p50: float | None = Field(examples=[1.4])
    running_p95: float | None = Field(examples=[6.1])
    depth: int = Field(description="Jobs that waited to begin, at most.")


@of_row(loads.Load)
class LoadSeries(BaseModel):
    """The load over time."""

    kind: str = Field(description="`all`, `task`, `lane` or `queue`.", examples=["task"])
    name: str = Field(description="Its name; empty for all.", examples=["shop.tasks.import"])
    until: datetime = Field(description="Jobs that ended later are not counted yet.")
    total: LoadPoint
    points: list[LoadPoint]


@router.get("/load", summary="Get the load over time")
def get_load(
    call: ViewerCall,
    task: Annotated[str | None, Query(max_length=200)] = None,
    lane: Annotated[str | None, Query(max_length=200)] = None,
    queue: Annotated[str | None, Query(max_length=200)] = None,
    since: Annotated[
        Length | datetime, Query(description="A time, or how long ago it was.")
    ] = loads.SINCE,
    step: Annotated[
        Length | None, Query(description="By default so long that about a hundred make the span.")
    ] = None,
) -> LoadSeries:
    """Returns the load of all jobs, or of those of a task, a lane or a queue.

    A minute is counted when it is over, and once more 15 minutes later, for good. Minutes are kept
    for a day, hours for 92 days: further back than a day, a step is a whole number of hours.
    """
    with call.listing() as connection:
        load = loads.load(
            connection, call.namespace, task=task, lane=lane, queue=queue, since=since, step=step
        )
    return LoadSeries.model_validate(load, from_attributes=True)
