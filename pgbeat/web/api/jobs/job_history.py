"""`/jobs/ID/trace`, `logs`, `stack` and `/executions/ID`: what a job did, does, and logged."""

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, Field

from pgbeat.database import connections
from pgbeat.errors import NotFound
from pgbeat.jobs.explaining import trace_rows
from pgbeat.jobs.explaining.trace import Kind
from pgbeat.jobs.running import executions, stacks, steps, task_logs
from pgbeat.jobs.running.executions import State
from pgbeat.views import jobs as views
from pgbeat.web.api.bodies import of_row
from pgbeat.web.api.jobs.job_models import FoundExecution, JobId
from pgbeat.web.api.visible import visible_job
from pgbeat.web.calls import TheCall

router = APIRouter(tags=["jobs"])


class TracePhase(BaseModel):
    """What a job did for some time; `created` and `ended` are moments."""

    job_id: UUID
    attempt: int = Field(description="The attempt that the job is.")
    kind: Kind = Field(
        description="`approval`, `paused`, `blocked`: it waits for a person or for other jobs "
        "(parents, or earlier members of its group); `scheduled`, `backoff`, `snoozed`: for its "
        "first time, that of a retry, or after a snooze; `lane`, `queue`: for a slot, then for a "
        "worker, also for another one after a lost execution; `lane_or_queue`: for both, before "
        "its first snooze, since a job keeps only its last dispatch; `unsent`: for beat to send "
        "its message; `running`: one for each execution, then each `step` in it, and "
        "each `sleep` and `wait` that was over at once; others take the place of `snoozed`."
    )
    started_at: datetime
    finished_at: datetime | None = Field(description="null if it lasts.")
    duration_seconds: float = Field(description="Until now, if it lasts.")
    state: str | None = Field(
        description="How an execution ended, which may be `lost`, or the job; `timed_out`: a wait."
    )
    execution: int | None = Field(description="Its number.")
    where: str | None = Field(
        description="The lane, queue or worker, the name of a step or sleep, or an event's key."
    )
    value: Any = Field(description="What a step returned, or an event's value, if that is JSON.")
    note: str | None = Field(description="That steps came out of order in an execution.")


class JobTrace(BaseModel):
    """The phases of a job and its retries, in order."""

    since: datetime
    until: datetime
    is_whole: bool = Field(description="False if there are more than 100 executions.")
    phases: list[TracePhase]


@of_row(task_logs.LogLine)
class JobLogLine(BaseModel):
    """What a task logged at one time."""

    level: str = Field(examples=["INFO"])
    logger: str = Field(examples=["shop.tasks"])


@of_row(task_logs.ExecutionLog)
class ExecutionLogs(BaseModel):
    """The last lines of an execution."""

    state: State
    omitted: int = Field(description="Lines before them that were not kept.")
    lines: list[JobLogLine]


class JobLogs(BaseModel):
    """The logs of a job's executions, the newest first."""

    executions: list[ExecutionLogs]


@of_row(stacks.Stack)
class JobStack(BaseModel):
    """What a task was doing."""

    number: int = Field(description="The execution's.")
    memory_mb: float | None = Field(description="Resident, of its process.")
    stack: str = Field(description="Lines as in a traceback; the innermost call is the last.")


class JobStacks(BaseModel):
    """The stacks of a job's executions, the newest first."""

    stacks: list[JobStack]


@router.get("/jobs/{job_id}/trace", summary="Get a job's trace")
def job_trace(call: TheCall, job_id: JobId) -> JobTrace:
    """Returns when a job and its retries waited, for what, and when they ran."""
    with call.backend.transaction() as connection:
        job = visible_job(connection, call, job_id)
        now = connections.now(connection)
        known = steps.of_job(connection, call.redactor, job)
        trace = trace_rows.of_job(connection, call.redactor, job, now, known)
    return JobTrace.model_validate(views.trace(trace, now))


@router.get("/jobs/{job_id}/logs", summary="Get what a job logged")
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


@router.get("/jobs/{job_id}/stack", summary="Get what a job is doing")
def job_stack(
    call: TheCall,
    job_id: JobId,
    ask: Annotated[bool, Query(description="false: only return what was kept.")] = True,
) -> JobStacks:
    """Asks a running job what it is doing, and returns the stacks that are kept of it.

    Its process answers within about a second. If it hasn't after five, the status is 503.
    """
    with call.backend.asking() if ask else call.backend.session() as connection:
        job = visible_job(connection, call, job_id)
        rows = stacks.of_job(connection, call.redactor, job, ask_first=ask)
    return JobStacks(stacks=[JobStack.model_validate(views.stack(row)) for row in rows])


@router.get("/executions/{execution_id}", summary="Get an execution")
def get_execution(call: TheCall, execution_id: Annotated[UUID, Path()]) -> FoundExecution:
    """Returns an execution."""
    with call.backend.transaction() as connection:
        run = executions.get(connection, execution_id)
        try:
            job = visible_job(connection, call, run.job_id)
        except NotFound:
            raise NotFound(f"there is no execution {execution_id}") from None
    run = call.redactor.row(run, job.task)
    return FoundExecution.model_validate(views.execution(run))
