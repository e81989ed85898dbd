"""`/groups`: jobs that are given together, all at once or one after the other."""

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import Connection

from pgbeat.jobs import permissions, submit_group
from pgbeat.jobs.groups import model as groups
from pgbeat.jobs.groups.model import Group, MemberCounts, Mode, OnFailure
from pgbeat.web.api.bodies import Body, Json
from pgbeat.web.api.job_models import FoundJob, JobOrder, found
from pgbeat.web.api.paging import After, Limit, cursor, moment, read
from pgbeat.web.api.steering import seen_group
from pgbeat.web.backend import TheBackend
from pgbeat.web.identity import TheCaller

router = APIRouter(prefix="/groups", tags=["groups"])

GroupId = Annotated[UUID, Path(description="A group's id.")]
#: Members that an answer has, at most.
_SHOWN = 1000


class NewGroup(Body):
    """A group that is to be made: all its jobs, or none."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "name": "report",
                    "mode": "sequential",
                    "jobs": [{"task": "tasks.load", "args": ["a"]}, "tasks.report"],
                }
            ]
        }
    )

    name: str | None = Field(None, min_length=1, max_length=200)
    mode: Mode = "parallel"
    on_failure: OnFailure = Field(
        "stop", description="What becomes of the rest once one has failed for good."
    )
    jobs: list[JobOrder | str] = Field(
        min_length=1, max_length=submit_group.MOST, description="Orders, or names of tasks."
    )


class GroupProgress(BaseModel):
    """How far a group is; a job that was tried again counts once."""

    total: int
    done: int
    percent: float = Field(description="0 to 100.")
    counts: dict[str, int] = Field(examples=[{"completed": 2, "running": 1}])


class FoundGroup(BaseModel):
    """A group of jobs."""

    id: UUID
    name: str | None
    mode: Mode
    on_failure: OnFailure
    status: Literal["running", "completed", "failed", "cancelled"]
    progress: GroupProgress
    job_source: str
    created_by: str
    created_at: datetime
    completed_at: datetime | None
    cancelled_by: str | None
    cancelled_at: datetime | None = Field(description="When its end was asked for.")


class GroupDetail(FoundGroup):
    """A group with its first 1,000 jobs, by their positions; /jobs?group=… has them all."""

    jobs: list[FoundJob]


class GroupPage(BaseModel):
    """A page of groups, the newest first."""

    groups: list[FoundGroup]
    next: str | None = Field(description="For the next page; null on the last one.")


class GroupCancelled(FoundGroup):
    """A group whose end was asked for."""

    ended: int = Field(description="Jobs that ended now.")
    asked: int = Field(description="Those that run, whose workers were asked to end them.")


def _shown(group: Group, progress: MemberCounts) -> Json:
    return group._asdict() | {
        "status": group.state,
        "completed_at": group.finished_at,
        "progress": GroupProgress(
            total=progress.total, done=progress.done, percent=progress.percent,
            counts=progress.counts,
        ),
    }  # fmt: skip


@router.get("", summary="List groups")
def list_groups(
    backend: TheBackend,
    caller: TheCaller,
    state: Annotated[Literal["running", "completed", "failed", "cancelled"] | None, Query()] = None,
    created_by: Annotated[str | None, Query(max_length=255)] = None,
    limit: Limit = 50,
    after: After = None,
) -> GroupPage:
    """Groups, the newest first: the caller's own, an administrator's all."""
    before = None if after is None else read(after, moment, UUID)
    whose = permissions.visible_owner(caller, created_by, "groups")
    with backend.transaction() as connection:
        rows = groups.listing(
            connection, backend.namespace, state=state, created_by=whose, before=before,
            limit=limit + 1,
        )  # fmt: skip
        known = groups.progress(connection, [row.id for row in rows[:limit]])
    last = rows[limit - 1] if len(rows) > limit else None
    return GroupPage(
        groups=[FoundGroup.model_validate(_shown(row, known[row.id])) for row in rows[:limit]],
        next=None if last is None else cursor(last.created_at, last.id),
    )


@router.get("/{group_id}", summary="Get a group")
def get_group(backend: TheBackend, caller: TheCaller, group_id: GroupId) -> GroupDetail:
    """A group, with how far it is, and its jobs."""
    with backend.transaction() as connection:
        group = seen_group(connection, backend, caller, group_id)
        return _detail(connection, group)


def _detail(connection: Connection, group: Group) -> GroupDetail:
    progress = groups.progress(connection, [group.id])[group.id]
    members = groups.members(connection, group.id, limit=_SHOWN)
    return GroupDetail.model_validate(
        _shown(group, progress) | {"jobs": [found(job) for job in members]}
    )


@router.post("", status_code=201, summary="Make a group")
def create_group(backend: TheBackend, caller: TheCaller, body: NewGroup) -> GroupDetail:
    """Makes a group with its jobs, which are the caller's: all of them, or none."""
    members = [each if isinstance(each, str) else each.member() for each in body.jobs]
    with backend.work(caller) as unit:
        with unit.transaction():
            made = submit_group.submit(
                unit, members, mode=body.mode, on_failure=body.on_failure, name=body.name,
                job_source="user_api",
            )  # fmt: skip
        return _detail(unit.connection, made.group)


@router.post("/{group_id}/cancel", summary="Cancel a group")
def cancel_group(backend: TheBackend, caller: TheCaller, group_id: GroupId) -> GroupCancelled:
    """Ends a group. Jobs that wait end now; those that run are ended by their workers."""
    with backend.work(caller) as unit:
        seen_group(unit.connection, backend, caller, group_id)
        done = submit_group.cancel(unit, group_id)
        progress = groups.progress(unit.connection, [group_id])[group_id]
    return GroupCancelled.model_validate(
        _shown(done.group, progress) | {"ended": done.ended, "asked": done.asked}
    )
