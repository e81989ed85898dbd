"""`/fence`: the server, and what is held after a restore."""

from datetime import datetime

from fastapi import APIRouter
from pydantic import BaseModel, Field

from pgbeat.database import fence
from pgbeat.monitoring import fences
from pgbeat.views import fences as views
from pgbeat.web.api.bodies import of_row
from pgbeat.web.calls import ViewerCall

router = APIRouter(tags=["scheduler"])


@of_row(fences.Fence)
class FoundFence(BaseModel):
    """A fence."""

    restored_to: datetime | None = Field(
        description="The moment that the restored database shows, as far as known."
    )
    released_at: datetime | None = Field(description="When all was released.")
    queues: list[str] = Field(description="Those that are still held.")
    schedules: list[str] = Field(
        description="Those that are still held.", examples=[["default/nightly"]]
    )


class ServerState(BaseModel):
    """The server, and the fence that was raised last."""

    system_identifier: int | None = Field(description="Null if the server doesn't say.")
    timeline: int | None = Field(description="A promotion, or a restore, begins the next one.")
    fence: FoundFence | None


@router.get("/fence", summary="Show the fence")
def show_fence(call: ViewerCall) -> ServerState:
    """Shows the server, and the queues and schedules that are held since a restore."""
    with call.backend.transaction() as connection:
        shown = views.fence(fence.read(connection), fences.newest(connection))
    return ServerState.model_validate(shown)
