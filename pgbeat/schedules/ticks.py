"""Ticks: a row for each decision on a due time, with its outcome."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple
from uuid import UUID

from sqlalchemy import Connection, func, select, text

from pgbeat.database import sql
from pgbeat.database.connections import recordset
from pgbeat.database.tables import ticks
from pgbeat.jobs.rows.model import ENDED

Outcome = Literal["launched", "skipped", "failed"]
Trigger = Literal["timetable", "retry", "manual", "after", "backfill"]


class Tick(NamedTuple):
    """A decision to write: `reason` says why it was skipped, `error` why it failed."""

    schedule_id: int
    schedule: str
    trigger: Trigger
    due_at: datetime
    outcome: Outcome
    reason: str | None = None
    error: str | None = None
    job_id: str | None = None
    #: How many earlier due times it accounts for; `note` says why.
    missed: int = 0
    note: str | None = None
    #: Further jobs, if several were launched together.
    more_job_ids: Sequence[str] | None = None

    @property
    def job_ids(self) -> list[str]:
        """Returns the ids of its jobs."""
        return [] if self.job_id is None else [self.job_id, *(self.more_job_ids or ())]

    @property
    def audited(self) -> tuple[str, str, dict[str, Any]]:
        """Returns what the audit log records of a decision that a person asked for."""
        values = {
            "due_at": self.due_at,
            "outcome": self.outcome,
            "job_id": self.job_id,
            "why": self.reason or self.error,
            "job_ids": self.job_ids if self.more_job_ids else None,
        }
        return "schedule", self.schedule, values


#: The advisory lock of those who write ticks of old times, and of those who drop old periods.
OF_LATE = "hashtextextended('pgbeat.late_ticks', 0)"
_WITH_PERIODS = text(f"SELECT pg_advisory_xact_lock_shared({OF_LATE})")
_RECORD = text(sql.load("ticks.sql", "record"))


def record(connection: Connection, batch: Sequence[Tick]) -> set[int]:
    """Writes decisions, at most one for each schedule.

    Returns the ids of the schedules that had no decision on that due time yet.
    """
    if not batch:
        return set()
    if any(tick.trigger == "backfill" for tick in batch):
        connection.execute(_WITH_PERIODS)
    return set(connection.scalars(_RECORD, {"batch": recordset(batch)}))


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """A job of a tick, with the state and error of its last retry."""

    id: UUID
    run_key: str | None
    #: `None` if the job is no longer kept.
    state: str | None
    error: str | None
    #: Its task, which may have been the schedule's only then.
    task: str | None = None
    #: When it began, and when it ended.
    started_at: datetime | None = None
    finished_at: datetime | None = None

    @property
    def has_ended(self) -> bool:
        """Returns whether it has ended, or is no longer kept."""
        return self.state is None or self.state in ENDED


def summary(jobs: Sequence[JobOutcome]) -> str:
    """Returns the states of several jobs in words: "3 jobs: 2 completed, 1 running"."""
    counts = Counter(job.state or "no longer kept" for job in jobs)
    states = ", ".join(f"{count} {state}" for state, count in counts.items())
    return f"{len(jobs)} jobs: {states}"


@dataclass(frozen=True, slots=True)
class Entry:
    """A tick as history shows it, with the state of its job's last retry."""

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
    #: The number of that attempt, of how many, and when it is due to run.
    job_attempt: int | None = None
    job_max_attempts: int | None = None
    job_run_at: datetime | None = None
    #: Its lane, and when its message was sent.
    job_lane: str | None = None
    job_dispatched_at: datetime | None = None
    #: All of its jobs: a launcher may ask for several.
    jobs: tuple[JobOutcome, ...] = ()
    #: When the first of them began, when the last one ended, and the time between.
    started_at: datetime | None = None
    finished_at: datetime | None = None
    duration_ms: float | None = None

    def with_jobs(self, launched: Sequence[JobOutcome]) -> "Entry":
        """Returns it with its jobs, and with the times of its run."""
        started_at = min((job.started_at for job in launched if job.started_at), default=None)
        ends = [job.finished_at for job in launched]
        finished_at = max((end for end in ends if end), default=None) if all(ends) else None
        duration_ms = None
        if started_at is not None and finished_at is not None:
            duration_ms = round((finished_at - started_at).total_seconds() * 1000, 3)
        return replace(
            self,
            jobs=tuple(launched),
            started_at=started_at,
            finished_at=finished_at,
            duration_ms=duration_ms,
        )


_HISTORY = text(sql.load("ticks.sql", "history"))
_OUTCOMES = text(sql.load("ticks.sql", "outcomes"))
# Comes after every tick.
_END = (datetime.max.replace(tzinfo=UTC), 0)


def history(
    connection: Connection,
    schedule_id: int,
    *,
    before: tuple[datetime, int] | None = None,
    limit: int = 20,
) -> list[Entry]:
    """Returns the newest ticks of a schedule, newest first.

    For the next page, `before` is the last one's `due_at` and `id`.
    """
    due_at, tick_id = before or _END
    values = {"schedule_id": schedule_id, "due_at": due_at, "id": tick_id, "limit": limit}
    rows = connection.execute(_HISTORY, values).all()
    ids = [str(job_id) for *_, more in rows for job_id in more or ()]
    outcomes = connection.execute(_OUTCOMES, {"ids": ids}) if ids else ()
    others = {job_id: JobOutcome(job_id, *about) for job_id, *about in outcomes}
    entries: list[Entry] = []
    for *columns, run_key, task, started_at, finished_at, more in rows:
        entry = Entry(*columns)
        if entry.job_id is not None:
            first = JobOutcome(
                entry.job_id,
                run_key,
                entry.job_state,
                entry.job_error,
                task,
                started_at,
                finished_at,
            )
            entry = entry.with_jobs([first, *(others[job_id] for job_id in more or ())])
        entries.append(entry)
    return entries


@dataclass(frozen=True, slots=True)
class Stats:
    """The outcomes of a schedule's ticks, and of the jobs that it launched."""

    total: int
    launched: int
    skipped: int
    failed: int
    #: Ended jobs, by the last attempt of those that were retried.
    jobs_completed: int
    jobs_failed: int

    @property
    def success_rate(self) -> float | None:
        """Returns the share of completed jobs, 0 to 1; `None` if none has ended.

        Failed decisions count as failed jobs; skips don't count.
        """
        ended = self.jobs_completed + self.jobs_failed
        if not ended and self.launched:
            return None
        decided = ended + self.failed
        return self.jobs_completed / decided if decided else None


_JOBS = text(
    """
    SELECT (SELECT count(*) FROM pgbeat.jobs
             WHERE state = 'completed' AND schedule_id = :schedule_id AND retried_by IS NULL),
           (SELECT count(*) FROM pgbeat.jobs
             WHERE state = 'failed' AND schedule_id = :schedule_id AND retried_by IS NULL)
    """
)


def stats(connection: Connection, schedule_id: int) -> Stats:
    """Counts a schedule's ticks and their jobs, as far back as they are kept."""
    query = select(
        func.count(),
        *(func.count().filter(ticks.c.outcome == o) for o in ("launched", "skipped", "failed")),
    ).where(ticks.c.schedule_id == schedule_id)
    counts: Any = connection.execute(query).one()
    return Stats(*counts, *connection.execute(_JOBS, {"schedule_id": schedule_id}).one())
