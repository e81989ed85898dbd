"""`/jobs`: units of work, made, watched, steered."""

from collections.abc import Callable
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Query, Response
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field
from sqlalchemy import Connection

from pgbeat.database import connections
from pgbeat.errors import InvalidJob, NotFound, NotUnique
from pgbeat.jobs import changes as job_changes
from pgbeat.jobs import control, executions, permissions, retries
from pgbeat.jobs import explain as whereabouts
from pgbeat.jobs import model as jobs
from pgbeat.jobs.model import Filter, Job
from pgbeat.monitoring import statistics
from pgbeat.schedules import model as schedules
from pgbeat.web.api.bodies import Body, Length
from pgbeat.web.api.job_models import (
    ChainedJob,
    ExecutionPage,
    FoundExecution,
    FoundJob,
    JobDetail,
    JobId,
    JobMade,
    JobOrder,
    JobPage,
    JobStats,
    JobWhereabouts,
    ListedJob,
    execution,
    found,
    progress,
    shown,
    stats,
)
from pgbeat.web.api.labels import LabelFilter, labels_of
from pgbeat.web.api.paging import After, Limit, cursor, moment, number, read
from pgbeat.web.api.steering import seen_job
from pgbeat.web.backend import Backend, TheBackend
from pgbeat.web.identity import Caller, TheCaller

router = APIRouter(prefix="/jobs", tags=["jobs"])

Word = Annotated[str | None, Query(max_length=255)]


class JobCancel(Body):
    """Why a job is cancelled."""

    reason: str | None = Field(None, max_length=1000, examples=["the source is down"])


class JobRetry(Body):
    """How a job is tried again."""

    priority: int | None = Field(None, ge=0, le=255, description="The new one's; as it was.")


class JobChanges(Body):
    """What is to be changed of a job that waits."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"priority": 9, "countdown": "10 minutes"}]}
    )

    priority: int | None = Field(None, ge=0, le=255)
    lane: str | None = Field(None, description="An administrator's to change; null: in none.")
    run_at: AwareDatetime | None = Field(None, description="null: as soon as possible.")
    countdown: Length | None = Field(None, description="Not before so long from now.")
    max_attempts: int | None = Field(None, ge=1, le=1000)
    retry_base: Length | None = None
    retry_cap: Length | None = None


class JobMove(Body):
    """Where a job goes in its lane's line."""

    where: Literal["front", "back", "before", "after"]
    other: UUID | None = Field(None, description="The job that it goes before or after.")
    priority: int | None = Field(
        None, ge=0, le=255, description="Its new one: the front and the back are those of it."
    )


class JobMoved(FoundJob):
    """A job with its new place."""

    place: int = Field(description="1 for the one that gets the next slot.")


class JobDeleted(BaseModel):
    """That it was done."""

    success: bool = True
    message: str


# -- looked at


@router.get("", summary="List jobs")
def list_jobs(
    backend: TheBackend,
    caller: TheCaller,
    state: Annotated[jobs.State | None, Query()] = None,
    task: Word = None,
    schedule: Annotated[str | None, Query(max_length=200)] = None,
    template: Word = None,
    lane: Word = None,
    group: Annotated[UUID | None, Query()] = None,
    created_by: Annotated[str | None, Query(max_length=255, examples=["user:alice"])] = None,
    job_source: Annotated[
        Literal["user_cli", "user_api", "scheduled_task", "system"] | None, Query()
    ] = None,
    label: LabelFilter = None,
    system: Annotated[bool | None, Query(description="Only the system's, or the others.")] = None,
    limit: Limit = 50,
    after: After = None,
) -> JobPage:
    """Jobs, the newest first: the caller's own, an administrator's all."""
    before = None if after is None else read(after, moment, UUID)
    which = permissions.visible(
        caller,
        Filter(
            namespace=backend.namespace, state=state, task=task, lane=lane, template=template,
            group_id=None if group is None else str(group), created_by=created_by,
            is_system_job=system, job_source=job_source, labels=labels_of(label) or None,
        ),
    )  # fmt: skip
    with backend.transaction() as connection:
        if schedule is not None:
            which = which._replace(schedule_id=seen_schedule(connection, backend, caller, schedule))
        rows = jobs.listing(connection, which, before=before, limit=limit + 1)
        runs = executions.newest(connection, [row.id for row in rows if row.state == "running"])
        made = executions.artifacts(connection, [row.id for row in rows[:limit]])
    last = rows[limit - 1] if len(rows) > limit else None
    return JobPage(
        jobs=[
            ListedJob.model_validate(
                shown(row)
                | {"progress": progress(runs.get(row.id)), "artifacts": made.get(row.id, [])}
            )
            for row in rows[:limit]
        ],
        next=None if last is None else cursor(last.created_at, last.id),
    )


def seen_schedule(connection: Connection, backend: Backend, caller: Caller, name: str) -> int:
    """The id of the schedule of that name; -1 for none. Raises `NotFound` for administrators: which
    names there are is not for everybody."""
    try:
        return schedules.get(connection, name, namespace=backend.namespace).id
    except NotFound:
        if caller.is_admin:
            raise
        return -1


@router.get("/{job_id}", summary="Get a job")
def get_job(backend: TheBackend, caller: TheCaller, job_id: JobId) -> JobDetail:
    """A job, with where it is, its ten newest executions, and the jobs that try the same again."""
    with backend.transaction() as connection:
        job = seen_job(connection, backend, caller, job_id)
        where = whereabouts.of_job(connection, job, connections.now(connection))
        runs = executions.of_job(connection, job.id, limit=10)
        chain = retries.chain(connection, job.id)
        made = executions.artifacts(connection, [job.id])
    return JobDetail.model_validate(
        shown(job)
        | {
            "progress": progress(runs[0] if runs else None),
            "artifacts": made.get(job.id, []),
            "where": JobWhereabouts(cause=where.cause, sentence=where.sentence),
            "executions": [FoundExecution.model_validate(execution(run)) for run in runs],
            "chain": [
                ChainedJob.model_validate(each._asdict() | {"status": each.state}) for each in chain
            ],
        }
    )


@router.get("/{job_id}/executions", summary="List a job's executions")
def list_executions(
    backend: TheBackend, caller: TheCaller, job_id: JobId, limit: Limit = 50, after: After = None
) -> ExecutionPage:
    """A job's executions, the newest first."""
    before = None if after is None else read(after, number)[0]
    with backend.transaction() as connection:
        job = seen_job(connection, backend, caller, job_id)
        runs = executions.of_job(connection, job.id, before=before, limit=limit + 1)
        total = executions.count_of_job(connection, job.id)
    more = sorted(run.number for run in runs)[1] if len(runs) > limit else None
    return ExecutionPage(
        executions=[
            FoundExecution.model_validate(execution(run))
            for run in runs
            if more is None or run.number >= more
        ],
        total=total,
        limit=limit,
        next=None if more is None else cursor(more),
    )


@router.get("/{job_id}/stats", summary="Say how a job's executions came out")
def job_stats(backend: TheBackend, caller: TheCaller, job_id: JobId) -> JobStats:
    """Figures of the executions of a job, of those that it tries again, and of those that try it
    again: of the newest 1,000."""
    with backend.transaction() as connection:
        job = seen_job(connection, backend, caller, job_id)
        figures = statistics.of_job(connection, job.id, namespace=backend.namespace)
    return stats(figures)


# -- made


@router.post(
    "",
    status_code=201,
    summary="Make a job",
    responses={200: {"model": JobMade, "description": "Another job has its unique key."}},
)
def create_job(
    backend: TheBackend, caller: TheCaller, body: JobOrder, response: Response
) -> JobMade:
    """Makes a job of a task, or from a template; it is the caller's."""
    order = body.order()
    with backend.work(caller) as unit:
        with unit.transaction():
            made = control.submit(unit, order, job_source="user_api")
            if not (made.is_new or caller.is_admin or made.job.created_by == caller.name):
                raise NotUnique("a job of somebody else has the same unique key")
        job = _now(unit.connection, made.job)
    if not made.is_new:
        response.status_code = 200
    return JobMade.model_validate(shown(job) | {"is_new": made.is_new})


# -- steered


def _steer(
    backend: Backend, caller: Caller, job_id: UUID, act: Callable[..., Job], **given: Any
) -> FoundJob:
    """Applies one of `control`'s verbs to a job that the caller may see; returns the job as it is
    then."""
    with backend.work(caller) as unit:
        with unit.transaction():
            seen_job(unit.connection, backend, caller, job_id)
            job = act(unit, job_id, **given)
        return found(_now(unit.connection, job))


def _now(connection: Connection, job: Job) -> Job:
    """Returns the job as it is once its lane was dispatched; as it was, if it is gone already."""
    rows = jobs.find(connection, [job.id])
    return rows[0] if rows else job


@router.post("/{job_id}/cancel", summary="Cancel a job")
def cancel_job(
    backend: TheBackend, caller: TheCaller, job_id: JobId, body: JobCancel | None = None
) -> FoundJob:
    """Ends a job. One that waits ends now. Of one that runs, its worker is asked to end it: it is
    `running` until it did, with `cancel_requested_at`."""
    reason = None if body is None else body.reason
    return _steer(backend, caller, job_id, control.cancel, reason=reason)


@router.post("/{job_id}/retry", summary="Retry a job")
def retry_job(
    backend: TheBackend, caller: TheCaller, job_id: JobId, body: JobRetry | None = None
) -> FoundJob:
    """Tries again what a job did that failed, was cancelled or skipped: the answer is the new job,
    whose `retry_of` is the old one. Where a retry waits for its time, that one comes now."""
    given = {"job_source": "user_api", "priority": None if body is None else body.priority}
    return _steer(backend, caller, job_id, control.retry, **given)


@router.post("/{job_id}/pause", summary="Pause a job")
def pause_job(backend: TheBackend, caller: TheCaller, job_id: JobId) -> FoundJob:
    """Holds a job that has not begun until it is resumed."""
    return _steer(backend, caller, job_id, control.pause)


@router.post("/{job_id}/resume", summary="Resume a job")
def resume_job(backend: TheBackend, caller: TheCaller, job_id: JobId) -> FoundJob:
    """Lets a paused job go on: to its queue, to its place in its lane's line, or until its time."""
    return _steer(backend, caller, job_id, control.resume)


@router.patch("/{job_id}", summary="Change a job that waits")
def update_job(backend: TheBackend, caller: TheCaller, job_id: JobId, body: JobChanges) -> FoundJob:
    """Changes what is given of a job that has not begun: its priority, when it runs, its retries,
    or, for administrators, its lane. 409 once a worker has it."""
    values = body.model_dump(exclude_unset=True)
    return _steer(backend, caller, job_id, job_changes.update, values=values)


@router.post("/{job_id}/approve", summary="Approve a job")
def approve_job(backend: TheBackend, caller: TheCaller, job_id: JobId) -> FoundJob:
    """Lets a job go on that waits for approval: an administrator's to do."""
    return _steer(backend, caller, job_id, control.approve)


@router.post("/{job_id}/move", summary="Move a job in its lane's line")
def move_job(backend: TheBackend, caller: TheCaller, job_id: JobId, body: JobMove) -> JobMoved:
    """Moves a job to the front or the back of those of its priority, or next to another."""
    beside = body.where in ("before", "after")
    if beside != (body.other is not None):
        raise InvalidJob.of(
            "other",
            "required",
            f"other: {body.where} which job?" if beside else f"other: {body.where} takes none",
        )
    if beside and body.priority is not None:
        raise InvalidJob.of(
            "priority", "conflict", "priority: next to another job, it takes on that one's"
        )
    with backend.unit(caller) as unit:
        seen_job(unit.connection, backend, caller, job_id)
        moved, place = control.move(unit, job_id, body.where, body.other, priority=body.priority)
    return JobMoved.model_validate(shown(moved) | {"place": place})


@router.delete("/{job_id}", summary="Delete a job")
def delete_job(backend: TheBackend, caller: TheCaller, job_id: JobId) -> JobDeleted:
    """Deletes a job that has ended, with its executions."""
    with backend.unit(caller) as unit:
        seen_job(unit.connection, backend, caller, job_id)
        control.delete(unit, job_id)
    return JobDeleted(message=f"Job {job_id} deleted")
