"""Keeps rollups of errors: failed jobs of each minute, hour and day, by their pattern.

Each row is of one task. They are counted along with the load (`load_rollups`), from the same jobs,
in the same transaction, whose lock keeps others from doing so meanwhile. Only spans in which jobs
failed are read a second time.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple
from uuid import UUID

from sqlalchemy import Connection, text

from pgbeat.database import sql
from pgbeat.database.connections import recordset
from pgbeat.monitoring.rollups.error_patterns import pattern

#: Seconds of a row, by what it is of.
_SECONDS = {"minute": 60, "hour": 3600, "day": 86400}
#: How long errors are kept by hours; so long as nothing is added up from them.
HOURS_KEPT = timedelta(days=8)
#: Rows of a minute, an hour or a day; the rest is added up in one more, without a task.
MOST = 100
OTHERS = ("other errors", "")
#: Schedules that a row names: one more than are shown, to know whether there are more.
SCHEDULES_KEPT = 11

#: An error's pattern and a task.
Kind = tuple[str, str]

#: What is read of failed jobs of an alias `j`; `LINE` is the part of an error that has its pattern.
LINE = "left(split_part(btrim(j.error, E' \\n\\r\\t'), E'\\n', 1), 500)"
_FAILED = text(sql.load("error_rollups.sql", "failed", line=LINE))
_SHORTER = text(
    """
    SELECT date_trunc(:unit, at, 'UTC') AS at, error, task, number, first_at, last_at, job_id,
           schedules
      FROM pgbeat.error_rollups
     WHERE namespace = :namespace AND step = :shorter AND at >= :starts AND at < :ends
     ORDER BY number DESC
    """
)
_CLEAR = text(
    """
    DELETE FROM pgbeat.error_rollups
     WHERE namespace = :namespace AND step = :step AND at = ANY (CAST(:times AS timestamptz[]))
    """
)
_WRITE = text(sql.load("error_rollups.sql", "write"))


class _Row(NamedTuple):
    at: datetime
    place: int
    error: str
    task: str
    number: int
    first_at: datetime
    last_at: datetime
    job_id: UUID
    schedules: list[str]


class Failures:
    """Adds up failed jobs."""

    __slots__ = ("first_at", "job_id", "last_at", "number", "schedules")

    def __init__(
        self,
        number: int,
        first_at: datetime,
        last_at: datetime,
        job_id: UUID,
        schedules: Iterable[str] = (),
    ) -> None:
        """Begins with the first of them; `job_id` is the last of these."""
        self.number, self.first_at, self.last_at = number, first_at, last_at
        self.job_id, self.schedules = job_id, dict.fromkeys(schedules)

    def add(self, other: "Failures") -> None:
        """Adds others."""
        self.number += other.number
        self.first_at = min(self.first_at, other.first_at)
        if other.last_at > self.last_at:
            self.last_at, self.job_id = other.last_at, other.job_id
        for schedule in other.schedules:
            if len(self.schedules) < SCHEDULES_KEPT:
                self.schedules[schedule] = None


#: Failures by kind, of each minute, hour or day.
_Found = dict[datetime, dict[Kind, Failures]]


def of_jobs(row: Any) -> tuple[Kind, Failures]:
    """Returns the kind of failed jobs that have the same error, and their sums."""
    schedules = () if row.schedule is None else (row.schedule,)
    failures = Failures(row.number, row.first_at, row.last_at, row.job_id, schedules)
    return (pattern(row.error), row.task), failures


def count(connection: Connection, namespace: str, starts: datetime, ends: datetime) -> None:
    """Counts the jobs that failed from `starts` until `ends`, by minute."""
    values = {"namespace": namespace, "starts": starts, "ends": ends}
    kinds: _Found = {}
    for row in connection.execute(_FAILED, values):
        _add(kinds, row.at, *of_jobs(row))
    _write(connection, namespace, "minute", kinds)


def add_up(
    connection: Connection,
    namespace: str,
    unit: Literal["hour", "day"],
    starts: datetime,
    ends: datetime,
) -> None:
    """Adds up the hours from `starts` until `ends` from their minutes, or the days from hours."""
    shorter = _SECONDS["minute" if unit == "hour" else "hour"]
    values = {"namespace": namespace, "starts": starts, "ends": ends}
    kinds: _Found = {}
    for row in connection.execute(_SHORTER, {**values, "unit": unit, "shorter": shorter}):
        failures = Failures(row.number, row.first_at, row.last_at, row.job_id, row.schedules)
        _add(kinds, row.at, (row.error, row.task), failures)
    _write(connection, namespace, unit, kinds)


def _add(times: _Found, at: datetime, kind: Kind, failures: Failures) -> None:
    kinds = times.setdefault(at, {})
    if kind in kinds:
        kinds[kind].add(failures)
    else:
        kinds[kind] = failures


def _write(connection: Connection, namespace: str, unit: str, times: _Found) -> None:
    """Replaces the rows of the times that were found."""
    if not times:
        return
    values = {"namespace": namespace, "step": _SECONDS[unit]}
    connection.execute(_CLEAR, values | {"times": list(times)})
    rows = [row for at, kinds in times.items() for row in _ranked(at, kinds)]
    connection.execute(_WRITE, values | {"batch": recordset(rows)})


def _ranked(at: datetime, kinds: dict[Kind, Failures]) -> Iterable[_Row]:
    """Yields the most frequent kinds, then the others as one."""
    before = kinds.pop(OTHERS, None)
    ranked = sorted(kinds.items(), key=lambda item: -item[1].number)
    rest = [failures for _, failures in ranked[MOST:]] + ([] if before is None else [before])
    shown = ranked[:MOST]
    if rest:
        others = rest[0]
        for failures in rest[1:]:
            others.add(failures)
        shown.append((OTHERS, others))
    for place, ((error, task), f) in enumerate(shown):
        yield _Row(
            at, place, error, task, f.number, f.first_at, f.last_at, f.job_id, list(f.schedules)
        )
