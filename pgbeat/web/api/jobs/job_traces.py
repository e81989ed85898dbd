"""`/jobs/ID/trace`: what a job and its retries did when."""

from datetime import datetime
from uuid import UUID

from fastapi import APIRouter
from pydantic import BaseModel, Field

from pgbeat.database import connections
from pgbeat.jobs.explaining import trace_rows
from pgbeat.jobs.explaining.trace import Kind
from pgbeat.views import jobs as views
from pgbeat.web.api.jobs.job_models import JobId
from pgbeat.web.api.visible import visible_job
from pgbeat.web.calls import TheCall

router = APIRouter(prefix="/jobs", tags=["jobs"])


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
        "its message; `running`: one for each execution."
    )
    started_at: datetime
    finished_at: datetime | None = Field(description="null if it lasts.")
    duration_seconds: float = Field(description="Until now, if it lasts.")
    state: str | None = Field(
        description="How an execution ended, which may be `lost`, or the job."
    )
    execution: int | None = Field(description="Its number.")
    where: str | None = Field(description="The lane, queue or worker.")


class JobTrace(BaseModel):
    """The phases of a job and its retries, in order."""

    since: datetime
    until: datetime
    is_whole: bool = Field(description="False if there are more than 100 executions.")
    phases: list[TracePhase]


@router.get("/{job_id}/trace", summary="Get a job's trace")
def job_trace(call: TheCall, job_id: JobId) -> JobTrace:
    """Returns when a job and its retries waited, for what, and when they ran."""
    with call.backend.transaction() as connection:
        job = visible_job(connection, call, job_id)
        now = connections.now(connection)
        trace = trace_rows.of_job(connection, job, now)
    return JobTrace.model_validate(views.trace(trace, now))
