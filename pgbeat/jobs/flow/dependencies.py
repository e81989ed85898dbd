"""Jobs that wait for other jobs to end, their parents: `depends_on`.

A job runs when all its parents and their retries have ended as it needs them: `completed`, or
`finished`, which is completed or failed. It is skipped as soon as one of them ends otherwise.
`dependencies.sql` has the table, and says what is guaranteed.
"""

from collections.abc import Collection, Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from sqlalchemy import Connection, bindparam, text
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.dialects.postgresql import UUID as UUIDType

from pgbeat.access.actors import Actor
from pgbeat.database import sql
from pgbeat.jobs.rows.model import COLUMNS, ENDED, Job
from pgbeat.jobs.states import next_steps
from pgbeat.jobs.states.endings import Ended
from pgbeat.jobs.states.next_steps import Ending, NextSteps

if TYPE_CHECKING:
    from pgbeat.jobs.preparing.prepare import PreparedJob

#: Parents of a job, at most.
MOST = 10_000

_INSERT = text(
    """
    INSERT INTO pgbeat.dependencies (job_id, parent_id, needs)
    SELECT :job_id, parent, :needs FROM unnest(:parents) AS parent
    """
).bindparams(bindparam("parents", type_=ARRAY(UUIDType(as_uuid=False))))


_INSERT_AS_OWNER = text(
    "SELECT pgbeat.write_dependencies_as_owner(CAST(:job_id AS uuid), CAST(:parents AS uuid[]), "
    ":needs)"
)


def insert(
    connection: Connection, batch: "Sequence[PreparedJob]", *, as_owner: bool = False
) -> set[UUID]:
    """Writes what new jobs depend on, and returns their parents.

    With `as_owner`, the role may not write the table.
    """
    rows = [
        {"job_id": str(prepared.job.id), "parents": list(prepared.parents), "needs": prepared.needs}
        for prepared in batch
        if prepared.parents
    ]
    if rows:
        connection.execute(_INSERT_AS_OWNER if as_owner else _INSERT, rows)
    return {UUID(parent) for row in rows for parent in row["parents"]}


def parents_of(ended: Iterable[Ended]) -> set[UUID]:
    """Returns the ended jobs that others may depend on."""
    return {job.id for job in ended if job.has_dependents and job.state in ENDED}


_END = text("SELECT * FROM pgbeat.end_parents(CAST(:ids AS uuid[]), CAST(:of AS uuid[]))")
_UNBLOCK = text(
    sql.load("dependencies.sql", "unblock", unblocked=next_steps.UNBLOCKED, columns=COLUMNS)
)


def advance(
    connection: Connection, parents: Collection[UUID], of: Collection[UUID] | None = None
) -> NextSteps:
    """Looks at the jobs that wait for these parents, in the transaction in which those ended.

    With `of`, looks at these jobs only.

    Unblocks the jobs whose last parent has ended; if one is dispatched now, the caller must publish
    it. The caller must also skip those that can't run any more.
    """
    steps = NextSteps([], [])
    if not parents:
        return steps
    values = {"ids": sorted(map(str, parents)), "of": None if of is None else list(map(str, of))}
    rows = connection.execute(_END, values).all()
    ready = [str(row.job_id) for row in rows if row.parent_id is None]
    if ready:
        unblocked = connection.execute(_UNBLOCK, {"ids": ready})
        steps.unblocked.extend(sorted((Job(*row) for row in unblocked), key=_place))
    against = sorted(
        (str(row.parent_id), row.outcome, str(row.job_id)) for row in rows if row.parent_id
    )
    for (parent, outcome), some in groupby(against, key=lambda row: row[:2]):
        reason = f"job {parent}, on which it depends, {_ENDS[outcome]}"
        steps.endings.append(Ending([row[2] for row in some], "skipped", reason))
    return steps


_ENDS = {
    "failed": "failed",
    "cancelled": "was cancelled",
    "skipped": "was skipped",
    "gone": "was deleted",
}


def _place(job: Job) -> tuple[Any, ...]:
    return -job.priority, job.created_at, job.group_position or 0, str(job.id)


#: Dependencies at which a round of `Overlooked` looks.
PAGE = 1000
_FIRST = UUID(int=0)
_OVERLOOKED = text(
    "SELECT * FROM pgbeat.overlooked_parents(:namespace, :job, CAST(:parent AS uuid), :most)"
)


class Overlooked:
    """Finds parents that ended while a job began to depend on them, or were ended by hand.

    Looks at a page of dependencies in each round, and remembers its place.
    """

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._job = self._parent = _FIRST

    def find(self, connection: Connection) -> list[UUID]:
        """Returns those of the next page."""
        values = {"namespace": self._namespace, "job": self._job, "parent": self._parent}
        job, parent, parents = connection.execute(_OVERLOOKED, {**values, "most": PAGE}).one()
        self._job, self._parent = job or _FIRST, parent or _FIRST
        return list(parents)


_ENDED = text(
    """
    SELECT DISTINCT d.parent_id FROM pgbeat.dependencies d
     WHERE d.job_id = ANY (CAST(:jobs AS uuid[])) AND d.outcome IS NULL
       AND NOT EXISTS (SELECT FROM pgbeat.unfinished_jobs p WHERE p.id = d.parent_id)
    """
)


def ended_parents(connection: Connection, job_ids: Collection[UUID]) -> list[UUID]:
    """Returns the parents of new jobs that have ended without the jobs knowing it."""
    return list(connection.scalars(_ENDED, {"jobs": list(map(str, job_ids))}))


class Parent(NamedTuple):
    """A job that another one depends on."""

    id: UUID
    needs: str
    #: The state in which it ended, `retried` or `gone`; `None` before.
    outcome: str | None


_PARENTS = text(
    """
    SELECT job_id, parent_id, needs, outcome FROM pgbeat.dependencies
     WHERE job_id = ANY (CAST(:ids AS uuid[])) ORDER BY job_id, id LIMIT :limit
    """
)


def of_jobs(
    connection: Connection, job_ids: Collection[UUID], *, limit: int = MOST
) -> dict[UUID, list[Parent]]:
    """Returns what each of these jobs depends on, without jobs that depend on nothing."""
    parents: dict[UUID, list[Parent]] = {}
    if job_ids:
        values = {"ids": [str(job_id) for job_id in job_ids], "limit": limit}
        for row in connection.execute(_PARENTS, values):
            parents.setdefault(row.job_id, []).append(Parent(row.parent_id, row.needs, row.outcome))
    return parents


_DEPENDENTS = text(
    """
    SELECT d.job_id FROM pgbeat.dependencies d
     WHERE d.parent_id = :id AND (CAST(:owner AS text) IS NULL OR EXISTS (
           SELECT FROM pgbeat.jobs j WHERE j.id = d.job_id AND j.created_by = :owner))
     ORDER BY d.id LIMIT :limit
    """
)


def dependents(connection: Connection, actor: Actor, job_id: UUID, *, limit: int) -> list[UUID]:
    """Returns jobs that depend on this one, and that the actor may see."""
    owner = None if actor.sees_all else actor.name
    values = {"id": job_id, "owner": owner, "limit": limit}
    return list(connection.scalars(_DEPENDENTS, values))
