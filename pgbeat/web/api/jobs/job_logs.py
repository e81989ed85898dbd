"""`/jobs/ID/logs`: the last lines that a job's executions logged."""

from datetime import datetime
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from pgbeat.jobs.running import task_logs
from pgbeat.jobs.running.executions import State
from pgbeat.views import jobs as views
from pgbeat.web.api.jobs.job_models import JobId
from pgbeat.web.api.visible import visible_job
from pgbeat.web.calls import TheCall

router = APIRouter(prefix="/jobs", tags=["jobs"])


class JobLogLine(BaseModel):
    """What a task logged at one time."""

    at: datetime
    level: str = Field(examples=["INFO"])
    logger: str = Field(examples=["shop.tasks"])
    message: str


class ExecutionLogs(BaseModel):
    """The last lines of an execution."""

    execution_id: UUID
    number: int
    state: State
    started_at: datetime
    omitted: int = Field(description="Lines before them that were not kept.")
    lines: list[JobLogLine]


class JobLogs(BaseModel):
    """The logs of a job's executions, the newest first."""

    executions: list[ExecutionLogs]


@router.get("/{job_id}/logs", summary="Get what a job logged")
def job_logs(
    call: TheCall,
    job_id: JobId,
    execution: Annotated[
        int | None, Query(ge=1, le=2**31 - 1, description="Only that of this number.")
    ] = None,
) -> JobLogs:
    """Returns the last lines that the newest 20 executions logged, of those that logged any."""
    with call.backend.transaction() as connection:
        job = visible_job(connection, call, job_id)
        logs = task_logs.of_job(connection, call.redactor, job, number=execution)
    return JobLogs(executions=[ExecutionLogs.model_validate(views.log(log)) for log in logs])
