"""Jobs: one row for each unit of launched work; its id is the Celery task id."""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Connection, text

from pgbeat.db import recordset


class Job(NamedTuple):
    """What was launched. `args` and `kwargs` are `None` where they are not JSON."""

    id: str
    schedule_id: int | None
    schedule: str | None
    due_at: datetime | None
    task: str
    args: list[Any] | None
    kwargs: dict[str, Any] | None
    queue: str | None
    job_source: str
    created_by: str
    is_system_job: bool


_CREATE = text(
    """
    INSERT INTO pgbeat.jobs
           (id, schedule_id, schedule, due_at, task, args, kwargs, queue, job_source, created_by,
            is_system_job)
    SELECT id, schedule_id, schedule, due_at, task, args, kwargs, queue, job_source, created_by,
           is_system_job
      FROM json_to_recordset(CAST(:batch AS json)) AS d (
               id uuid, schedule_id bigint, schedule text, due_at timestamptz, task text,
               args jsonb, kwargs jsonb, queue text, job_source text, created_by text,
               is_system_job boolean)
    ON CONFLICT (id) DO NOTHING
    """
)


def create(connection: Connection, batch: Sequence[Job]) -> None:
    """Writes jobs, in state `pending`. One that is there already stays as it is."""
    if batch:
        connection.execute(_CREATE, {"batch": recordset(batch)})


UNFINISHED = "state IN ('pending', 'scheduled', 'running', 'paused')"
_UNFINISHED_OF = text(
    f"""
    SELECT schedule_id, id, state FROM pgbeat.jobs
     WHERE schedule_id = ANY (CAST(:schedules AS bigint[])) AND {UNFINISHED}
     ORDER BY created_at, id
    """  # noqa: S608
)


class Unfinished(NamedTuple):
    """A job that has not ended."""

    id: str
    state: str


def unfinished(connection: Connection, schedules: Collection[int]) -> dict[int, list[Unfinished]]:
    """The jobs of schedules (ids) that have not ended, oldest first."""
    found: dict[int, list[Unfinished]] = {}
    if schedules:
        rows = connection.execute(_UNFINISHED_OF, {"schedules": list(schedules)})
        for schedule_id, job_id, state in rows:
            found.setdefault(schedule_id, []).append(Unfinished(str(job_id), state))
    return found


# A row that is locked is just being ended by its worker.
_CANCEL = text(
    f"""
    UPDATE pgbeat.jobs SET state = 'cancelled', finished_at = now(), error = :reason
     WHERE id IN (SELECT id FROM pgbeat.jobs
                   WHERE id = ANY (CAST(:ids AS uuid[])) AND {UNFINISHED} FOR UPDATE SKIP LOCKED)
    RETURNING id
    """  # noqa: S608
)


def cancel(connection: Connection, job_ids: Collection[str], reason: str) -> list[str]:
    """Ends jobs that have not ended yet; the ids of those."""
    if not job_ids:
        return []
    found = connection.scalars(_CANCEL, {"ids": list(job_ids), "reason": reason})
    return [str(job_id) for job_id in found]


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


def start(connection: Connection, job_id: str, worker: str) -> bool:
    """A worker begins (or, redelivered, begins again); `False` where there is no such job."""
    return connection.execute(_START, {"id": job_id, "worker": worker}).rowcount > 0


def finish(connection: Connection, job_id: str, state: str, error: str | None = None) -> bool:
    """A worker is done: `state` is completed, failed or cancelled; `scheduled` for a retry."""
    return connection.execute(_FINISH, {"id": job_id, "state": state, "error": error}).rowcount > 0
