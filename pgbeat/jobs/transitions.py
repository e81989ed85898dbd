"""Transitions that people ask for: a job is paused, resumed, approved, made again, deleted.

Each is one guarded statement: no row back means that the job is in a state that it doesn't go from.
"""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Text, cast, func, text, update

from pgbeat.database.tables import jobs
from pgbeat.jobs.model import COLUMNS, Job, of_known

_PAUSE = text(
    f"""
    UPDATE pgbeat.jobs j SET state = 'paused', dispatched_at = NULL
     WHERE id = :id AND {of_known("state IN ('pending', 'scheduled')")}
    RETURNING {COLUMNS}
    """  # noqa: S608
)
#: Back to where it was: a lane's line, the next of its group, the broker, or until its time.
_BACK = """
           state = CASE WHEN run_at > now() THEN 'scheduled' ELSE 'pending' END,
           dispatched_at = CASE WHEN lane IS NULL AND NOT blocked_by_group THEN now() END
"""
_RESUME = text(
    f"""
    UPDATE pgbeat.jobs j SET {_BACK}
     WHERE id = :id AND {of_known("state = 'paused'")} AND NOT awaits_approval
    RETURNING {COLUMNS}
    """  # noqa: S608
)
_APPROVE = text(
    f"""
    UPDATE pgbeat.jobs j SET {_BACK}, awaits_approval = false, approved_by = :by,
           approved_at = now()
     WHERE id = :id AND {of_known("state = 'paused'")} AND awaits_approval
    RETURNING {COLUMNS}
    """  # noqa: S608
)
# A group that has ended doesn't open again for it. What it is a retry of names the first such only.
_AGAIN = text(
    f"""
    WITH made AS (
        INSERT INTO pgbeat.jobs AS j
               (id, namespace, schedule_id, schedule, due_at, template, task, args, kwargs, options,
                queue, state, dispatched_at, lane, priority, tags, resources, max_attempts,
                retry_base, retry_cap, retry_of, group_id, group_position, unique_key, checkpoint,
                job_source, created_by, is_system_job, requires_approval, awaits_approval,
                trigger, interval_start, description, labels, metadata, run_key)
        SELECT gen_random_uuid(), namespace, schedule_id, schedule, due_at, template, task, args,
               kwargs, options, queue,
               CASE WHEN requires_approval THEN 'paused' ELSE 'pending' END,
               CASE WHEN lane IS NULL AND NOT requires_approval THEN now() END, lane,
               coalesce(:priority, priority), tags, resources, max_attempts, retry_base, retry_cap,
               id, CASE WHEN is_open THEN group_id END, CASE WHEN is_open THEN group_position END,
               unique_key, checkpoint, :job_source, created_by, is_system_job, requires_approval,
               requires_approval, trigger, interval_start, description, labels, metadata, run_key
          FROM (SELECT old.*, EXISTS (SELECT FROM pgbeat.groups g
                                       WHERE g.id = old.group_id AND g.state = 'running') AS is_open
                  FROM pgbeat.jobs old
                 WHERE old.id = :id
                   AND {of_known("old.state IN ('failed', 'cancelled', 'skipped')")}) AS old
        ON CONFLICT DO NOTHING
        RETURNING {COLUMNS}),
    linked AS (
        UPDATE pgbeat.jobs SET retried_by = made.id
          FROM made WHERE jobs.id = :id AND jobs.retried_by IS NULL)
    SELECT * FROM made
    """  # noqa: S608
)
_HASTEN = text(
    f"""
    UPDATE pgbeat.jobs j
       SET state = 'pending', run_at = NULL, attempt = 1, priority = coalesce(:priority, priority),
           dispatched_at = CASE WHEN lane IS NULL AND NOT blocked_by_group THEN now() END
     WHERE id = :id AND {of_known("state = 'scheduled'")} AND started_at IS NULL
    RETURNING {COLUMNS}
    """  # noqa: S608
)
_DELETE = text(
    f"""
    WITH gone AS (
        DELETE FROM pgbeat.jobs
         WHERE id = :id
           AND {of_known("state IN ('completed', 'failed', 'cancelled', 'skipped')")}
        RETURNING id),
    runs AS (DELETE FROM pgbeat.executions WHERE job_id IN (SELECT id FROM gone))
    SELECT id FROM gone
    """  # noqa: S608
)
_CHAIN = text(
    f"""
    SELECT {COLUMNS} FROM pgbeat.jobs j
     WHERE j.id IN (SELECT pgbeat.retry_chain(CAST(:id AS uuid)))
     ORDER BY j.created_at, j.id LIMIT 100
    """  # noqa: S608
)
_GROUP_RUNS = text("SELECT state = 'running' FROM pgbeat.groups WHERE id = :id FOR SHARE")


def pause(connection: Connection, job_id: UUID) -> Job | None:
    """A job that has not begun waits until it is resumed. Its message is the caller's."""
    return _job(connection, _PAUSE, id=job_id)


def resume(connection: Connection, job_id: UUID) -> Job | None:
    """A paused job goes on; where it is dispatched, its message is the caller's."""
    return _job(connection, _RESUME, id=job_id)


def approve(connection: Connection, job_id: UUID, by: str) -> Job | None:
    """A job that awaits approval goes on; where it is dispatched, its message is the caller's."""
    return _job(connection, _APPROVE, id=job_id, by=by)


def again(
    connection: Connection, job_id: UUID, *, job_source: str, priority: int | None = None
) -> Job | None:
    """Makes a job that does what one did that has failed or was cancelled or skipped, with as many
    attempts as that one had at first. Where that one required approval, so does this one, even if
    that one was approved. `None`, too, where an unfinished job has its unique key."""
    return _job(connection, _AGAIN, id=job_id, job_source=job_source, priority=priority)


def hasten(connection: Connection, job_id: UUID, *, priority: int | None = None) -> Job | None:
    """A retry that waits for its time comes now, with all its attempts before it. Its message is
    the caller's."""
    return _job(connection, _HASTEN, id=job_id, priority=priority)


def change(connection: Connection, job_id: UUID, columns: Mapping[str, Any]) -> None:
    """Gives columns of a job that waits other values. In another lane it goes to the end of the
    line. A priority among its publish options gives way to a new one."""
    values: dict[str, Any] = dict(columns)
    if "lane" in columns:
        values["position"] = func.extract("epoch", func.clock_timestamp())
    if "priority" in columns:
        values["options"] = jobs.c.options.op("-")(cast("priority", Text))
    waits = jobs.c.state.in_(["pending", "scheduled", "paused"])
    connection.execute(update(jobs).where(jobs.c.id == job_id, waits).values(values))


def delete(connection: Connection, job_id: UUID) -> bool:
    """Deletes a job that has ended, with its executions; whether it did."""
    return connection.execute(_DELETE, {"id": job_id}).first() is not None


def chain(connection: Connection, job_id: UUID) -> list[Job]:
    """A job with all that it tries again, and all that try it again, the oldest first."""
    return [Job(*row) for row in connection.execute(_CHAIN, {"id": job_id})]


def is_of_running_group(connection: Connection, job: Job) -> bool:
    """Whether its group goes by it still."""
    if job.group_id is None:
        return False
    return bool(connection.scalar(_GROUP_RUNS, {"id": job.group_id}))


def _job(connection: Connection, statement: Any, **values: Any) -> Job | None:
    row = connection.execute(statement, values).one_or_none()
    return None if row is None else Job(*row)
