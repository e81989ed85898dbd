"""Jobs and executions in requests and responses."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import Path
from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field

from pgbeat.jobs import dependencies
from pgbeat.jobs import policies as job_policies
from pgbeat.jobs.executions import Execution
from pgbeat.jobs.model import Job, State
from pgbeat.jobs.policies import JobPolicy
from pgbeat.jobs.prepare import JobSpec
from pgbeat.web.api.bodies import (
    Body,
    Json,
    Length,
    Next,
    PlainJson,
    PlainList,
    example,
    is_deep,
    set_fields,
)


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


#: A number of milliseconds, rounded.
Whole = Annotated[int | None, BeforeValidator(_whole)]
#: A job's id in a path.
JobId = Annotated[UUID, Path(description="A job's id.")]
_SPEC = ("task", "args", "kwargs", "queue", "options", "run_at", "countdown", "description",
         "labels", "metadata", "depends_on", "depends_on_outcome", "key")  # fmt: skip


class JobOrder(Body):
    """A new job, of a task or from a template."""

    model_config = example(
        {"task": "tasks.crawl", "kwargs": {"source_id": "news-site"}, "lane": "crawl"},
        {"template": "nightly-report", "countdown": "10 minutes"},
    )

    task: str | None = Field(None, max_length=255, examples=["tasks.crawl"])
    template: str | None = Field(
        None, description="Gives the task, arguments and policy that are left out here."
    )
    args: PlainList | None = None
    kwargs: PlainJson | None = Field(None, examples=[{"source_id": "news-site"}])
    queue: str | None = Field(None, min_length=1, max_length=200)
    options: PlainJson | None = Field(None, description="Celery's publish options.")
    run_at: AwareDatetime | None = Field(None, description="The earliest time to run.")
    countdown: Length | None = Field(None, description="The shortest delay from now.")
    lane: str | None = None
    priority: int | None = Field(None, ge=0, le=255)
    max_attempts: int | None = Field(None, ge=1, le=1000)
    retry_base: Length | None = None
    retry_cap: Length | None = None
    tags: list[str] | None = None
    resources: dict[str, float] | None = Field(None, examples=[{"gpu": 1}])
    unique: bool | None = Field(
        None, description="Return an unfinished job with the same arguments instead."
    )
    unique_key: str | None = Field(
        None, description="Return an unfinished job with this key instead."
    )
    unique_for: Length | None = Field(
        None, description="Also return a finished one that was made within this time."
    )
    requires_approval: bool | None = None
    must_start_within: Length | None = Field(
        None, description="It is late if it has not started by then, from run_at or its creation."
    )
    must_end_within: Length | None = Field(
        None, description="It is late if it and its retries have not ended by then."
    )
    description: str | None = Field(None, max_length=2000)
    labels: dict[str, str] | None = Field(
        None, description="Names and values to find it by.", examples=[{"team": "billing"}]
    )
    metadata: PlainJson | None = Field(None, description="Anything else to keep with it.")
    depends_on: Annotated[list[int | str], Field(max_length=dependencies.MOST)] | None = Field(
        None,
        description="Jobs that must end first: ids or, in a group, keys and positions of members.",
    )
    depends_on_outcome: Literal["completed", "finished"] | None = Field(
        None, description="How they must end: by default `completed`, or `finished`, also failed."
    )
    key: str | None = Field(
        None, max_length=200, description="In a group, the name by which others depend on it."
    )

    def spec(self) -> JobSpec:
        """Returns the job's specification. Raises `InvalidJob`."""
        policy = job_policies.parse(set_fields(self, *JobPolicy._fields))
        return JobSpec(policy=policy, **set_fields(self, *_SPEC))

    def member(self) -> Json:
        """Returns it as a member of a group, with the policy's keys beside the others."""
        return set_fields(self, *type(self).model_fields)


class JobLike(JobOrder):
    """A new job, of a task, from a template or like another job."""

    like: UUID | None = Field(
        None,
        description="A job that gives what is left out here but its time, unique key and parents; "
        "`kwargs` and `options` are added to that job's.",
    )


class FoundJob(BaseModel):
    """A job. Durations are seconds."""

    id: UUID
    status: State
    task: str = Field(examples=["tasks.crawl"])
    args: list[Any] | None = Field(description="null if they can't be shown.")
    kwargs: Json | None
    queue: str | None
    options: Json
    schedule: str | None = Field(description="The schedule that launched it.")
    due_at: datetime | None
    run_key: str | None = Field(
        description="The launcher's key for one of the jobs that it launched together."
    )
    template: str | None
    lane: str | None
    priority: int
    tags: list[str]
    resources: dict[str, float]
    is_paused: bool
    paused_at: datetime | None = Field(
        description="Since when it is paused, or awaits approval; null if it isn't."
    )
    awaits_approval: bool
    requires_approval: bool = Field(
        description="It and its retries run only once an administrator has approved them."
    )
    is_blocked: bool = Field(
        description="It waits for others: in its group, the group itself, or what it depends on."
    )
    unfinished_parents: int = Field(description="Jobs that it depends on, and that have not ended.")
    approved_by: str | None
    approved_at: datetime | None
    next_run_at: datetime | None = Field(description="When it will run, if it waits for a time.")
    dispatched_at: datetime | None = Field(description="When its message went to the broker.")
    attempt: int
    max_attempts: int
    current_retry_count: int
    retry_base: Length
    retry_cap: Length
    retry_of: UUID | None
    retried_by: UUID | None
    group_id: UUID | None
    group_position: int | None
    callback_of: UUID | None = Field(description="The group whose callback it is.")
    root_id: UUID | None = Field(
        description="The job, or the Celery group, at the top of what it is a part of."
    )
    parent_id: UUID | None = Field(description="The task that sent it.")
    unique_key: str | None
    job_source: str
    created_by: str = Field(examples=["user:alice"])
    is_system_job: bool
    created_at: datetime
    started_at: datetime | None
    completed_at: datetime | None = Field(description="When it ended, in whatever state.")
    cancel_requested_by: str | None
    cancel_requested_at: datetime | None
    cancel_reason: str | None = Field(description="Why it was cancelled while it ran.")
    cancelled_at: datetime | None
    must_start_by: datetime | None
    must_end_by: datetime | None
    late_at: datetime | None = Field(description="When it was marked as late.")
    missed_deadlines: list[Literal["start", "end"]]
    worker: str | None
    error: str | None
    description: str | None
    labels: dict[str, str]
    metadata: Json


class JobProgress(BaseModel):
    """The progress that a task has reported."""

    done: float | None
    total: float | None
    percent: float | None = Field(description="0 to 100.")
    message: str | None


class ListedJob(FoundJob):
    """A job in a list."""

    progress: JobProgress | None
    artifacts: list[str] = Field(
        description="Paths or URLs of what its executions produced.",
        examples=[["s3://reports/2026-11.pdf"]],
    )


class JobPage(BaseModel):
    """A page of jobs, the newest first."""

    jobs: list[ListedJob]
    next: Next
    is_cut: bool = Field(
        False, description="true: the search ended before `limit` jobs were found; go on at `next`."
    )


class FoundExecution(BaseModel):
    """An attempt at a job on a worker."""

    id: UUID
    job_id: UUID
    execution_number: int
    status: Literal["running", "completed", "failed", "cancelled", "skipped", "snoozed"]
    lost: bool = Field(description="Its process or machine died.")
    started_at: datetime
    completed_at: datetime | None
    duration_ms: Whole
    items_crawled: float | None = Field(description="From its metadata.")
    items_indexed: float | None = Field(description="From its metadata.")
    retry_attempt: int
    error_message: str | None
    cpu_time_ms: Whole
    memory_peak_mb: float | None
    worker: str
    progress: JobProgress | None
    artifacts: list[str] = Field(description="Paths or URLs of what its task produced.")
    metadata: Json


class ExecutionDetail(FoundExecution):
    """An execution with its result or traceback."""

    result: str | None
    traceback: str | None
    pid: int | None
    acks_late: bool


class ExecutionPage(BaseModel):
    """A page of a job's executions, the newest first."""

    executions: list[FoundExecution]
    total: int
    limit: int
    next: Next


class JobWhereabouts(BaseModel):
    """Explains where a job is, and why it isn't running."""

    cause: str = Field(examples=["lane"])
    sentence: str = Field(examples=["waits for lane 'gpu', 3 go before it"])


class ChainedJob(BaseModel):
    """A job in a chain of retries."""

    id: UUID
    status: str
    attempt: int
    created_at: datetime
    error: str | None


class JobParent(BaseModel):
    """A job on which another one depends."""

    model_config = ConfigDict(from_attributes=True)

    id: UUID
    needs: Literal["completed", "finished"] = Field(description="How it must end.")
    outcome: str | None = Field(
        description="How it ended, `retried` if its retry takes its place, or `gone`."
    )


class JobDetail(ListedJob):
    """A job with its explanation, newest executions, retries and dependencies."""

    checkpoint: Any
    where: JobWhereabouts
    executions: list[FoundExecution]
    chain: list[ChainedJob]
    depends_on: list[JobParent] = Field(description="Its parents, the first 100.")
    dependents: list[UUID] = Field(description="Jobs that depend on it, the first 100.")


class JobMade(FoundJob):
    """A job that was made, or that has the same unique key."""

    is_new: bool = Field(description="False if this is another job with the same unique key.")


class JobOrders(Body):
    """Many new jobs."""

    model_config = example({"jobs": [{"task": "tasks.load", "args": ["a"]}, "tasks.report"]})

    jobs: list[JobOrder | str] = Field(
        min_length=1, max_length=10_000, description="Jobs, or names of tasks."
    )


class JobIds(BaseModel):
    """The jobs that were made, or that have the same unique key, in the order of the request."""

    ids: list[UUID]


class JobStats(BaseModel):
    """Statistics of the executions of a job and its retries."""

    model_config = ConfigDict(from_attributes=True)

    total_executions: int = Field(validation_alias="total")
    successful_runs: int = Field(validation_alias="completed")
    failed_runs: int = Field(validation_alias="failed")
    running: int
    cancelled_runs: int = Field(validation_alias="cancelled")
    skipped_runs: int = Field(validation_alias="skipped")
    lost_runs: int = Field(validation_alias="lost")
    average_duration_ms: Whole = Field(validation_alias="average_ms")
    p95_duration_ms: Whole = Field(validation_alias="p95_ms")
    last_execution_at: datetime | None = Field(validation_alias="last_at")
    next_scheduled_at: datetime | None = Field(validation_alias="next_at")
    success_rate: float | None = Field(description="0 to 1.", examples=[0.95])


def shown(job: Job) -> Json:
    """Returns the fields of `FoundJob`."""
    deep = {name: None for name in ("args", "kwargs", "checkpoint") if is_deep(getattr(job, name))}
    return job._asdict() | {
        **deep,
        "status": job.state,
        "is_paused": job.state == "paused",
        "next_run_at": job.run_at if job.state in ("scheduled", "paused") else None,
        "current_retry_count": job.attempt - 1,
        "completed_at": job.finished_at,
        "cancelled_at": job.finished_at if job.state == "cancelled" else None,
    }


def found(job: Job) -> FoundJob:
    """Returns a job as responses have it."""
    return FoundJob.model_validate(shown(job))


def progress(done: float | None, total: float | None, message: str | None) -> JobProgress | None:
    """Returns progress with its percentage; `None` if a task reported none."""
    if done is None and message is None:
        return None
    percent = min(100.0, 100 * done / total) if done is not None and total else None
    return JobProgress(done=done, total=total, percent=percent, message=message)


def progress_of(run: Execution | None) -> JobProgress | None:
    """Returns the progress of an execution, if there is any."""
    return run and progress(run.progress_done, run.progress_total, run.progress_message)


def execution(run: Execution) -> Json:
    """Returns the fields of `FoundExecution` and `ExecutionDetail`."""
    metadata = {key: value for key, value in run.metadata.items() if key != "artifacts"}
    return run._asdict() | {
        "artifacts": run.artifacts,
        "metadata": {} if is_deep(run.metadata) else metadata,
        "execution_number": run.number,
        "status": run.state,
        "completed_at": run.finished_at,
        "items_crawled": _count(run.metadata, "items_crawled"),
        "items_indexed": _count(run.metadata, "items_indexed"),
        "error_message": run.error,
        "progress": progress_of(run),
    }


def _count(metadata: Mapping[str, Any], key: str) -> float | None:
    value = metadata.get(key)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None
