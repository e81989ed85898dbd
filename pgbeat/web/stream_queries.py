"""Queries for all event streams of a process: one for jobs, and one for marks.

Streams send jobs as they are. Of everything else they only send that it changed, which they see by
its mark: a value that stays the same unless something happened.
"""

from collections.abc import Collection, Iterable
from datetime import UTC, datetime
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import Connection, text

from pgbeat.database import connections, sql
from pgbeat.database.locks.advisory_locks import OF_LEADER
from pgbeat.jobs.rows.model import ENDED
from pgbeat.jobs.running.executions import NEWEST

# -- jobs

#: How many of the newest jobs are read of each unfinished state, of each person, and of all.
_NEWEST = 300


class StreamedJob(NamedTuple):
    """A job as streams send it."""

    id: UUID
    task: str
    state: str
    attempt: int
    created_by: str
    schedule: str | None
    lane: str | None
    awaits_approval: bool
    worker: str | None
    error: str | None
    retried_by: UUID | None
    run_at: datetime | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    cancel_requested_at: datetime | None
    cancel_reason: str | None
    #: The newest execution's number and progress.
    execution: int | None
    done: float | None
    total: float | None
    message: str | None

    @property
    def changed_at(self) -> datetime:
        """When it was made, started or finished."""
        return max(filter(None, (self.created_at, self.started_at, self.finished_at)))

    @property
    def has_ended(self) -> bool:
        """Whether it is in a final state."""
        return self.state in ENDED


class JobSnapshot(NamedTuple):
    """The jobs that were read, and the database's time."""

    at: datetime
    jobs: dict[UUID, StreamedJob]

    @classmethod
    def empty(cls) -> "JobSnapshot":
        """Returns what is known at first."""
        return cls(datetime.min.replace(tzinfo=UTC), {})


_JOB = ", ".join(f"j.{name}" for name in StreamedJob._fields[:-4])
_SNAPSHOT = text(sql.load("stream_queries.sql", "snapshot", job=_JOB, newest=NEWEST))


def snapshot(
    connection: Connection,
    namespace: str,
    *,
    ids: Iterable[UUID],
    people: Iterable[str],
    with_all: bool,
) -> JobSnapshot:
    """Reads the jobs with these ids, and the newest ones of these people or of all."""
    values: dict[str, Any] = {
        "namespace": namespace,
        "ids": [str(job_id) for job_id in ids],
        "with_all": with_all,
        "people": sorted(people),
        "newest": _NEWEST,
    }
    rows = connection.execute(_SNAPSHOT, values).all()
    at = rows[0][0] if rows else connections.now(connection)
    return JobSnapshot(at, {row[1]: StreamedJob(*row[1:]) for row in rows})


# -- marks

#: The mark of a schedule is `schedule:NAME`.
SCHEDULE = "schedule:"
# Each reads one row of an index, or all of a small table.
_MARKS = {
    name: sql.load("stream_queries.sql", name, of_leader=OF_LEADER)
    for name in (
        "audit",
        "ticks",
        "made",
        "began",
        "ended",
        "lanes",
        "direct",
        "webhooks",
        "beats",
        "messages",
    )
}
#: The names of marks, without those of single schedules.
MARKS = frozenset(_MARKS)

_SCHEDULES = text(sql.load("stream_queries.sql", "schedules"))


def marks(
    connection: Connection, namespace: str, wanted: Collection[str], *, leader_key: int
) -> dict[str, Any]:
    """Reads the marks of these names, without those of schedules that don't exist."""
    by_name: dict[str, Any] = {}
    names = sorted(MARKS & set(wanted))
    if names:
        values = {"namespace": namespace, "leader_key": leader_key}
        statement = "SELECT " + ", ".join(f"({_MARKS[name]})" for name in names)
        used = {key: value for key, value in values.items() if f":{key}" in statement}
        row = connection.execute(text(statement), used).one()
        by_name = dict(zip(names, row, strict=True))
    schedules = [name.removeprefix(SCHEDULE) for name in wanted if name.startswith(SCHEDULE)]
    if schedules:
        rows = connection.execute(_SCHEDULES, {"namespace": namespace, "names": schedules})
        by_name |= {SCHEDULE + name: mark for name, mark in rows}
    return by_name
