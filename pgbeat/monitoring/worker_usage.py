"""Reads the workers that record executions, and what they run."""

from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import Connection, text

from pgbeat.database import sql
from pgbeat.jobs.running.workers import ALIVE


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
    #: Since when it is dead or, until that is noted, when it last reported.
    missing_since: datetime | None
    running: int
    host: str | None = None
    #: Of pgbeat, celery, python, and of the app, if it has one.
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


_LISTING = text(sql.load("worker_usage.sql", "listing", alive=ALIVE))


def listing(
    connection: Connection, namespace: str, *, limit: int = 1000, tasks: int = 5
) -> list[WorkerUsage]:
    """Returns workers by name; the dead too, for the hour for which their rows are kept.

    Each has up to so many of the `tasks` that it runs.
    """
    values = {"namespace": namespace, "limit": limit, "tasks": tasks}
    rows = map(WorkerUsage._make, connection.execute(_LISTING, values))
    return [row._replace(tasks=tuple(map(_running, row.tasks or ()))) for row in rows]


def _running(row: Any) -> RunningTask:
    return RunningTask(UUID(row[0]), row[1], datetime.fromisoformat(row[2]))
