"""`/jobs/ID/tree`: a canvas, a group or a chain of retries as one tree."""

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from pgbeat.jobs.explaining import tree
from pgbeat.jobs.explaining.tree import Kind, Relation
from pgbeat.results import lookup
from pgbeat.web.api.jobs.job_models import JobId
from pgbeat.web.api.visible import visible_job
from pgbeat.web.calls import TheCall

router = APIRouter(prefix="/jobs", tags=["jobs"])


class TreeNode(BaseModel):
    """A job or another task, what groups them, or siblings that are left out (`more`)."""

    kind: Kind = Field(description="`job_group` is pgbeat's group; `hidden` a job of others.")
    id: str | None = Field(description="Of the job, task or group.")
    name: str = Field(description="Of the task, or of the group.", examples=["tasks.crawl"])
    relation: Relation = Field(
        description="`then`: it follows in a chain; `body`: of a chord; `retry`: of a job."
    )
    state: str | None = Field(
        description="A job's state; `not tracked` for a task of which nothing is known; null for "
        "one to come."
    )
    created_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    attempt: int
    error: str | None
    where: str | None = Field(
        description="Where it is and what blocks it.", examples=["waits for 2 of 5 members"]
    )
    waits_for: list[str] = Field(description="Ids of jobs that it waits for.")
    counts: dict[str, int] = Field(
        description="How many members, or siblings that are left out, are in which state.",
        examples=[{"completed": 400, "failed": 31}],
    )
    is_asked: bool = Field(description="True for the job of the request.")
    children: list["TreeNode"]


class JobTree(BaseModel):
    """The tree of which a job is a part."""

    root: TreeNode
    is_whole: bool = Field(description="False if it has more than 10,000 jobs.")


@router.get("/{job_id}/tree", summary="Get a job's tree")
def job_tree(
    call: TheCall,
    job_id: JobId,
    siblings: Annotated[
        int, Query(ge=1, le=tree.MOST, description="Below each node; the rest is counted.")
    ] = tree.SIBLINGS,
) -> JobTree:
    """Shows what a job is a part of: its canvas, group and retries, and what blocks what.

    Jobs of others are there without their names.
    """
    with call.backend.transaction() as connection:
        job = visible_job(connection, call, job_id)
        prefix = lookup.prefix_of(call.backend.celery.conf)
        whole = tree.of_job(connection, call.redactor, job, prefix=prefix, siblings=siblings)
    return JobTree.model_validate(whole, from_attributes=True)
