"""Makes jobs that retry others, and finds the retries of a job."""

from collections.abc import Collection
from uuid import UUID

from sqlalchemy import Connection, text

from pgbeat.jobs.model import COLUMNS, Job, of_known

#: What a retry takes over from the job that it retries.
_SAME = """namespace, schedule_id, schedule, due_at, template, task, args, kwargs, options, queue,
            lane, tags, resources, max_attempts, retry_base, retry_cap, unique_key, checkpoint,
            created_by, is_system_job, requires_approval, trigger, interval_start, interval_end,
            description, labels, metadata, run_key, root_id, parent_id, canvas,
            callback_of"""

_AUTOMATIC = text(
    f"""
    INSERT INTO pgbeat.unfinished_jobs AS j
           ({_SAME}, id, retry_of, created_at, state, run_at, dispatched_at, attempt, priority,
            job_source, group_id, group_position, approved_by, approved_at, awaits_approval,
            must_end_by, late_at, missed_deadlines, next_deadline)
    SELECT {_SAME}, retried_by, id, greatest(now(), created_at),
           CASE WHEN is_approved THEN 'scheduled' ELSE 'paused' END,
           now() + least(retry_base * 2 ^ least(attempt - 1, 60), retry_cap),
           CASE WHEN lane IS NULL AND is_approved THEN now() END, attempt + 1, priority, job_source,
           group_id, group_position, approved_by, approved_at, NOT is_approved,
           must_end_by, late_at, missed_deadlines,
           CASE WHEN 'end' <> ALL (missed_deadlines) THEN must_end_by END
      FROM (SELECT *, NOT requires_approval OR approved_by IS NOT NULL AS is_approved
              FROM pgbeat.ended_jobs
             WHERE id = ANY (CAST(:ids AS uuid[])) AND retried_by IS NOT NULL) AS old
    ON CONFLICT DO NOTHING
    RETURNING {COLUMNS}
    """  # noqa: S608
)


def insert_automatic(connection: Connection, job_ids: Collection[UUID]) -> list[Job]:
    """Inserts the retries that the policies of these jobs ask for, and returns them.

    They are `scheduled`, after base × 2^(attempt-1). The approval of a job holds for its retries.
    """
    if not job_ids:
        return []
    rows = connection.execute(_AUTOMATIC, {"ids": [str(job_id) for job_id in job_ids]})
    return [Job(*row) for row in rows]


# The retry joins the group only if that still runs, which the lock keeps it from ending meanwhile.
# `retried_by` names the first retry.
_BY_HAND = text(
    f"""
    WITH made AS (
        INSERT INTO pgbeat.unfinished_jobs AS j
               ({_SAME}, id, retry_of, created_at, state, dispatched_at, priority, job_source,
                group_id, group_position, awaits_approval)
        SELECT {_SAME}, gen_random_uuid(), id, greatest(now(), created_at),
               CASE WHEN requires_approval THEN 'paused' ELSE 'pending' END,
               CASE WHEN lane IS NULL AND NOT requires_approval THEN now() END,
               coalesce(:priority, priority), :job_source,
               CASE WHEN is_open THEN group_id END, CASE WHEN is_open THEN group_position END,
               requires_approval
          FROM (SELECT old.*, EXISTS (SELECT FROM pgbeat.groups g
                                       WHERE g.id = old.group_id AND g.state = 'running'
                                         FOR SHARE) AS is_open
                  FROM pgbeat.ended_jobs old
                 WHERE old.id = :id
                   AND {of_known("old.state IN ('failed', 'cancelled', 'skipped')")}) AS old
        ON CONFLICT DO NOTHING
        RETURNING {COLUMNS}),
    linked AS (
        UPDATE pgbeat.ended_jobs old SET retried_by = made.id
          FROM made WHERE old.id = :id AND old.retried_by IS NULL)
    SELECT * FROM made
    """  # noqa: S608
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


_CHAIN = text(
    f"""
    SELECT {COLUMNS} FROM pgbeat.jobs j
     WHERE j.id IN (SELECT pgbeat.retry_chain(CAST(:id AS uuid)))
     ORDER BY j.created_at, j.id LIMIT 100
    """  # noqa: S608
)


def chain(connection: Connection, job_id: UUID) -> list[Job]:
    """Returns a job with all jobs that it retries and all its retries, the oldest first."""
    return [Job(*row) for row in connection.execute(_CHAIN, {"id": job_id})]


_LAST = text(
    f"""
    SELECT {COLUMNS} FROM pgbeat.attempts_from(CAST(:id AS uuid)) AS c
           CROSS JOIN LATERAL (SELECT * FROM pgbeat.jobs WHERE id = c.id LIMIT 1) AS j
     ORDER BY c.number DESC LIMIT 1
    """  # noqa: S608
)


def last_attempt(connection: Connection, job_id: UUID | str) -> Job | None:
    """Returns the last retry of a job, or the job if it has none; `None` if it doesn't exist."""
    row = connection.execute(_LAST, {"id": str(job_id)}).one_or_none()
    return None if row is None else Job(*row)
