"""`/lanes`: limits on what runs at once, with the jobs that wait for them."""

from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Response
from pydantic import BaseModel, Field
from sqlalchemy import Connection

from pgbeat.errors import InvalidJob
from pgbeat.jobs.lanes import model as lanes
from pgbeat.jobs.lanes import occupancy
from pgbeat.jobs.lanes.model import Lane
from pgbeat.jobs.lanes.occupancy import SlotHolder
from pgbeat.jobs.rows import model as jobs
from pgbeat.jobs.verbs import lane_control
from pgbeat.views import lanes as views
from pgbeat.web.api.bodies import Body, Done, PlainJson, example, of_row
from pgbeat.web.calls import AdminCall, TheCall, WebCall
from pgbeat.web.identity import Caller

router = APIRouter(prefix="/lanes", tags=["lanes"])

LaneName = Annotated[str, Path(max_length=200, examples=["gpu"])]


class LaneChanges(Body):
    """Changes of a lane; null removes a limit."""

    model_config = example({"max_running": 2, "rate": "10/minute"})

    max_running: int | None = Field(
        None, ge=0, le=1_000_000, description="How many run at once; null for any number."
    )
    rate: str | None = Field(None, max_length=100, examples=["10/minute", "100/15 minutes"])
    rate_for: str | float | None = Field(
        None,
        examples=["10 minutes"],
        description="With `rate`: how long it holds, as text or seconds. Then the old one returns.",
    )
    rate_unit: str | None = Field(
        None,
        max_length=200,
        description="A job takes as much of the rate as its resources have of this; null: 1 each.",
    )
    rate_key: str | None = Field(
        None,
        max_length=200,
        description="What each rate is for: task, tag, created_by or kwargs.NAME; null for one "
        "rate of all.",
    )
    fair_by: str | None = Field(
        None,
        max_length=210,
        examples=["kwargs.tenant"],
        description="Jobs of each such key take turns: task, created_by, tag, tag:PREFIX or "
        "kwargs.NAME; null for a line by place only.",
    )
    max_per_key: int | None = Field(
        None, ge=0, le=1_000_000, description="How many of each key run at once; null for any."
    )
    policy: str | None = Field(
        None, max_length=200, description="The policy that decides which jobs run together."
    )
    options: PlainJson | None = Field(
        None, description="The policy's options.", examples=[{"gpu": 2}]
    )


@of_row(Lane)
class FoundLane(BaseModel):
    """A lane."""

    rate: str | None = Field(examples=["10/minute of each task"])
    temporary_rate: str | None = Field(
        description="The rate that holds instead until `temporary_until`.", examples=["10/minute"]
    )


class LaneFigures(FoundLane):
    """A lane with its numbers of jobs."""

    running: int = Field(description="Jobs and direct executions that have a slot.")
    waiting: int
    waiting_since: datetime | None


@of_row(SlotHolder)
class LaneSlot(BaseModel):
    """A job or direct execution in a slot. Users see only that those of others exist."""

    id: str | None = Field(description="A job's id, or direct/NUMBER.")
    task: str | None
    by: str | None = Field(description="The worker, or the actor of a direct execution.")


@of_row(occupancy.InLine)
class LaneWaiter(BaseModel):
    """A job or direct execution that waits. Users see only that those of others exist."""

    place: int
    id: str | None
    task: str | None
    created_by: str | None
    is_direct: bool = Field(description="It is a direct execution, and reserves the next slot.")
    reason: str | None = Field(description="Why it gets no slot now; null if it is about to.")
    fair_key: str | None = Field(
        description="With which it takes turns; empty unless the lane is fair.",
        examples=["tenant=acme"],
    )


class LaneDetail(LaneFigures):
    """A lane with its slots and the beginning of its line."""

    slots: list[LaneSlot]
    line: list[LaneWaiter]


class LaneList(BaseModel):
    """All lanes, by name."""

    lanes: list[LaneFigures]


class LaneDone(Done):
    """Confirms a change of a lane."""

    message: str = Field(examples=["Lane 'gpu' paused"])
    lane: FoundLane


# -- reading


@router.get("", summary="List lanes")
def list_lanes(call: TheCall) -> LaneList:
    """Lists all lanes by name, with how many jobs run and wait in each."""
    with call.backend.transaction() as connection:
        rows = lanes.listing(connection, call.namespace)
    return LaneList(lanes=[LaneFigures.model_validate(views.usage(row)) for row in rows])


@router.get("/{name}", summary="Get a lane")
def get_lane(
    call: TheCall,
    name: LaneName,
    limit: Annotated[int, Query(ge=0, le=1000, description="The length of `line`.")] = 50,
) -> LaneDetail:
    """Returns a lane with its slots and its line, and why each job there waits.

    `POST /jobs/{id}/move` moves a job in the line.
    """
    with call.backend.transaction() as connection:
        lane = lanes.get(connection, name, namespace=call.namespace)
        [row] = [r for r in lanes.listing(connection, call.namespace) if r.lane.name == name]
        holders = occupancy.holders(connection, lane)
        line = occupancy.line(connection, lane, limit=limit)
        visible = _own(connection, call.caller, holders)
    detail = views.detail(row, holders, line)
    for slot in detail["slots"]:
        if visible is not None and slot["id"] not in visible:
            slot |= dict.fromkeys(("id", "task", "by"))
    for waiter in detail["line"]:
        if visible is not None and waiter["created_by"] != call.caller.name:
            waiter |= dict.fromkeys(("id", "task", "created_by", "reason", "fair_key"))
    return LaneDetail.model_validate(detail)


def _own(connection: Connection, caller: Caller, holders: list[SlotHolder]) -> set[str] | None:
    """Returns the ids of the caller's jobs in slots; `None` if the caller may see all."""
    if caller.sees_all:
        return None
    rows = jobs.find_brief(connection, [holder.id for holder in holders if not holder.is_direct])
    ids = {str(job.id) for job in rows if job.created_by == caller.name}
    return ids | {holder.id for holder in holders if holder.is_direct and holder.by == caller.name}


# -- changing


@router.put(
    "/{name}",
    summary="Create or change a lane",
    responses={201: {"model": FoundLane, "description": "It is new."}},
)
def put_lane(call: AdminCall, name: LaneName, body: LaneChanges, response: Response) -> FoundLane:
    """Creates a lane, or changes the given fields.

    Jobs that the new limits admit start at once; running jobs continue.
    """
    changes = lane_control.read_changes(body.model_dump(exclude_unset=True))
    with call.unit() as unit:
        saved = lane_control.save(unit, name, changes)
    if saved.is_new:
        response.status_code = 201
    return FoundLane.model_validate(views.lane(saved.lane))


def _switched(
    call: WebCall, name: str, switch: Callable[..., tuple[Lane, Any]], past: str
) -> LaneDone:
    with call.unit() as unit:
        lane, _ = switch(unit, name)
    shown = FoundLane.model_validate(views.lane(lane))
    return LaneDone(message=f"Lane '{name}' {past}", lane=shown)


@router.post("/{name}/pause", summary="Pause a lane")
def pause_lane(call: AdminCall, name: LaneName) -> LaneDone:
    """Stops dispatching from a lane. Jobs in its slots continue."""
    return _switched(call, name, lane_control.pause, "paused")


@router.post("/{name}/resume", summary="Resume a lane")
def resume_lane(call: AdminCall, name: LaneName) -> LaneDone:
    """Dispatches from a paused lane again."""
    return _switched(call, name, lane_control.resume, "resumed")


@router.delete("/{name}/reservations/{number}", summary="Release a reservation")
def release_reservation(
    call: AdminCall,
    name: LaneName,
    number: Annotated[int, Path(ge=1, le=2**31 - 1, description="From direct/NUMBER.")],
) -> Done:
    """Takes a waiting direct execution out of the line; its request gets 503.

    A running one keeps its slot until its task or its process ends.
    """
    with call.unit() as unit:
        lane_control.release(unit, name, number)
    return Done(message=f"Direct execution {number} released from lane '{name}'")


@router.delete("/{name}", summary="Delete a lane")
def delete_lane(
    call: AdminCall,
    name: LaneName,
    force: Annotated[
        bool, Query(description="Even if jobs wait in it: they run without a limit.")
    ] = False,
) -> Done:
    """Deletes a lane in which no job waits, and which no schedule or template names."""
    with call.unit() as unit:
        try:
            lane_control.remove(unit, name, force=force)
        except InvalidJob as error:
            message = f"{error}; force=true deletes it, and the waiting jobs run without a limit"
            raise InvalidJob.of("", error.problems[0].code, message) from None
    return Done(message=f"Lane '{name}' deleted")
