"""`/jobs`: lists, shows, creates and changes jobs."""

from collections.abc import Callable
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Query, Response
from pydantic import AwareDatetime, Field
from sqlalchemy import Connection

from pgbeat.access.redaction import Redactor
from pgbeat.errors import NotUnique
from pgbeat.jobs.checks import permissions
from pgbeat.jobs.policy.policies import JobPolicy
from pgbeat.jobs.preparing import likeness
from pgbeat.jobs.preparing.details import parse_labels
from pgbeat.jobs.rows import model as jobs
from pgbeat.jobs.rows.filters import Filter
from pgbeat.jobs.rows.model import Job
from pgbeat.jobs.running import executions
from pgbeat.jobs.searching import search
from pgbeat.jobs.submitting import submit_many
from pgbeat.jobs.verbs import changes as job_changes
from pgbeat.jobs.verbs import control
from pgbeat.monitoring import statistics
from pgbeat.views import jobs as views
from pgbeat.web.api.bodies import Body, Done, Length, example
from pgbeat.web.api.jobs import job_models as models
from pgbeat.web.api.jobs.job_queries import Searched, queried
from pgbeat.web.api.labels import LabelFilter
from pgbeat.web.api.paging import After, Limit, cursor, moment, number, read, read_one, split
from pgbeat.web.api.visible import visible_job
from pgbeat.web.calls import TheCall, WebCall

router = APIRouter(prefix="/jobs", tags=["jobs"])

Word = Annotated[str | None, Query(max_length=255)]


class JobCancel(Body):
    """The reason for a cancellation."""

    reason: str | None = Field(None, max_length=1000, examples=["the source is down"])


class JobRetry(Body):
    """Options of a retry."""

    priority: int | None = Field(
        None, ge=0, le=255, description="The new job's; by default, that of the old one."
    )


class JobChanges(Body):
    """Changes of a job that has not started."""

    model_config = example({"priority": 9, "countdown": "10 minutes"})

    priority: int | None = Field(None, ge=0, le=255)
    lane: str | None = Field(None, description="For administrators; null takes it out of its lane.")
    run_at: AwareDatetime | None = Field(None, description="null: as soon as possible.")
    countdown: Length | None = Field(None, description="The shortest delay from now.")
    max_attempts: int | None = Field(None, ge=1, le=1000)
    retry_base: Length | None = None
    retry_cap: Length | None = None


class JobMove(Body):
    """A job's new place in its lane's line."""

    where: Literal["front", "back", "before", "after"]
    other: UUID | None = Field(None, description="The job that it goes before or after.")
    priority: int | None = Field(
        None, ge=0, le=255, description="Its new priority, whose front or back it moves to."
    )


class JobMoved(models.FoundJob):
    """A job with its new place."""

    place: int = Field(description="1 for the job that gets the next slot.")


# -- reading


@router.get("", summary="List jobs")
def list_jobs(
    call: TheCall,
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
    system: Annotated[
        bool | None, Query(description="true: only the system's jobs; false: only the others.")
    ] = None,
    late: Annotated[
        bool | None, Query(description="true: only jobs that missed a deadline; false: the others.")
    ] = None,
    q: Searched = None,
    limit: Limit = 50,
    after: After = None,
) -> models.JobPage:
    """Lists the caller's jobs, the newest first; for administrators, all jobs."""
    fields = {
        "state": state,
        "task": task,
        "lane": lane,
        "template": template,
        "group_id": None if group is None else str(group),
        "created_by": created_by,
        "is_system_job": system,
        "job_source": job_source,
        "late": late,
        "labels": parse_labels(label or ()) or None,
    }
    with call.listing() as connection:
        which = queried(connection, call, q or "", schedule, fields)
        return _page(connection, which, limit, after, call.redactor)


def _page(
    connection: Connection, which: Filter, limit: int, after: str | None, redactor: Redactor
) -> models.JobPage:
    """Returns the jobs of one page, and where the next begins."""
    page = search.page(connection, which, after=read(after, moment, UUID), limit=limit)
    page = search.in_full(connection, page, most=models.MOST)
    rows = views.listed(connection, redactor.rows(page.rows), redactor)
    return models.JobPage(
        jobs=[models.ListedJob.model_validate(row) for row in rows],
        next=cursor(*page.next) if page.next else None,
        is_cut=page.is_cut,
    )


@router.get("/{job_id}", summary="Get a job")
def get_job(call: TheCall, job_id: models.JobId) -> models.JobDetail:
    """Returns a job with its explanation, its ten newest executions and its retries."""
    with call.backend.transaction() as connection:
        job = visible_job(connection, call, job_id)
        detail = views.detail(connection, job, call.redactor, limit=10)
    return models.JobDetail.model_validate(detail)


@router.get("/{job_id}/executions", summary="List a job's executions")
def list_executions(
    call: TheCall, job_id: models.JobId, limit: Limit = 50, after: After = None
) -> models.ExecutionPage:
    """Lists a job's executions, the newest first."""
    before = read_one(after, number)
    with call.backend.transaction() as connection:
        job = visible_job(connection, call, job_id)
        runs = executions.of_job(connection, job.id, before=before, limit=limit + 1)
        total = executions.count_of_job(connection, job.id)
    # Pages go by number. The executions of a page are in the order of their start.
    page, following = split(sorted(runs, key=lambda run: -run.number), limit, "number")
    redactor = call.redactor
    shown = [
        models.FoundExecution.model_validate(views.execution(redactor.row(run, job.task)))
        for run in runs
        if run in page
    ]
    return models.ExecutionPage(executions=shown, total=total, limit=limit, next=following)


@router.get("/{job_id}/stats", summary="Get a job's statistics")
def job_stats(call: TheCall, job_id: models.JobId) -> models.ExecutionFigures:
    """Summarizes the newest 1,000 executions of a job and its chain of retries."""
    with call.backend.transaction() as connection:
        job = visible_job(connection, call, job_id)
        figures = statistics.of_job(connection, job.id, namespace=call.namespace)
    return models.ExecutionFigures.model_validate(views.figures(figures))


# -- creating


@router.post(
    "",
    status_code=201,
    summary="Create a job",
    responses={200: {"model": models.JobMade, "description": "Another job has its unique key."}},
)
def create_job(call: TheCall, body: models.JobLike, response: Response) -> models.JobMade:
    """Creates a job of a task, from a template or like another job. It belongs to the caller."""
    spec = body.spec()
    with call.work() as unit:
        with unit.transaction():
            if body.like is not None:
                visible_job(unit.connection, call, body.like)
                other = jobs.get(unit.connection, body.like)
                redactor = call.redactor
                spec = likeness.complete(unit.connection, redactor, call.caller, other, spec)
            new = control.submit(unit, spec, job_source="user_api")
            permissions.require_own_key(call.caller, new.job)
        job = _now(unit.connection, call, new.job)
    if not new.is_new:
        response.status_code = 200
    return models.JobMade.model_validate(views.job(job) | {"is_new": new.is_new})


@router.post("/many", status_code=201, summary="Create many jobs")
def create_jobs(call: TheCall, body: models.JobOrders) -> models.JobIds:
    """Creates jobs that are the caller's, all or none, in one transaction."""
    orders = [order.member() for order in body.jobs]
    with call.work() as unit, unit.transaction():
        ids = submit_many.submit(unit, orders, JobPolicy(), job_source="user_api")
        if not call.caller.is_admin and jobs.any_of_others(unit.connection, ids, call.caller.name):
            raise NotUnique("a job of somebody else has the same unique key")
    return models.JobIds(ids=[UUID(job_id) for job_id in ids])


# -- changing


def _change(
    call: WebCall, job_id: UUID, verb: Callable[..., Job], **options: Any
) -> models.FoundJob:
    """Applies one of `control`'s verbs to a job that the caller may see, and returns the job."""
    with call.work() as unit:
        with unit.transaction():
            visible_job(unit.connection, call, job_id)
            job = verb(unit, job_id, **options)
        return models.FoundJob.model_validate(views.job(_now(unit.connection, call, job)))


def _now(connection: Connection, call: WebCall, job: Job) -> Job:
    """Returns the job after its lane was dispatched, masked.

    It is the old row if the job was deleted meanwhile.
    """
    rows = jobs.find(connection, [job.id])
    return call.redactor.row(rows[0] if rows else job, job.task)


@router.post("/{job_id}/cancel", summary="Cancel a job")
def cancel_job(
    call: TheCall, job_id: models.JobId, body: JobCancel | None = None
) -> models.FoundJob:
    """Ends a job. A waiting one ends at once. The worker of a running one is asked to end it.

    Until it does, the job is `running`, with `cancel_requested_at`.
    """
    return _change(call, job_id, control.cancel, reason=body.reason if body else None)


@router.post("/{job_id}/retry", summary="Retry a job")
def retry_job(call: TheCall, job_id: models.JobId, body: JobRetry | None = None) -> models.FoundJob:
    """Retries a failed, cancelled or skipped job, and returns the new job.

    Its `retry_of` is the old job. If a retry waits for its time already, that one runs now.
    """
    options = {"job_source": "user_api", "priority": body.priority if body else None}
    return _change(call, job_id, control.retry, **options)


@router.post("/{job_id}/pause", summary="Pause a job")
def pause_job(call: TheCall, job_id: models.JobId) -> models.FoundJob:
    """Holds a job that has not started until it is resumed."""
    return _change(call, job_id, control.pause)


@router.post("/{job_id}/resume", summary="Resume a job")
def resume_job(call: TheCall, job_id: models.JobId) -> models.FoundJob:
    """Lets a paused job continue: to its queue, to its place in its lane, or until its time."""
    return _change(call, job_id, control.resume)


@router.patch("/{job_id}", summary="Change a waiting job")
def update_job(call: TheCall, job_id: models.JobId, body: JobChanges) -> models.FoundJob:
    """Changes the given fields of a job that has not started; only administrators change its lane.

    Responds with 409 once a worker has the job.
    """
    values = body.model_dump(exclude_unset=True)
    return _change(call, job_id, job_changes.update, values=values)


@router.post("/{job_id}/approve", summary="Approve a job")
def approve_job(call: TheCall, job_id: models.JobId) -> models.FoundJob:
    """Lets a job run that waits for approval. For administrators."""
    return _change(call, job_id, control.approve)


@router.post("/{job_id}/move", summary="Move a job in its lane's line")
def move_job(call: TheCall, job_id: models.JobId, body: JobMove) -> JobMoved:
    """Moves a job to the front or back of its priority, or next to another job."""
    with call.unit() as unit:
        visible_job(unit.connection, call, job_id)
        moved, place = control.move(unit, job_id, body.where, body.other, priority=body.priority)
    moved = call.redactor.row(moved, moved.task)
    return JobMoved.model_validate(views.job(moved) | {"place": place})


@router.delete("/{job_id}", summary="Delete a job")
def delete_job(call: TheCall, job_id: models.JobId) -> Done:
    """Deletes a job that has ended, with its executions."""
    with call.unit() as unit:
        visible_job(unit.connection, call, job_id)
        control.delete(unit, job_id)
    return Done(message=f"Job {job_id} deleted")
