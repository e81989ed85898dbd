"""`/groups`: jobs that were submitted together, in parallel or in order."""

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, Field
from sqlalchemy import Connection

from pgbeat.jobs.checks import permissions
from pgbeat.jobs.groups import model as groups
from pgbeat.jobs.groups.model import CallbackOutcome, Group, Mode, OnFailure
from pgbeat.jobs.rows import model as jobs
from pgbeat.jobs.submitting import submit_group
from pgbeat.views import groups as views
from pgbeat.web.api.bodies import Body, Json, Next, example, of_row
from pgbeat.web.api.jobs.job_models import MOST, FoundJob, Ordered
from pgbeat.web.api.paging import After, Limit, moment, read, split
from pgbeat.web.api.visible import visible_group
from pgbeat.web.calls import TheCall, WebCall

router = APIRouter(prefix="/groups", tags=["groups"])

GroupId = Annotated[UUID, Path(description="A group's id.")]
GroupState = Literal["running", "completed", "failed", "cancelled"]
#: The most members in a response.
_SHOWN = 1000


class NewGroup(Body):
    """A new group with its jobs."""

    model_config = example(
        {
            "name": "report",
            "mode": "sequential",
            "jobs": [{"task": "tasks.load", "args": ["a"]}, "tasks.report"],
        }
    )

    name: str | None = Field(None, min_length=1, max_length=200)
    mode: Mode = "parallel"
    on_failure: OnFailure = Field(
        "stop", description="What happens to the others once one has failed for good."
    )
    jobs: list[Ordered] = Field(
        min_length=1, max_length=submit_group.MOST, description="Jobs, or names of tasks."
    )
    callback: Ordered | None = Field(
        None, description="A job that runs once, when the group has ended."
    )
    callback_outcome: CallbackOutcome = Field(
        "finished", description="How the group must end for that: `finished` is either."
    )

    def arguments(self) -> Json:
        """Returns the arguments of `submit_group.submit`."""
        arguments = self.model_dump(include={"name", "mode", "on_failure", "callback_outcome"})
        arguments["members"] = [job.member() for job in self.jobs]
        if self.callback is not None:
            arguments["callback"] = self.callback.member()
        return arguments


class GroupProgress(BaseModel):
    """The progress of a group; a retried job counts once."""

    total: int
    done: int
    percent: float = Field(description="0 to 100.")
    counts: dict[str, int] = Field(examples=[{"completed": 2, "running": 1}])


@of_row(Group)
class FoundGroup(BaseModel):
    """A group of jobs."""

    state: GroupState
    progress: GroupProgress
    cancelled_at: datetime | None = Field(description="When it was asked to end.")
    callback_id: UUID | None = Field(description="The job that runs when it has ended.")


class GroupDetail(FoundGroup):
    """A group with its first jobs, 1,000 or 1 MB; `/jobs?group=…` has all of them."""

    jobs: list[FoundJob]


class GroupPage(BaseModel):
    """A page of groups, the newest first."""

    groups: list[FoundGroup]
    next: Next


class GroupCancelled(FoundGroup):
    """A group that was asked to end."""

    ended: int = Field(description="Jobs that ended at once.")
    asked: int = Field(description="Running jobs, whose workers were asked to end them.")


@router.get("", summary="List groups")
def list_groups(
    call: TheCall,
    state: Annotated[GroupState | None, Query()] = None,
    created_by: Annotated[str | None, Query(max_length=255)] = None,
    limit: Limit = 50,
    after: After = None,
) -> GroupPage:
    """Lists the caller's groups, the newest first; for administrators, all groups."""
    wanted = {
        "state": state,
        "created_by": permissions.visible_owner(call.caller, created_by, "groups"),
    }
    before = read(after, moment, UUID)
    with call.listing() as connection:
        rows = groups.listing(connection, call.namespace, before=before, limit=limit + 1, **wanted)
        page, following = split(rows, limit, "created_at", "id")
        known = groups.progress(connection, [row.id for row in page])
    shown = [FoundGroup.model_validate(views.group(row, known[row.id])) for row in page]
    return GroupPage(groups=shown, next=following)


@router.get("/{group_id}", summary="Get a group")
def get_group(call: TheCall, group_id: GroupId) -> GroupDetail:
    """Returns a group with its progress and jobs."""
    with call.backend.transaction() as connection:
        group = visible_group(connection, call, group_id)
        return _detail(connection, call, group)


def _detail(connection: Connection, call: WebCall, group: Group) -> GroupDetail:
    progress = groups.progress(connection, [group.id])[group.id]
    members = groups.members(connection, group.id, limit=_SHOWN)
    members = call.redactor.rows(jobs.in_full(connection, members, most=MOST))
    return GroupDetail.model_validate(views.detail(group, progress, members))


@router.post("", status_code=201, summary="Create a group")
def create_group(call: TheCall, body: NewGroup) -> GroupDetail:
    """Creates a group with all of its jobs, which are the caller's, or nothing."""
    with call.work() as unit:
        with unit.transaction():
            new = submit_group.submit(unit, **body.arguments(), job_source="user_api")
        return _detail(unit.connection, call, new.group)


@router.post("/{group_id}/cancel", summary="Cancel a group")
def cancel_group(call: TheCall, group_id: GroupId) -> GroupCancelled:
    """Ends a group. Waiting jobs end at once; workers end the running ones."""
    with call.work() as unit:
        visible_group(unit.connection, call, group_id)
        done = submit_group.cancel(unit, group_id)
        progress = groups.progress(unit.connection, [group_id])[group_id]
    return GroupCancelled.model_validate(
        views.group(done.group, progress) | {"ended": done.ended, "asked": done.asked}
    )
