"""Ticks: one row for every decision on a due schedule, with its outcome."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NamedTuple
from uuid import UUID

from sqlalchemy import Connection, desc, func, select, text

from pgbeat.db import recordset
from pgbeat.tables import ticks

Outcome = Literal["launched", "skipped", "failed"]
Trigger = Literal["timetable", "retry", "manual", "after", "backfill"]


class Tick(NamedTuple):
    """A decision: `reason` says why it was skipped, `error` why it failed."""

    schedule_id: int
    schedule: str
    trigger: Trigger
    due_at: datetime
    outcome: Outcome
    reason: str | None = None
    error: str | None = None
    job_id: str | None = None
    #: Due times before this one that it accounts for; `note` says why.
    missed: int = 0
    note: str | None = None


_RECORD = text(
    """
    INSERT INTO pgbeat.ticks
           (schedule_id, schedule, trigger, due_at, decided_at, outcome, reason, error, job_id,
            missed, note)
    SELECT d.schedule_id, d.schedule, d.trigger, d.due_at, clock_timestamp(), d.outcome, d.reason,
           d.error, d.job_id, d.missed, d.note
      FROM json_to_recordset(CAST(:batch AS json)) AS d (
               schedule_id bigint, schedule text, trigger text, due_at timestamptz, outcome text,
               reason text, error text, job_id uuid, missed integer, note text)
    ON CONFLICT ON CONSTRAINT ticks_one_decision DO NOTHING
    RETURNING schedule_id
    """
)


def record(connection: Connection, batch: Sequence[Tick]) -> set[int]:
    """Writes decisions, at most one a schedule; the ids of the schedules that had none yet for
    that due time."""
    if not batch:
        return set()
    return set(connection.scalars(_RECORD, {"batch": recordset(batch)}))


@dataclass(frozen=True, slots=True)
class Entry:
    """A tick as history shows it, with how its job ended."""

    id: int
    schedule: str
    trigger: str
    due_at: datetime
    decided_at: datetime
    outcome: str
    reason: str | None
    error: str | None
    job_id: UUID | None
    missed: int
    note: str | None
    job_state: str | None
    job_error: str | None


_HISTORY = """
    SELECT t.id, t.schedule, t.trigger, t.due_at, t.decided_at, t.outcome, t.reason, t.error,
           t.job_id, t.missed, t.note, j.state, j.error
      FROM pgbeat.ticks t LEFT JOIN pgbeat.jobs j ON j.id = t.job_id
"""
_OF_SCHEDULE = text(
    _HISTORY + "WHERE t.schedule_id = :schedule_id ORDER BY t.due_at DESC, t.id DESC LIMIT :limit"
)
_AFTER = text(_HISTORY + "WHERE t.id > :after ORDER BY t.id LIMIT :limit")


def history(connection: Connection, schedule_id: int, *, limit: int = 20) -> list[Entry]:
    """The newest ticks of a schedule, newest first."""
    rows = connection.execute(_OF_SCHEDULE, {"schedule_id": schedule_id, "limit": limit})
    return [Entry(*row) for row in rows]


def after(connection: Connection, tick_id: int, *, limit: int = 1000) -> list[Entry]:
    """Ticks of all schedules that were written after one, oldest first."""
    rows = connection.execute(_AFTER, {"after": tick_id, "limit": limit})
    return [Entry(*row) for row in rows]


@dataclass(frozen=True, slots=True)
class Stats:
    """How a schedule's ticks came out; `success_rate` leaves skips aside (`None` without any)."""

    total: int
    launched: int
    skipped: int
    failed: int

    @property
    def success_rate(self) -> float | None:
        decided = self.launched + self.failed
        return self.launched / decided if decided else None


def stats(connection: Connection, schedule_id: int) -> Stats:
    """Counts of a schedule's ticks, as far back as they are kept."""
    query = select(
        func.count(),
        *(func.count().filter(ticks.c.outcome == o) for o in ("launched", "skipped", "failed")),
    ).where(ticks.c.schedule_id == schedule_id)
    counts: Any = connection.execute(query).one()
    return Stats(*counts)


def newest(connection: Connection) -> Any:
    """The newest tick's id and time, or `None`."""
    query = select(ticks.c.id, ticks.c.decided_at).order_by(desc(ticks.c.id)).limit(1)
    return connection.execute(query).one_or_none()


# The oldest rows stand first in the primary key: no scan, however many are kept. What a tick
# launched goes with it.
_PRUNE = text(
    """
    WITH gone AS (
        DELETE FROM pgbeat.ticks WHERE id IN (
            SELECT id FROM (SELECT id, decided_at FROM pgbeat.ticks ORDER BY id LIMIT :limit) o
             WHERE decided_at < now() - make_interval(secs => :seconds))
        RETURNING job_id),
    jobs AS (DELETE FROM pgbeat.jobs WHERE id IN (SELECT job_id FROM gone))
    SELECT count(*) FROM gone
    """
)


def prune(connection: Connection, days: float, *, limit: int = 1000) -> int:
    """Deletes up to `limit` of the oldest ticks, and their jobs, if they are older than `days`;
    how many."""
    return int(connection.scalar(_PRUNE, {"seconds": days * 86_400, "limit": limit}) or 0)
