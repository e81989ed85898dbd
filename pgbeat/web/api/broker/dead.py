"""`/dead`: messages that could not be handled, until a person requeues or drops them."""

from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, Field, StrictInt
from sqlalchemy import Connection

from pgbeat.broker import control, dead_letters, queues
from pgbeat.errors import InvalidJob, NotFound
from pgbeat.views import broker as views
from pgbeat.web.api.bodies import Body, Done, Length, Next, example, of_row
from pgbeat.web.api.paging import After, Limit, moment, number, read, split
from pgbeat.web.calls import AdminCall, ViewerCall

router = APIRouter(prefix="/dead", tags=["dead letters"])

#: The longest `older_than`, exclusive: some 30 years.
_LONGEST = timedelta(seconds=1e9)

_Id = Annotated[StrictInt, Field(ge=1, le=2**63 - 1)]


class DeadChoice(Body):
    """Chooses dead letters by their ids or queue, or all of them."""

    model_config = example({"ids": [1, 2]})

    ids: list[_Id] | None = Field(None, min_length=1, max_length=10_000)
    queue: str | None = Field(None, max_length=200)
    all: bool = False


class DeadDrop(DeadChoice):
    """Chooses dead letters by their ids, queue or age, or all of them."""

    older_than: Length | None = None


@of_row(dead_letters.DeadLetter, ("payload",))
class FoundDeadLetter(BaseModel):
    """A dead letter."""

    queue: str = Field(description="Its queue; empty if the queue was deleted.")
    task: str | None
    task_id: str | None


class DeadDetail(FoundDeadLetter):
    """A dead letter with its message."""

    payload: str


class DeadPage(BaseModel):
    """A page of dead letters, the newest first."""

    dead: list[FoundDeadLetter]
    next: Next


class DeadDone(Done):
    """Confirms how many dead letters were requeued or dropped."""

    message: str = Field(examples=["2 dead letters requeued"])
    count: int
    homeless: int = Field(default=0, description="Those that stay because their queue is gone.")


@router.get("", summary="List dead letters")
def list_dead(
    call: ViewerCall,
    queue: Annotated[str | None, Query(max_length=200)] = None,
    limit: Limit = 50,
    after: After = None,
) -> DeadPage:
    """Lists dead letters, the newest first."""
    before = read(after, moment, number)
    with call.backend.transaction() as connection:
        call.backend.require_broker(connection)
        rows = dead_letters.find(connection, queue=queue, before=before, limit=limit + 1)
        if not rows and queue is not None:
            queues.get(connection, queue)
    page, following = split(rows, limit, "died_at", "id")
    dead = [FoundDeadLetter.model_validate(views.dead_letter(row)) for row in page]
    return DeadPage(dead=dead, next=following)


@router.get("/{letter_id}", summary="Get a dead letter")
def get_dead(call: ViewerCall, letter_id: Annotated[int, Path(ge=1, le=2**63 - 1)]) -> DeadDetail:
    """Returns a dead letter with its message."""
    with call.backend.transaction() as connection:
        call.backend.require_broker(connection)
        rows = dead_letters.find(connection, ids=[letter_id])
    if not rows:
        raise NotFound(f"there is no dead letter {letter_id}")
    row = rows[0]
    payload = call.redactor.whole(row.task, row.payload)
    return DeadDetail.model_validate(views.dead_letter(row) | {"payload": payload})


def _choose(connection: Connection, body: DeadChoice) -> dict[int, str]:
    older_than = body.older_than if isinstance(body, DeadDrop) else None
    return control.choose(
        connection, ids=body.ids or (), queue=body.queue, older_than=older_than, everything=body.all
    )


def _said(count: int, done: str) -> str:
    return f"{count} dead letter{'' if count == 1 else 's'} {done}"


@router.post("/requeue", summary="Requeue dead letters")
def requeue_dead(call: AdminCall, body: DeadChoice) -> DeadDone:
    """Puts dead letters back into their queues, and counts their deliveries from 0 again."""
    with call.unit() as unit:
        call.backend.require_broker(unit.connection)
        chosen = _choose(unit.connection, body)
        count = control.requeue(unit, chosen)
    homeless = sum(not name for name in chosen.values())
    return DeadDone(message=_said(count, "requeued"), count=count, homeless=homeless)


@router.post("/drop", summary="Delete dead letters")
def drop_dead(call: AdminCall, body: DeadDrop) -> DeadDone:
    """Deletes dead letters for good."""
    if body.older_than is not None and not timedelta(0) <= body.older_than < _LONGEST:
        raise InvalidJob.of("older_than", "out_of_range", "older_than: must be 0 s to 30 years")
    with call.unit() as unit:
        call.backend.require_broker(unit.connection)
        chosen = _choose(unit.connection, body)
        count = control.drop(unit, chosen)
    return DeadDone(message=_said(count, "dropped"), count=count)
