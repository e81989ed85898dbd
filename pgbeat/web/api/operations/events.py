"""`/events`: what has happened, for which jobs may wait by `pgbeat.wait_for`."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from pydantic import AfterValidator, BaseModel, Field

from pgbeat.jobs.verbs import events
from pgbeat.web.api.bodies import Body, Next, example, of_row, plain
from pgbeat.web.api.paging import After, Limit, number, read_one, split
from pgbeat.web.calls import AdminCall, ViewerCall

router = APIRouter(prefix="/events", tags=["events"])


class NewEvent(Body):
    """What has happened."""

    model_config = example({"key": "paid/12", "value": {"amount": 12}})

    key: str = Field(max_length=200, examples=["paid/12"])
    value: Annotated[Any, AfterValidator(plain)] = Field(
        None, description="What `pgbeat.wait_for` returns."
    )


@of_row(events.KeptEvent)
class FoundEvent(BaseModel):
    """An event. A key has one."""

    key: str = Field(examples=["paid/12"])
    value: Any = Field(examples=[{"amount": 12}])
    emitted_by: str = Field(examples=["user:alice"])


class EmittedEvent(FoundEvent):
    """The event of a key."""

    is_new: bool = Field(description="False if the key had this event already, which stays.")


class EventPage(BaseModel):
    """A page of events, the newest first."""

    events: list[FoundEvent]
    next: Next


@router.get("", summary="List events")
def list_events(
    call: ViewerCall,
    prefix: Annotated[
        str | None, Query(max_length=200, description="Only those whose keys begin so.")
    ] = None,
    limit: Limit = 50,
    after: After = None,
) -> EventPage:
    """Lists events, the newest first."""
    before = read_one(after, number)
    with call.listing() as connection:
        rows = events.page(
            connection, call.redactor, call.namespace, prefix=prefix, before=before, limit=limit + 1
        )
    page, following = split(rows, limit, "id")
    found = [FoundEvent.model_validate(row._asdict()) for row in page]
    return EventPage(events=found, next=following)


@router.post(
    "",
    status_code=201,
    summary="Emit an event",
    responses={200: {"model": EmittedEvent, "description": "The key has an event, which stays."}},
)
def emit_event(call: AdminCall, body: NewEvent, response: Response) -> EmittedEvent:
    """Stores that something has happened, and makes the jobs due that wait for it."""
    with call.unit() as unit:
        is_new = events.store(unit, body.key, body.value)
        event = events.get(unit.connection, call.redactor, unit.namespace, body.key)
    if not is_new:
        response.status_code = 200
    return EmittedEvent.model_validate(event._asdict() | {"is_new": is_new})
