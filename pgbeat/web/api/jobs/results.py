"""`/results/{task_id}`: what a task returned, as the result backend has it."""

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Path
from pydantic import BaseModel, Field

from pgbeat.web.api.visible import visible_result
from pgbeat.web.backend import TheBackend
from pgbeat.web.identity import TheCaller

router = APIRouter(prefix="/results", tags=["jobs"])


class FoundResult(BaseModel):
    """The result of a task, whether it is a job or not."""

    task_id: str
    status: str = Field(description="Celery's state.", examples=["SUCCESS"])
    value: Any = Field(
        description="What the task returned; for a failure `exc_type`, `exc_message` and "
        "`exc_module`. Null if the content type is not JSON."
    )
    is_readable: bool = Field(description="Whether the content type is JSON.")
    content_type: str
    size: int = Field(description="Of the encoded value, in bytes.")
    traceback: str | None
    finished_at: datetime | None
    expires_at: datetime | None
    task: str | None = Field(description="This and the next three with `result_extended`.")
    worker: str | None
    queue: str | None
    retries: int | None


@router.get("/{task_id}", summary="Get a task's result")
def get_result(
    backend: TheBackend, caller: TheCaller, task_id: Annotated[str, Path(max_length=255)]
) -> FoundResult:
    """Returns the result of a job that the caller may see; admins see those of all tasks."""
    with backend.transaction() as connection:
        found = visible_result(connection, backend, caller, task_id)
    return FoundResult.model_validate(found._asdict())
