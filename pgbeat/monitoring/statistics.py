"""Computes how executions of a job, of a schedule, or all ended, and how long they took.

Only the newest are read, however many are kept.
"""

from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from sqlalchemy import Connection, TextualSelect, text

from pgbeat.database import sql
from pgbeat.database.tables import JOB_STATES
from pgbeat.jobs.rows import model as jobs

#: Executions that are read at most: the newest.
NEWEST = 1000
#: Jobs of a state are counted up to this.
MOST = 10_000


class ExecutionStatistics(NamedTuple):
    """How executions ended. Durations are milliseconds, of those that completed."""

    total: int
    running: int
    completed: int
    failed: int
    cancelled: int
    skipped: int
    #: Those of the failed and cancelled ones whose process died.
    lost: int
    average_ms: float | None
    p95_ms: float | None
    #: When the newest began, and its state.
    last_at: datetime | None
    last_state: str | None
    #: When the next is due, if that is known.
    next_at: datetime | None
    #: Whether these are all that are kept; otherwise older ones were not read.
    is_whole: bool

    @property
    def success_rate(self) -> float | None:
        """Returns completed divided by completed and failed, from 0 to 1; `None` without any.

        Skipped and cancelled executions don't count.
        """
        decided = self.completed + self.failed
        return self.completed / decided if decided else None


_STATISTICS = sql.load("statistics.sql", "statistics")


def _statistics(executions: str, next_at: str) -> TextualSelect:
    """Returns the statement that computes the statistics of these executions."""
    parts = [text(executions).columns().cte("r"), text(next_at).columns().cte("next")]
    return text(_STATISTICS).columns().add_cte(*parts)


_OF_SCHEDULE = _statistics(
    """
    SELECT e.state, e.lost, e.started_at, e.finished_at, e.duration_ms
      FROM pgbeat.executions e WHERE e.schedule_id = :schedule_id
     ORDER BY e.started_at DESC LIMIT :newest + 1
    """,
    """
    SELECT next_run AS at FROM pgbeat.schedules
     WHERE id = :schedule_id AND enabled AND paused_at IS NULL
    """,
)


def of_schedule(connection: Connection, schedule_id: int) -> ExecutionStatistics:
    """Returns statistics of a schedule's newest executions; `next_at` is its next due time."""
    values = {"schedule_id": schedule_id, "newest": NEWEST}
    return ExecutionStatistics(*connection.execute(_OF_SCHEDULE, values).one())


_OF_JOB = _statistics(
    """
    SELECT e.state, e.lost, e.started_at, e.finished_at, e.duration_ms
      FROM pgbeat.executions e
     WHERE e.job_id = ANY (ARRAY(SELECT pgbeat.retry_chain(CAST(:job_id AS uuid))))
     ORDER BY e.started_at DESC LIMIT :newest + 1
    """,
    """
    SELECT min(run_at) AS at FROM pgbeat.jobs
     WHERE id = ANY (ARRAY(SELECT pgbeat.retry_chain(CAST(:job_id AS uuid))))
       AND state = 'scheduled'
    """,
)


def of_job(
    connection: Connection, job_id: str | UUID, *, namespace: str | None = None
) -> ExecutionStatistics:
    """Returns statistics of the executions of all jobs in a job's retry chain.

    `next_at` is the time of the next attempt. Raises `NotFound`.
    """
    job = jobs.get(connection, job_id, namespace=namespace)
    values = {"job_id": job.id, "newest": NEWEST}
    return ExecutionStatistics(*connection.execute(_OF_JOB, values).one())


class Overview(NamedTuple):
    """The jobs and executions of a namespace."""

    #: Jobs of each state, counted up to `MOST`.
    jobs: dict[str, int]
    #: Of the newest jobs' executions; `next_at` is when a schedule is due next.
    runs: ExecutionStatistics
    #: Counters of the whole database since it was made, such as `stale_claims_released`.
    counters: dict[str, int]


_COUNTS = text(
    """
    SELECT s.state, (SELECT count(*) FROM pgbeat.newest_jobs(:namespace, s.state, :most))
      FROM unnest(CAST(:states AS text[])) AS s (state)
    """
)
_OF_ALL = _statistics(
    sql.load("statistics.sql", "of_all"),
    """
    SELECT next_run AS at FROM pgbeat.schedules
     WHERE namespace = :namespace AND enabled AND paused_at IS NULL AND next_run IS NOT NULL
     ORDER BY next_run LIMIT 1
    """,
)
_COUNTERS = text(
    "SELECT metric, value FROM pgbeat.counters "
    "WHERE namespace = '' AND metric <> 'mark' ORDER BY metric"
)


def of_all(connection: Connection, namespace: str) -> Overview:
    """Returns an overview of all jobs of a namespace."""
    counts = {"namespace": namespace, "most": MOST, "states": list(JOB_STATES)}
    values = {"namespace": namespace, "newest": NEWEST}
    return Overview(
        {state: int(count) for state, count in connection.execute(_COUNTS, counts)},
        ExecutionStatistics(*connection.execute(_OF_ALL, values).one()),
        {name: int(value) for name, value in connection.execute(_COUNTERS)},
    )
