"""Makes jobs that retry others, and finds the retries of a job."""

from collections.abc import Collection
from uuid import UUID

from sqlalchemy import Connection, TextClause, func, select, text

from pgbeat.database import sql
from pgbeat.database.tables import jobs
from pgbeat.jobs.rows.model import COLUMNS, Job, brief, of_known

#: What a retry does not take over from the job that it retries.
_OWN = {
    "id", "state", "run_at", "dispatched_at", "priority", "position", "fair_key", "attempt",
    "retry_of", "retried_by", "group_id", "group_position", "is_blocked", "unfinished_parents",
    "paused_at", "awaits_approval", "approved_by", "approved_at", "cancel_requested_by",
    "cancel_requested_at", "cancel_reason", "job_source", "created_at", "started_at", "finished_at",
    "worker", "error", "must_start_by", "must_end_by", "late_at", "missed_deadlines", "message",
    "keeps_id",
}  # fmt: skip
_SAME = ", ".join(name for name in Job._fields if name not in _OWN)


def _statement(name: str, which: str, **parts: str) -> TextClause:
    selected = sql.load("retries.sql", which, **parts)
    return text(sql.load("retries.sql", name, which=selected, same=_SAME, columns=COLUMNS))


_AUTOMATIC = _statement("insert", "automatic")


def insert_automatic(connection: Connection, job_ids: Collection[UUID]) -> list[Job]:
    """Inserts the retries that the policies of these jobs ask for, and returns them.

    They are `scheduled`, after base × 2^(attempt-1). The approval of a job holds for its retries.
    """
    if not job_ids:
        return []
    rows = connection.execute(_AUTOMATIC, {"ids": [str(job_id) for job_id in job_ids]})
    return [Job(*row) for row in rows]


_BY_HAND = _statement(
    "insert_by_hand",
    "by_hand",
    is_retriable=of_known("old.state IN ('failed', 'cancelled', 'skipped')"),
)


_UNFINISHED_PARENTS = text(
    sql.load("retries.sql", "unfinished_parents", parents=sql.load("retries.sql", "parents"))
)


def insert_by_hand(
    connection: Connection, job_id: UUID, *, job_source: str, priority: int | None = None
) -> Job | None:
    """Inserts a retry, with all attempts ahead of it, that a person asked for, and returns it.

    It waits for attempts of the job's parents that have not ended, and needs a new approval if the
    job required one. Returns `None` if the job has not failed, was not cancelled or skipped, or if
    an unfinished job has its unique key.
    """
    parents = connection.execute(_UNFINISHED_PARENTS, {"ids": [str(job_id)]}).all()
    values = {"id": job_id, "job_source": job_source, "priority": priority}
    values |= {"parents": [str(row.id) for row in parents], "needs": [row.needs for row in parents]}
    row = connection.execute(_BY_HAND, values).one_or_none()
    return None if row is None else Job(*row)


_WAITS = text(sql.load("retries.sql", "waits"))


def waits(connection: Connection, job_id: UUID) -> bool:
    """Returns whether the group that an ended job had to wait for goes on."""
    return bool(connection.scalar(_WAITS, {"id": job_id}))


_PARENTS = text(sql.load("retries.sql", "parents"))


def parents_of(connection: Connection, job_ids: Collection[UUID]) -> list[tuple[UUID, UUID]]:
    """Returns these jobs in pairs with each attempt of each job that they depend on."""
    rows = connection.execute(_PARENTS, {"ids": list(map(str, job_ids))})
    return [(row.job_id, row.id) for row in rows]


def chain(connection: Connection, job_id: UUID) -> list[Job]:
    """Returns a `brief` job with all that it retries and all its retries, the oldest first."""
    ids = select(func.pgbeat.retry_chain(job_id))
    query = select(*brief(jobs.c)).where(jobs.c.id.in_(ids))
    rows = connection.execute(query.order_by(jobs.c.created_at, jobs.c.id).limit(100))
    return [Job(*row) for row in rows]


_LOCK = text(sql.load("retries.sql", "lock"))


def lock_chain(connection: Connection, job_id: UUID) -> None:
    """Locks the first attempt of a job's chain, so that nobody else retries another of them."""
    connection.execute(_LOCK, {"id": job_id})


_UNFINISHED = text(sql.load("retries.sql", "unfinished"))


def unfinished(connection: Connection, job_id: UUID) -> list[UUID]:
    """Returns the jobs of a job's chain that have not ended, the oldest first."""
    return list(connection.scalars(_UNFINISHED, {"id": job_id}))


_LAST = text(sql.load("retries.sql", "last", columns=COLUMNS))


def last_attempt(connection: Connection, job_id: UUID | str) -> Job | None:
    """Returns the last retry of a job, or the job if it has none; `None` if it doesn't exist."""
    row = connection.execute(_LAST, {"id": str(job_id)}).one_or_none()
    return None if row is None else Job(*row)
