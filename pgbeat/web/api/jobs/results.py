"""`/results/{task_id}`: what a task returned, as the result backend has it."""

from typing import Annotated, Any

from fastapi import APIRouter, Path
from pydantic import BaseModel, Field

from pgbeat.results.lookup import TaskResult
from pgbeat.web.api.bodies import of_row
from pgbeat.web.api.visible import visible_result
from pgbeat.web.calls import TheCall

router = APIRouter(prefix="/results", tags=["jobs"])


@of_row(TaskResult)
class FoundResult(BaseModel):
    """The result of a task, whether it is a job or not."""

    status: str = Field(description="Celery's state.", examples=["SUCCESS"])
    value: Any = Field(
        description="What the task returned; for a failure `exc_type`, `exc_message` and "
        "`exc_module`. Null if the content type is not JSON."
    )
    is_readable: bool = Field(description="Whether it is JSON that can be shown.")
    size: int = Field(description="Of the encoded value, in bytes.")
    task: str | None = Field(description="This and the next three with `result_extended`.")


@router.get("/{task_id}", summary="Get a task's result")
def get_result(call: TheCall, task_id: Annotated[str, Path(max_length=255)]) -> FoundResult:
    """Returns the result of a job that the caller may see; admins see those of all tasks."""
    with call.backend.transaction() as connection:
        result = visible_result(connection, call, task_id)
    return FoundResult.model_validate(result._asdict())
