"""Lists tasks: how often each ran in the last 24 hours, also untracked, and how long it took."""

from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from sqlalchemy import Connection, text

from pgbeat.database import sql
from pgbeat.jobs.rows.filters import like
from pgbeat.monitoring.rollups.load import PROGRESS
from pgbeat.monitoring.rollups.load_rollups import Sums

SPAN = timedelta(days=1)


class TaskUsage(NamedTuple):
    """A task in the last 24 hours; durations are seconds, of jobs that began and have ended."""

    name: str
    completed: int
    failed: int
    cancelled: int
    skipped: int
    #: Messages that workers received without tracking them.
    untracked: int
    running_p50: float | None = None
    running_p95: float | None = None

    @property
    def runs(self) -> int:
        """Returns how often it ended as a job."""
        return self.completed + self.failed + self.cancelled + self.skipped


class Tasks(NamedTuple):
    """Tasks, the most frequent first."""

    rows: list[TaskUsage]
    has_more: bool
    #: Of all tasks, also those that are not in the rows.
    untracked: int


_LISTING = text(sql.load("tasks.sql", "listing"))
_HISTOGRAMS = text(sql.load("tasks.sql", "histograms"))
_UNTRACKED = text(
    """
    SELECT coalesce(sum(number), 0)::bigint FROM pgbeat.untracked_tasks
     WHERE namespace = :namespace AND at >= now() - CAST(:span AS interval)
    """
)


def untracked(connection: Connection, namespace: str) -> int:
    """Returns how many tasks ran untracked in the last 24 hours."""
    values = {"namespace": namespace, "span": SPAN}
    return int(connection.execute(_UNTRACKED, values).scalar_one())


def listing(connection: Connection, namespace: str, *, search: str = "", limit: int = 50) -> Tasks:
    """Returns the tasks of the last 24 hours whose name contains `search`."""
    progress = connection.execute(PROGRESS, {"namespace": namespace}).one()
    since: datetime = progress.now.astimezone(UTC) - SPAN
    values = {
        "namespace": namespace,
        "since": since,
        "middle": progress.hours_until or since,
        "pattern": like(f"*{search}*"),
        "limit": limit + 1,
    }
    rows = [TaskUsage(*row) for row in connection.execute(_LISTING, values)]
    shown, sums = rows[:limit], dict[str, Sums]()
    names = {"names": [row.name for row in shown]}
    for row in connection.execute(_HISTOGRAMS, values | names):
        sums.setdefault(row.name, Sums()).add(row)
    return Tasks(
        [_with_lengths(row, sums.get(row.name)) for row in shown],
        len(rows) > limit,
        untracked(connection, namespace),
    )


def _with_lengths(row: TaskUsage, sums: Sums | None) -> TaskUsage:
    if sums is None:
        return row
    return row._replace(
        running_p50=sums.running.percentile(0.5), running_p95=sums.running.percentile(0.95)
    )
