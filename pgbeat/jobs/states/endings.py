"""Ends jobs that don't run, and asks workers to end those that do."""

from collections.abc import Collection, Mapping
from typing import Any, Literal, NamedTuple
from uuid import UUID

from sqlalchemy import Connection, text

from pgbeat.database import sql
from pgbeat.database.tables import jobs
from pgbeat.jobs.rows.model import of_known


class Unanswered(NamedTuple):
    """A task whose result no worker ends."""

    task: str
    error: str
    #: Its publish options, and its message if its row keeps that.
    options: Mapping[str, Any]
    message: Mapping[str, Any] | None
    #: Whether a worker may have begun it.
    is_lost: bool = False


class Ended(NamedTuple):
    """A job that ended, or whose execution did, and what `lifecycle.follow` must know of it."""

    id: UUID
    namespace: str
    state: str
    lane: str | None
    group_id: UUID | None
    #: Id of the retry, which may not exist yet.
    retried_by: UUID | None
    #: Whether its message was sent.
    is_dispatched: bool = True
    #: Whether jobs that depend on it wait for its end; true if that is not known.
    has_dependents: bool = True
    #: For `answers`; `None` if a worker ends the result.
    unanswered: Unanswered | None = None


def columns_except(*changed: str) -> list[str]:
    """Returns the names of the columns of a job that stay as they are when it ends."""
    return [column.name for column in jobs.c if column.name not in (*changed, "message")]


_KEPT = columns_except("state", "finished_at", "error", "awaits_approval", "retried_by")
_END = text(
    sql.load(
        "endings.sql",
        "end",
        is_known=of_known("state = ANY (CAST(:from AS text[]))"),
        moved=", ".join(f"j.{name}" for name in _KEPT),
        kept=", ".join(_KEPT),
    )
)


def end(
    connection: Connection,
    job_ids: Collection[str | UUID],
    to: Literal["cancelled", "skipped", "failed"],
    error: str | None,
    *,
    of: Collection[str] = ("pending", "scheduled", "paused"),
    is_final: bool = False,
) -> list[Ended]:
    """Ends those of the jobs that are in one of the states `of`, and returns them.

    Skips rows that another transaction has locked: it is ending or dispatching them. With
    `is_final`, they are not retried.
    """
    if not job_ids:
        return []
    values = {"ids": [str(i) for i in job_ids], "from": list(of), "to": to, "error": error}
    rows = connection.execute(_END, {**values, "is_final": is_final})
    return [Ended(*row[:7])._replace(unanswered=Unanswered(*row[7:])) for row in rows]


_UNDECIDED = text(sql.load("endings.sql", "undecided"))


def lock_undecided(
    connection: Connection, job_ids: Collection[str | UUID]
) -> dict[UUID, Unanswered]:
    """Locks jobs that go back to wait, unless a request to cancel them ends them.

    Returns what must be known of those that it ends. The statements that record executions decide
    that twice, and must see the same.
    """
    if not job_ids:
        return {}
    rows = connection.execute(_UNDECIDED, {"ids": [str(i) for i in job_ids]})
    return {row.id: Unanswered(*row[1:]) for row in rows}


_REQUEST = text(sql.load("endings.sql", "request", is_running=of_known("state = 'running'")))


def request_cancel(
    connection: Connection, job_ids: Collection[str | UUID], by: str, reason: str | None = None
) -> list[str]:
    """Marks running jobs for their workers to cancel, and returns the ids of these jobs.

    Replaces the reason of an earlier request.
    """
    if not job_ids:
        return []
    values = {"ids": [str(i) for i in job_ids], "by": by, "reason": reason}
    return [str(job_id) for job_id in connection.scalars(_REQUEST, values)]


_END_STATE = text("SELECT state FROM pgbeat.ended_jobs WHERE id = CAST(:id AS uuid)")


def end_state(connection: Connection, job_id: str) -> str | None:
    """Returns the state in which a job has ended; `None` if it has not."""
    state: str | None = connection.scalar(_END_STATE, {"id": job_id})
    return state


_ENDED_AMONG = text(sql.load("endings.sql", "ended_among"))


def ended_among(connection: Connection, job_ids: Collection[str]) -> list[str]:
    """Returns those of the jobs that have ended."""
    values = {"ids": list(job_ids)}
    return list(connection.scalars(_ENDED_AMONG, values)) if job_ids else []
