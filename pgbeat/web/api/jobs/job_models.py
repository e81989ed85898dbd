"""Jobs and executions in requests and responses."""

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import Path
from pydantic import AwareDatetime, BaseModel, Field, model_validator

from pgbeat.jobs.flow import dependencies
from pgbeat.jobs.policy import policies as job_policies
from pgbeat.jobs.policy.policies import JobPolicy
from pgbeat.jobs.preparing.prepare import JobSpec
from pgbeat.jobs.rows.model import Job, State
from pgbeat.jobs.running import executions
from pgbeat.monitoring.statistics import ExecutionStatistics
from pgbeat.views import jobs as views
from pgbeat.web.api.bodies import (
    Body,
    Json,
    Length,
    Next,
    PlainJson,
    PlainList,
    example,
    of_row,
    set_fields,
)

#: Characters of arguments, options and metadata with which a list of jobs ends.
MOST = 1_000_000
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


class Ordered(JobOrder):
    """A new job, or the name of its task."""

    @model_validator(mode="before")
    @classmethod
    def _of_name(cls, value: Any) -> Any:
        return {"task": value} if isinstance(value, str) else value

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: Any) -> Any:
        return {"anyOf": [handler(schema), {"type": "string"}]}


class JobLike(JobOrder):
    """A new job, of a task, from a template or like another job."""

    like: UUID | None = Field(
        None,
        description="A job to take all else from, except its times, unique key and parents; "
        "`kwargs` and `options` are added to that job's.",
    )


@of_row(Job, views.HIDDEN)
class FoundJob(BaseModel):
    """A job. Durations are seconds."""

    task: str = Field(examples=["tasks.crawl"])
    args: list[Any] | None = Field(description="null if they can't be shown.")
    schedule: str | None = Field(description="The schedule that launched it.")
    trigger: str | None = Field(description="Why its schedule launched it.")
    interval_start: datetime | None = Field(description="The beginning of the time it is for.")
    interval_end: datetime | None = Field(description="null: `due_at`.")
    run_key: str | None = Field(
        description="The launcher's key for one of the jobs that it launched together."
    )
    paused_at: datetime | None = Field(
        description="Since when it is paused, or awaits approval; null if it isn't."
    )
    requires_approval: bool = Field(
        description="It and retries by hand wait for an administrator's approval."
    )
    is_blocked: bool = Field(
        description="It waits for others: in its group, the group itself, or what it depends on."
    )
    unfinished_parents: int = Field(description="Jobs that it depends on, and that have not ended.")
    run_at: datetime | None = Field(description="When it may run, if it waits for a time.")
    dispatched_at: datetime | None = Field(description="When its message went to the broker.")
    waits_for_event: str | None = Field(
        description="Key of the event that its task waits for.", examples=["paid/12"]
    )
    callback_of: UUID | None = Field(description="The group whose callback it is.")
    root_id: UUID | None = Field(
        description="The job, or the Celery group, at the top of what it is a part of."
    )
    parent_id: UUID | None = Field(description="The task that sent it.")
    created_by: str = Field(examples=["user:alice"])
    finished_at: datetime | None = Field(description="When it ended, in whatever state.")
    cancel_reason: str | None = Field(description="Why it was cancelled while it ran.")
    late_at: datetime | None = Field(description="When it was marked as late.")
    missed_deadlines: list[Literal["start", "end"]]


class JobProgress(BaseModel):
    """The progress that a task has reported."""

    done: float | None
    total: float | None
    percent: float | None = Field(description="0 to 100.")
    message: str | None


class ListedJob(FoundJob):
    """A job in a list."""

    progress: JobProgress | None = Field(description="While it runs.")
    artifacts: list[str] = Field(
        description="Paths or URLs of what its executions produced.",
        examples=[["s3://reports/2026-11.pdf"]],
    )


class JobPage(BaseModel):
    """A page of jobs, the newest first."""

    jobs: list[ListedJob]
    next: Next
    is_cut: bool = Field(
        False, description="true: the page ends before `limit` jobs; continue at `next`."
    )


@of_row(executions.Execution, views.UNSHOWN)
class FoundExecution(BaseModel):
    """An attempt at a job on a worker."""

    state: executions.State
    lost: bool = Field(description="Its process or machine died.")
    retry_attempt: int = Field(description="How often Celery retried its job before it.")
    duration_ms: int | None
    cpu_time_ms: int | None
    progress: JobProgress | None
    artifacts: list[str] = Field(description="Paths or URLs of what its task produced.")


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
    advice: str = Field(description="What to do about it; may be empty.")


class ChainedJob(BaseModel):
    """A job in a chain of retries."""

    id: UUID
    state: State
    attempt: int
    created_at: datetime
    error: str | None


class JobParent(BaseModel):
    """A job on which another one depends."""

    id: UUID
    needs: Literal["completed", "finished"] = Field(description="How it must end.")
    outcome: str | None = Field(
        description="How it ended, `retried` if its retry takes its place, or `gone`."
    )


class JobStep(BaseModel):
    """What a job or one that it retries did once, or for what it sleeps or waits."""

    name: str = Field(description="With `#2` if it is the second of its name.")
    kind: Literal["step", "sleep", "wait"]
    state: Literal["done", "sleeping", "waiting", "timed_out"]
    began_at: datetime
    until: datetime | None = Field(description="When a sleep ends, or a wait times out.")
    finished_at: datetime | None
    value: Any = Field(description="What it returned, or its event's value, if that is JSON.")


class JobDetail(ListedJob):
    """A job with its explanation, newest executions, steps, retries and dependencies."""

    checkpoint: Any
    where: JobWhereabouts
    executions: list[FoundExecution]
    steps: list[JobStep] = Field(description="The first 1,000.")
    chain: list[ChainedJob]
    depends_on: list[JobParent] = Field(description="Its parents, the first 100.")
    dependents: list[UUID] = Field(description="Jobs that depend on it, the first 100.")


class JobMade(FoundJob):
    """A job that was made, or that has the same unique key."""

    is_new: bool = Field(description="False if this is another job with the same unique key.")


class JobOrders(Body):
    """Many new jobs."""

    model_config = example({"jobs": [{"task": "tasks.load", "args": ["a"]}, "tasks.report"]})

    jobs: list[Ordered] = Field(
        min_length=1, max_length=10_000, description="Jobs, or names of tasks."
    )


class JobIds(BaseModel):
    """The jobs that were made, or that have the same unique key, in the order of the request."""

    ids: list[UUID]


@of_row(ExecutionStatistics)
class ExecutionFigures(BaseModel):
    """Statistics of executions, the newest 1,000."""

    lost: int = Field(description="Those of the failed and cancelled ones whose process died.")
    average_ms: int | None = Field(description="Of those that completed.", examples=[142000])
    p95_ms: int | None
    last_at: datetime | None = Field(description="When the newest began.")
    last_state: executions.State | None
    next_at: datetime | None = Field(description="When the next is due, if that is known.")
    is_whole: bool = Field(description="Whether these are all executions that are kept.")
    success_rate: float | None = Field(description="0 to 1.", examples=[0.95])
