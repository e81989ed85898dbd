"""`POST /jobs/bulk`: changes all jobs that a filter matches, some hundred in each request."""

from datetime import datetime
from typing import Any
from uuid import UUID

from fastapi import APIRouter
from pydantic import AwareDatetime, BaseModel, Field
from sqlalchemy import Connection

from pgbeat.errors import InvalidJob
from pgbeat.jobs.checks.permissions import BulkVerb
from pgbeat.jobs.rows import model as jobs
from pgbeat.jobs.rows.filters import Filter
from pgbeat.jobs.rows.model import Job, State
from pgbeat.jobs.verbs import bulk
from pgbeat.jobs.verbs.bulk import Order, Preview, Progress
from pgbeat.views import jobs as views
from pgbeat.web.api.bodies import Body, example, of_row
from pgbeat.web.api.jobs.job_models import MOST, FoundJob
from pgbeat.web.api.jobs.job_queries import queried
from pgbeat.web.api.jobs.jobs import JobChanges
from pgbeat.web.api.paging import cursor, moment, number, read
from pgbeat.web.calls import TheCall, WebCall

router = APIRouter(prefix="/jobs", tags=["jobs"])


class JobFilter(Body):
    """Which jobs: those that have all that is given."""

    q: str | None = Field(None, max_length=1000, examples=["state:failed error:503 since:2h"])
    state: State | None = None
    task: str | None = Field(None, max_length=255, description="A name or a glob.")
    error: str | None = Field(
        None, max_length=1000, description="A part of the error, or a glob.", examples=["*503*"]
    )
    schedule: str | None = Field(None, max_length=200)
    template: str | None = Field(None, max_length=255)
    lane: str | None = Field(None, max_length=255)
    queue: str | None = Field(None, max_length=255)
    group: UUID | None = None
    created_by: str | None = Field(None, max_length=255, examples=["user:alice"])
    labels: dict[str, str] | None = Field(None, max_length=20)
    created_from: AwareDatetime | None = None
    created_until: AwareDatetime | None = None
    ids: list[UUID] | None = Field(None, max_length=1000, description="Only these.")


class BulkOrder(Body):
    """What to do with which jobs."""

    model_config = example(
        {"verb": "retry", "filter": {"state": "failed", "task": "shop.*"}, "dry_run": True}
    )

    verb: BulkVerb
    filter: JobFilter
    dry_run: bool = Field(False, description="Count and show them, and change nothing.")
    changes: JobChanges | None = Field(None, description="With `update`: what to change.")
    reason: str | None = Field(None, max_length=1000, description="With `cancel`.")
    priority: int | None = Field(None, ge=0, le=255, description="With `retry`.")
    limit: int = Field(200, ge=1, le=1000, description="Jobs to look at in this request.")
    next: str | None = Field(
        None, max_length=2000, description="`next` of the response before; with the same order."
    )

    def order(self) -> Order:
        """Returns the order for `bulk`."""
        options: dict[str, Any] = {}
        if self.verb == "update":
            if not self.changes or not self.changes.model_fields_set:
                raise InvalidJob.of("changes", "required", "changes: say what to change")
            options["values"] = self.changes.model_dump(exclude_unset=True)
        elif self.verb == "cancel":
            options["reason"] = self.reason
        elif self.verb == "retry":
            options |= {"job_source": "user_api", "priority": self.priority}
        return Order(self.verb, options)


@of_row(bulk.LeftAlone)
class BulkProblem(BaseModel):
    """Why a job was left alone."""


class BulkDone(BaseModel):
    """What was done, in this request."""

    verb: BulkVerb
    matched: int | None = Field(
        description="How many jobs match, counted up to 10,000; null in the requests that continue."
    )
    others: int | None = Field(
        description="How many jobs of others match, too, which only an administrator may change, "
        "counted likewise; null for users, who don't see them, and in the requests that continue."
    )
    first: list[FoundJob] = Field(description="With `dry_run`: the newest of them.")
    done: int
    left: dict[str, int] = Field(description="How many were left alone, by the error's code.")
    problems: list[BulkProblem] = Field(description="The first of these.")
    action: int | None = Field(description="Its record in the audit.")
    next: str | None = Field(description="Send it to continue; null at the end.")


@router.post("/bulk", summary="Change all jobs that match")
def change_jobs(call: TheCall, body: BulkOrder) -> BulkDone:
    """Retries, cancels, pauses, resumes, changes or deletes all jobs that a filter matches.

    Each request changes `limit` of them, in transactions of 50, and returns `next` as long as there
    are more. Jobs that were created after the first request don't belong to it. Those that can't be
    changed, because somebody else was quicker, are left alone. The audit has it as one action.
    Others than administrators change their own jobs.
    """
    order = body.order()
    first: list[Job] = []
    if not body.dry_run:
        seen, new, following = carry_out(call, order, body.filter, body.next, body.limit)
    else:
        with call.backend.transaction() as connection:
            wanted = which(connection, call, body.filter)
            seen = bulk.preview(connection, call.caller, order, wanted)
            first = call.redactor.rows(jobs.in_full(connection, seen.first, most=MOST))
        new, following = Progress(None, 0, {}, [], None), None
    return BulkDone(
        verb=body.verb,
        matched=seen and seen.number,
        others=seen and seen.others,
        first=[FoundJob.model_validate(views.job(row)) for row in first],
        done=new.done,
        left=new.left,
        problems=[BulkProblem.model_validate(problem._asdict()) for problem in new.problems],
        action=new.action,
        next=following,
    )


def carry_out(
    call: WebCall, order: Order, asked: JobFilter, after: str | None, limit: int
) -> tuple[Preview | None, Progress, str | None]:
    """Changes the next `limit` jobs; returns the preview (at first), the progress and `next`."""
    with call.work() as unit:
        wanted = which(unit.connection, call, asked)
        begun = read(after, moment, moment, UUID, number)
        if begun is None:
            seen = bulk.preview(unit.connection, call.caller, order, wanted)
            until, position, action = seen.at, None, None
        else:
            seen, until, position, action = None, begun[0], begun[1:3], begun[3] or None
        *_, progress = bulk.carry_out(
            unit, order, wanted, until=until, after=position, action=action, limit=limit
        )
    return seen, progress, _next(until, progress)


def _next(until: datetime, progress: Progress) -> str | None:
    if progress.position is None:
        return None
    at, job_id = progress.position
    return cursor(until.isoformat(), at.isoformat(), job_id, progress.action or 0)


def which(connection: Connection, call: WebCall, asked: JobFilter) -> Filter:
    """Returns the filter. Raises `NotFound` for an unknown schedule."""
    fields = asked.model_dump(exclude={"q", "schedule", "group"})
    fields["group_id"] = str(asked.group) if asked.group else None
    return queried(connection, call, asked.q or "", asked.schedule, fields)
