"""Reads and writes the rows of groups. Their members are jobs with the group's id and a position.

`pgbeat.jobs.groups.progress` advances a group from one member to the next.
"""

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Literal, NamedTuple
from uuid import UUID

from sqlalchemy import Connection, func, insert, select, text, tuple_, update

from pgbeat.database import sql
from pgbeat.database.tables import groups, jobs
from pgbeat.errors import InvalidJob, InvalidTransition, NotFound
from pgbeat.jobs.rows import ids
from pgbeat.jobs.rows.model import ENDED, Job, brief
from pgbeat.storable import is_storable

Mode = Literal["parallel", "sequential"]
OnFailure = Literal["stop", "continue", "skip_remaining"]
#: How a group must end for its callback to run: `finished` is completed or failed.
CallbackOutcome = Literal["completed", "failed", "finished"]
MODES: tuple[Mode, ...] = ("parallel", "sequential")
ON_FAILURE: tuple[OnFailure, ...] = ("stop", "continue", "skip_remaining")
CALLBACK_OUTCOMES: tuple[CallbackOutcome, ...] = ("completed", "failed", "finished")


class Group(NamedTuple):
    """A row of `pgbeat.groups`."""

    id: UUID
    namespace: str
    name: str | None
    mode: Mode
    #: What happens to the rest after a member and its retries have failed.
    on_failure: OnFailure
    #: `running` until the last member has ended, then `completed`, `failed` or `cancelled`.
    state: str
    job_source: str
    created_by: str
    is_system_job: bool
    created_at: datetime
    finished_at: datetime | None
    #: The actor who cancelled it, and when.
    cancelled_by: str | None
    cancelled_at: datetime | None
    #: The job that runs when it has ended as `callback_outcome` says, and else is skipped.
    callback_id: UUID | None
    callback_outcome: CallbackOutcome

    @property
    def audited(self) -> tuple[str, str, dict[str, Any]]:
        """Returns what the audit log records of it."""
        return "group", str(self.id), {name: getattr(self, name) for name in _AUDITED}


_AUDITED = ("name", "mode", "on_failure", "cancelled_by")
_COLUMNS = [groups.c[name] for name in Group._fields]


def check(mode: str, on_failure: str, name: str | None, callback_outcome: str = "finished") -> None:
    """Raises `InvalidJob` if one of them is invalid."""
    known: Sequence[str]
    for field, value, known in (
        ("mode", mode, MODES),
        ("on_failure", on_failure, ON_FAILURE),
        ("callback_outcome", callback_outcome, CALLBACK_OUTCOMES),
    ):
        if value not in known:
            listed = ", ".join(map(repr, known))
            raise InvalidJob.of(field, "unknown", f"{field} {value!r} is not one of {listed}")
    if name is not None and not (
        isinstance(name, str) and 0 < len(name) <= 200 and is_storable(name)
    ):
        message = f"a group's name must be 1 to 200 characters without NUL, got {name!r}"
        raise InvalidJob.of("name", "malformed", message)


_WRITE_AS_OWNER = text(sql.load("model.sql", "write_as_owner", columns=", ".join(Group._fields)))


def create(connection: Connection, *, as_owner: bool = False, **values: Any) -> Group:
    """Inserts a group, which has no jobs yet. With `as_owner`, the role may not do that itself."""
    if as_owner:
        fields = json.dumps(values, default=str)
        return Group(*connection.execute(_WRITE_AS_OWNER, {"fields": fields}).one())
    row = connection.execute(insert(groups).values(**values).returning(*_COLUMNS)).one()
    return Group(*row)


def get(connection: Connection, group_id: str | UUID, *, namespace: str | None = None) -> Group:
    """Returns a group. Raises `NotFound`, also for an invalid id."""
    wanted = ids.parse(group_id, "group")
    query = select(*_COLUMNS).where(groups.c.id == wanted)
    if namespace is not None:
        query = query.where(groups.c.namespace == namespace)
    row = connection.execute(query).one_or_none()
    if row is None:
        raise NotFound(f"there is no group {wanted}")
    return Group(*row)


def listing(
    connection: Connection,
    namespace: str,
    *,
    state: str | None = None,
    created_by: str | None = None,
    before: tuple[datetime, UUID] | None = None,
    limit: int = 50,
) -> list[Group]:
    """Returns groups, the newest first.

    For the next page, `before` is (`created_at`, `id`) of the last group.
    """
    query = select(*_COLUMNS).where(groups.c.namespace == namespace)
    if state is not None:
        query = query.where(groups.c.state == state)
    if state == "running":
        query = query.where(groups.c.finished_at.is_(None))
    if created_by is not None:
        query = query.where(groups.c.created_by == created_by)
    if before is not None:
        query = query.where(tuple_(groups.c.created_at, groups.c.id) < tuple_(*before))
    query = query.order_by(groups.c.created_at.desc(), groups.c.id.desc()).limit(limit)
    return [Group(*row) for row in connection.execute(query)]


class MemberCounts(NamedTuple):
    """How many members of a group have ended. A member with retries counts once, by the last."""

    total: int
    done: int
    counts: dict[str, int]

    @property
    def percent(self) -> float:
        """Returns the share of ended members, 0 to 100."""
        return 100.0 * self.done / self.total if self.total else 100.0


# A retry that was made by hand after the group's end is not a member.
_PROGRESS = text(
    """
    SELECT group_id, state, count(*) FROM pgbeat.jobs j
     WHERE group_id = ANY (CAST(:groups AS uuid[]))
       AND (retried_by IS NULL OR (SELECT a.group_id FROM pgbeat.jobs a WHERE a.id = j.retried_by)
            IS DISTINCT FROM group_id)
     GROUP BY group_id, state
    """
)


def progress(connection: Connection, group_ids: Iterable[UUID]) -> dict[UUID, MemberCounts]:
    """Returns the progress of each group."""
    wanted = list(group_ids)
    counts: dict[UUID, dict[str, int]] = {group_id: {} for group_id in wanted}
    rows = connection.execute(_PROGRESS, {"groups": [str(group_id) for group_id in wanted]})
    for group_id, state, count in rows:
        counts[group_id][state] = count
    return {
        group_id: MemberCounts(
            sum(states.values()), sum(n for state, n in states.items() if state in ENDED), states
        )
        for group_id, states in counts.items()
    }


def members(connection: Connection, group_id: str | UUID, *, limit: int | None = None) -> list[Job]:
    """Returns a group's jobs, `brief`, by their positions, each followed by its retries."""
    order = (jobs.c[name] for name in ("group_position", "attempt", "created_at", "id"))
    query = select(*brief(jobs.c)).where(jobs.c.group_id == str(group_id)).order_by(*order)
    return [Job(*row) for row in connection.execute(query.limit(limit))]


_UNFINISHED = text(
    """
    SELECT id FROM pgbeat.unfinished_jobs
     WHERE group_id = :id AND (:with_requested OR cancel_requested_at IS NULL)
     ORDER BY group_position, id
    """
)


def unfinished(
    connection: Connection, group_id: str | UUID, *, with_requested: bool = True
) -> list[str]:
    """Returns the ids of the unfinished members.

    Without `with_requested`, leaves out those whose workers were asked to end them.
    """
    values = {"id": str(group_id), "with_requested": with_requested}
    return [str(job_id) for job_id in connection.scalars(_UNFINISHED, values)]


def is_running(connection: Connection, group_id: UUID) -> bool:
    """Returns whether a group has not ended. It can't end before the transaction does."""
    query = select(groups.c.state).where(groups.c.id == group_id).with_for_update(read=True)
    return connection.scalar(query) == "running"


def require_running(group: Group) -> None:
    """Raises `InvalidTransition` if a group that someone cancels has ended."""
    if group.state != "running":
        raise InvalidTransition.of(group.id, group.state, "cancelled", "it has ended", noun="group")


def mark_cancelled(connection: Connection, group_id: str | UUID, by: str) -> None:
    """Marks a group as cancelled, so that no further member begins.

    A transaction that ends members must end them first: jobs are locked before their group.
    """
    statement = update(groups).where(
        groups.c.id == str(group_id), groups.c.state == "running", groups.c.cancelled_at.is_(None)
    )
    connection.execute(statement.values(cancelled_by=by, cancelled_at=func.now()))
