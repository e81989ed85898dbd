"""Reads the workers that record executions, and how much they run."""

from datetime import datetime
from typing import NamedTuple

from sqlalchemy import Connection, text


class WorkerUsage(NamedTuple):
    """A worker, and how many executions it runs."""

    name: str
    pid: int
    pool: str | None
    #: How many it runs at once, if it says so.
    concurrency: int | None
    started_at: datetime
    #: Since when it seems dead.
    missing_since: datetime | None
    running: int


# A worker that doesn't say its namespace may be of any.
_LISTING = text(
    """
    SELECT w.name, w.pid, w.pool, w.concurrency, w.started_at, w.missing_since,
           (SELECT count(*) FROM pgbeat.running_executions e WHERE e.worker_id = w.id)
      FROM pgbeat.workers w
     WHERE coalesce(w.namespace, :namespace) = :namespace
     ORDER BY w.name, w.id LIMIT :limit
    """
)


def listing(connection: Connection, namespace: str, *, limit: int = 1000) -> list[WorkerUsage]:
    """Returns workers by name; the dead too, for the hour for which their rows are kept."""
    rows = connection.execute(_LISTING, {"namespace": namespace, "limit": limit})
    return [WorkerUsage(*row) for row in rows]
