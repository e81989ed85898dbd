"""Jobs: one row for each unit of launched work; its id is the Celery task id."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import Connection, text


@dataclass(frozen=True, slots=True)
class Job:
    """What was launched. `args` and `kwargs` are JSON text, `None` where they are not JSON."""

    id: UUID
    schedule_id: int | None
    schedule: str | None
    due_at: datetime | None
    task: str
    args: str | None
    kwargs: str | None
    queue: str | None
    job_source: str
    created_by: str
    is_system_job: bool


_CREATE = text(
    """
    INSERT INTO pgbeat.jobs
           (id, schedule_id, schedule, due_at, task, args, kwargs, queue, job_source, created_by,
            is_system_job)
    SELECT * FROM unnest(
           CAST(:id AS uuid[]), CAST(:schedule_id AS bigint[]), CAST(:schedule AS text[]),
           CAST(:due_at AS timestamptz[]), CAST(:task AS text[]), CAST(:args AS jsonb[]),
           CAST(:kwargs AS jsonb[]), CAST(:queue AS text[]), CAST(:job_source AS text[]),
           CAST(:created_by AS text[]), CAST(:is_system_job AS boolean[]))
    ON CONFLICT (id) DO NOTHING
    """
)


def create(connection: Connection, batch: Sequence[Job]) -> None:
    """Writes jobs, in state `pending`. One that is there already stays as it is."""
    if batch:
        connection.execute(
            _CREATE, {name: [getattr(job, name) for job in batch] for name in Job.__slots__}
        )


_PRUNE = text(
    """
    DELETE FROM pgbeat.jobs WHERE id IN (
        SELECT id FROM pgbeat.jobs WHERE created_at < now() - make_interval(secs => :seconds)
           AND state IN ('completed', 'failed', 'cancelled', 'skipped', 'pending')
         ORDER BY created_at LIMIT :limit)
    """
)


def prune(connection: Connection, days: float, *, limit: int = 1000) -> int:
    """Deletes up to `limit` of the oldest jobs if they are older than `days`; how many."""
    result = connection.execute(_PRUNE, {"seconds": days * 86_400, "limit": limit})
    return int(result.rowcount)


_START = text(
    """
    UPDATE pgbeat.jobs SET state = 'running', started_at = now(), finished_at = NULL,
           worker = :worker, error = NULL
     WHERE id = :id AND state IN ('pending', 'scheduled', 'running', 'failed')
    """
)
_FINISH = text(
    """
    UPDATE pgbeat.jobs SET state = :state, finished_at = now(), error = :error
     WHERE id = :id AND state IN ('pending', 'scheduled', 'running')
    """
)


def start(connection: Connection, job_id: UUID, worker: str) -> bool:
    """A worker begins (or, redelivered, begins again); `False` where there is no such job."""
    return connection.execute(_START, {"id": job_id, "worker": worker}).rowcount > 0


def finish(connection: Connection, job_id: UUID, state: str, error: str | None = None) -> bool:
    """A worker is done: `state` is completed, failed or cancelled; `scheduled` for a retry."""
    return connection.execute(_FINISH, {"id": job_id, "state": state, "error": error}).rowcount > 0
