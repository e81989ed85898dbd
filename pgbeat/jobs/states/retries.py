"""Makes jobs that retry others, and finds the retries of a job."""

from collections.abc import Collection
from uuid import UUID

from sqlalchemy import Connection, text

from pgbeat.database import sql
from pgbeat.jobs.rows.model import COLUMNS, Job, of_known

#: What a retry takes over from the job that it retries.
_SAME = """namespace, schedule_id, schedule, due_at, template, task, args, kwargs, options, queue,
            lane, tags, resources, max_attempts, retry_base, retry_cap, unique_key, checkpoint,
            created_by, is_system_job, requires_approval, trigger, interval_start, interval_end,
            description, labels, metadata, run_key, root_id, parent_id, canvas,
            callback_of"""

_AUTOMATIC = text(sql.load("retries.sql", "automatic", same=_SAME, columns=COLUMNS))


def insert_automatic(connection: Connection, job_ids: Collection[UUID]) -> list[Job]:
    """Inserts the retries that the policies of these jobs ask for, and returns them.

    They are `scheduled`, after base × 2^(attempt-1). The approval of a job holds for its retries.
    """
    if not job_ids:
        return []
    rows = connection.execute(_AUTOMATIC, {"ids": [str(job_id) for job_id in job_ids]})
    return [Job(*row) for row in rows]


_BY_HAND = text(
    sql.load(
        "retries.sql",
        "by_hand",
        same=_SAME,
        is_retriable=of_known("old.state IN ('failed', 'cancelled', 'skipped')"),
        columns=COLUMNS,
    )
)


def insert_by_hand(
    connection: Connection, job_id: UUID, *, job_source: str, priority: int | None = None
) -> Job | None:
    """Inserts a retry, with all attempts ahead of it, that a person asked for, and returns it.

    It needs a new approval if the job required one. Returns `None` if the job has not failed, was
    not cancelled or skipped, or if an unfinished job has its unique key.
    """
    values = {"id": job_id, "job_source": job_source, "priority": priority}
    row = connection.execute(_BY_HAND, values).one_or_none()
    return None if row is None else Job(*row)


_CHAIN = text(sql.load("retries.sql", "chain", columns=COLUMNS))


def chain(connection: Connection, job_id: UUID) -> list[Job]:
    """Returns a job with all jobs that it retries and all its retries, the oldest first."""
    return [Job(*row) for row in connection.execute(_CHAIN, {"id": job_id})]


_LAST = text(sql.load("retries.sql", "last", columns=COLUMNS))


def last_attempt(connection: Connection, job_id: UUID | str) -> Job | None:
    """Returns the last retry of a job, or the job if it has none; `None` if it doesn't exist."""
    row = connection.execute(_LAST, {"id": str(job_id)}).one_or_none()
    return None if row is None else Job(*row)
