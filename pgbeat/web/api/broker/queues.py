"""`/queues`: the broker's queues."""

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, Field

from pgbeat.broker import control, queues
from pgbeat.broker.queues import QueueSummary
from pgbeat.views import broker as views
from pgbeat.web.api.bodies import Done, Length, of_row
from pgbeat.web.calls import AdminCall, ViewerCall, WebCall

router = APIRouter(prefix="/queues", tags=["queues"])

QueueName = Annotated[str, Path(max_length=200, examples=["celery"])]


@of_row(QueueSummary)
class FoundQueue(BaseModel):
    """A queue with its numbers of messages."""

    claimed: int = Field(description="Messages that consumers have claimed.")
    consumers: int = Field(description="Live processes that consume from it.")
    age: Length | None = Field(description="Seconds that the oldest message has waited.")
    auto_delete: bool = Field(description="It is deleted with its last consumer.")
    owner: int | None = Field(description="The session with which it is deleted.")
    is_internal: bool = Field(description="It is for remote control, events or replies.")


class QueueList(BaseModel):
    """The queues, by name."""

    queues: list[FoundQueue]


class QueueDone(Done):
    """Confirms a change of a queue."""

    message: str = Field(examples=["Queue 'celery' paused"])
    queue: FoundQueue


class QueuePurged(QueueDone):
    """Confirms a purge."""

    deleted: int


def _found(row: QueueSummary) -> FoundQueue:
    return FoundQueue.model_validate(views.queue(row))


@router.get("", summary="List queues")
def list_queues(
    call: ViewerCall,
    internal: Annotated[
        bool, Query(description="Include those for remote control, events and replies.")
    ] = False,
) -> QueueList:
    """Lists the queues with how many messages wait, are delayed, claimed or dead."""
    with call.backend.transaction() as connection:
        call.backend.require_broker(connection)
        rows = queues.all_queues(connection)
    return QueueList(queues=[_found(row) for row in rows if internal or not row.is_internal])


@router.post("/{name:path}/pause", summary="Pause a queue")
def pause_queue(call: AdminCall, name: QueueName) -> QueueDone:
    """Keeps consumers from claiming messages. They still finish what they have claimed."""
    return _switched(call, name, control.pause, "paused")


@router.post("/{name:path}/resume", summary="Resume a queue")
def resume_queue(call: AdminCall, name: QueueName) -> QueueDone:
    """Lets consumers claim messages again."""
    return _switched(call, name, control.resume, "resumed")


def _switched(
    call: WebCall, name: str, switch: Callable[..., tuple[QueueSummary, Any]], past: str
) -> QueueDone:
    with call.unit() as unit:
        call.backend.require_broker(unit.connection)
        row, _ = switch(unit, name)
    return QueueDone(message=f"Queue '{name}' {past}", queue=_found(row))


@router.post("/{name:path}/purge", summary="Purge a queue")
def purge_queue(call: AdminCall, name: QueueName) -> QueuePurged:
    """Deletes the waiting and delayed messages of a queue. Claimed and dead ones stay."""
    with call.work() as unit:
        call.backend.require_broker(unit.connection)
        count = control.purge(unit, name)
        row = queues.get(unit.connection, name)
    return QueuePurged(
        message=f"Queue '{name}' purged: {count} message{'' if count == 1 else 's'} deleted",
        queue=_found(row),
        deleted=count,
    )
