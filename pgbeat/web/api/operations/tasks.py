"""`/tasks`: how often each task ran in the last 24 hours."""

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from pgbeat.monitoring.rollups import tasks
from pgbeat.web.api.bodies import of_row
from pgbeat.web.calls import ViewerCall

router = APIRouter(tags=["scheduler"])


@of_row(tasks.TaskUsage)
class FoundTaskUsage(BaseModel):
    """A task in the last 24 hours. Durations are seconds, of jobs that began and have ended."""

    name: str = Field(examples=["shop.sync"])
    untracked: int = Field(description="Messages that workers received without tracking them.")


class TaskList(BaseModel):
    """Tasks, the most frequent first."""

    tasks: list[FoundTaskUsage]
    has_more: bool
    untracked: int = Field(description="Of all tasks.")


@router.get("/tasks", summary="List tasks")
def list_tasks(
    call: ViewerCall,
    search: Annotated[str, Query(max_length=200, description="A part of the name.")] = "",
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
) -> TaskList:
    """Lists the tasks that ran in the last 24 hours, as jobs or untracked (`pgbeat_track`)."""
    with call.listing() as connection:
        page = tasks.listing(connection, call.namespace, search=search, limit=limit)
    return TaskList(
        tasks=[FoundTaskUsage.model_validate(row._asdict()) for row in page.rows],
        has_more=page.has_more,
        untracked=page.untracked,
    )
