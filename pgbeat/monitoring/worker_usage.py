"""Reads the workers that record executions, and what they run."""

from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import Connection, text

from pgbeat.jobs.workers import ALIVE


class RunningTask(NamedTuple):
    """An execution that a worker runs."""

    job_id: UUID
    task: str
    started_at: datetime


class WorkerUsage(NamedTuple):
    """A worker, and how many executions it runs."""

    name: str
    pid: int
    pool: str | None
    #: How many it runs at once, if it says so.
    concurrency: int | None
    started_at: datetime
    #: Since when it is dead or, if nobody has noted that, when it was last heard of.
    missing_since: datetime | None
    running: int
    host: str | None = None
    #: Of pgbeat, celery and python.
    versions: dict[str, str] | None = None
    #: That it consumes from.
    queues: list[str] | None = None
    #: Resident, of all of its processes.
    memory_mb: float | None = None
    #: Cores in use, on average.
    cpu: float | None = None
    #: When it said that.
    reported_at: datetime | None = None
    #: The executions that have run longest.
    tasks: tuple[RunningTask, ...] = ()


# A worker that doesn't say its namespace may be of any.
_LISTING = text(
    f"""
    SELECT w.name, w.pid, w.pool, w.concurrency, w.started_at,
           CASE WHEN NOT {ALIVE} THEN coalesce(w.missing_since, w.reported_at, w.started_at) END,
           (SELECT count(*) FROM pgbeat.running_executions e WHERE e.worker_id = w.id),
           w.host, w.versions, w.queues, w.memory_mb, w.cpu, w.reported_at, longest.tasks
      FROM pgbeat.workers w CROSS JOIN LATERAL (
           SELECT array_agg(ARRAY[e.job_id::text, j.task, e.started_at::text]
                            ORDER BY e.started_at) AS tasks
             FROM (SELECT job_id, started_at FROM pgbeat.running_executions
                    WHERE worker_id = w.id ORDER BY started_at LIMIT :tasks) AS e
                  JOIN pgbeat.unfinished_jobs j ON j.id = e.job_id) AS longest
     WHERE coalesce(w.namespace, :namespace) = :namespace
     ORDER BY w.name, w.id LIMIT :limit
    """  # noqa: S608
)


def listing(
    connection: Connection, namespace: str, *, limit: int = 1000, tasks: int = 5
) -> list[WorkerUsage]:
    """Returns workers by name; the dead too, for the hour for which their rows are kept.

    Each has up to so many of the `tasks` that it runs.
    """
    given = {"namespace": namespace, "limit": limit, "tasks": tasks}
    rows = map(WorkerUsage._make, connection.execute(_LISTING, given))
    return [row._replace(tasks=tuple(map(_running, row.tasks or ()))) for row in rows]


def _running(row: Any) -> RunningTask:
    return RunningTask(UUID(row[0]), row[1], datetime.fromisoformat(row[2]))
