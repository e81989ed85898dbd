"""Groups failed jobs by the pattern of their error, from rollups and the newest of the jobs.

The leading beat counts a minute when it is over (`error_rollups`). Jobs that failed since then, all
if no beat ever led, are looked for among the newest `NEWEST` failed jobs.
"""

from collections import Counter
from collections.abc import Callable, Collection
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from sqlalchemy import Connection, text

from pgbeat.database import sql
from pgbeat.database.connections import recordset
from pgbeat.errors import InvalidInput
from pgbeat.monitoring.rollups.error_rollups import (
    LINE,
    OTHERS,
    SCHEDULES_KEPT,
    Failures,
    Kind,
    of_jobs,
)
from pgbeat.monitoring.rollups.load import PROGRESS, STEPS, beginning
from pgbeat.monitoring.rollups.load_rollups import HOUR, MINUTE, floor

#: Failed jobs that are read themselves, and patterns by task that are read from rollups.
NEWEST, _MOST_KINDS = 1000, 1000
#: Groups that are returned by default and at most; steps of a sparkline at most.
USUAL, MOST, _POINTS = 20, 100, 48
_SHOWN_SCHEDULES = SCHEDULES_KEPT - 1
SINCE = timedelta(days=1)
#: Spans up to these are read by minutes and by hours, longer ones by days.
_BY_MINUTES, _BY_HOURS = timedelta(hours=6), timedelta(days=7)
DAY = timedelta(days=1)

#: Returns the error of a task as it may be seen.
Mask = Callable[[str | None, str], str]


class ErrorPattern(NamedTuple):
    """Failed jobs whose errors have the same pattern."""

    pattern: str
    #: Failed jobs.
    jobs: int
    #: When a job first failed so, as far back as it is known: up to 92 days.
    since: datetime
    last_at: datetime
    #: A job that failed so: the last. It may have been deleted since.
    job_id: UUID
    #: Those with most failures first.
    tasks: list[str]
    #: The first ten schedules that launched such jobs, and whether there are more.
    schedules: list[str]
    has_more_schedules: bool
    #: Failed jobs of each step of the span.
    counts: list[int]


class ErrorReport(NamedTuple):
    """The errors of jobs that failed from `since` until `until`, the most frequent first."""

    since: datetime
    until: datetime
    step: timedelta
    #: All failed jobs.
    jobs: int
    #: Whether there may be more failed jobs than were counted.
    is_lower_bound: bool
    groups: list[ErrorPattern]
    #: Whether there are more groups.
    has_more: bool


_KINDS = text(sql.load("errors.sql", "kinds"))
_COUNTS = text(sql.load("errors.sql", "counts"))
_SCHEDULES = text(sql.load("errors.sql", "schedules"))
_BEGINNINGS = text(sql.load("errors.sql", "beginnings"))
_NEWEST = text(sql.load("errors.sql", "newest", line=LINE))


class _Span(NamedTuple):
    """Days from `since`, then hours, minutes, and from `until` the jobs themselves."""

    namespace: str
    since: datetime
    hours_from: datetime
    minutes_from: datetime
    until: datetime
    now: datetime
    step: timedelta

    @property
    def values(self) -> dict[str, object]:
        return {
            "namespace": self.namespace,
            "seconds": self.step.total_seconds(),
            "since": self.since,
            "hours_from": self.hours_from,
            "minutes_from": self.minutes_from,
            "until": self.until,
        }

    @property
    def zeros(self) -> list[int]:
        return [0] * ((self.now - self.since) // self.step + 1)


class _Group:
    """A pattern as it is shown, its kinds, and the failures of each step."""

    def __init__(self, shown: str, counts: list[int]) -> None:
        self.pattern, self.counts = shown, counts
        self.kinds: dict[Kind, Failures] = {}
        self.schedules: Counter[str] = Counter()

    @property
    def jobs(self) -> int:
        return sum(failures.number for failures in self.kinds.values())

    def as_group(self) -> ErrorPattern:
        kinds = list(self.kinds.values())
        last = max(kinds, key=lambda failures: failures.last_at)
        tasks: Counter[str] = Counter()
        for (_, task), failures in self.kinds.items():
            tasks[task] += failures.number
        names = [name for name, _ in self.schedules.most_common()]
        return ErrorPattern(
            self.pattern,
            self.jobs,
            min(failures.first_at for failures in kinds),
            last.last_at,
            last.job_id,
            [name for name, _ in tasks.most_common() if name],
            names[:_SHOWN_SCHEDULES],
            len(names) > _SHOWN_SCHEDULES,
            self.counts,
        )


def errors(
    connection: Connection,
    namespace: str,
    *,
    since: timedelta | datetime = SINCE,
    task: str | None = None,
    limit: int = USUAL,
    mask: Mask | None = None,
) -> ErrorReport:
    """Returns the errors of a namespace's failed jobs, or of those of a task, by pattern.

    `since` is a time, or how long ago it was. Errors that `mask` makes the same are one group.
    Raises `InvalidInput`.
    """
    if not 1 <= limit <= MOST:
        raise InvalidInput.of("limit", "out_of_range", f"limit must be from 1 to {MOST}")
    span = _span(connection, namespace, since)
    kinds, total, is_lower_bound = _counted(connection, span, task)
    newest, has_more = _newest(connection, span, task)
    for kind, failures in newest:
        kinds.setdefault(kind, Failures(0, failures.first_at, failures.last_at, failures.job_id))
        kinds[kind].add(failures)
    groups: dict[str, _Group] = {}
    for kind, failures in kinds.items():
        shown = kind[0] if mask is None or kind == OTHERS else mask(kind[1], kind[0])
        groups.setdefault(shown, _Group(shown, span.zeros)).kinds[kind] = failures
    ranked = sorted(groups.values(), key=lambda group: (-group.jobs, group.pattern))
    _complete(connection, span, ranked[:limit], newest)
    return ErrorReport(
        span.since,
        span.now,
        span.step,
        total + len(newest),
        is_lower_bound or has_more,
        [group.as_group() for group in ranked[:limit]],
        len(ranked) > limit,
    )


def _span(connection: Connection, namespace: str, since: timedelta | datetime) -> _Span:
    progress = connection.execute(PROGRESS, {"namespace": namespace}).one()
    now = progress.now.astimezone(UTC)
    asked = beginning(now, since)
    length = now - asked
    # A minute's grace: a page for a day is asked for a moment after its links were made.
    fits = [length <= most + MINUTE for most in (_BY_MINUTES, _BY_HOURS)]
    least = MINUTE if fits[0] else HOUR if fits[1] else DAY
    step = next((step for step in STEPS if step >= least and length / step <= _POINTS), DAY)
    begins = floor(asked, step)
    hours_until = max(begins, progress.hours_until or begins)
    days_until = max(begins, floor(hours_until, DAY))
    return _Span(
        namespace,
        begins,
        days_until if least == DAY else begins,
        begins if least == MINUTE else hours_until,
        max(begins, progress.counted_until or begins),
        now,
        step,
    )


def _counted(
    connection: Connection, span: _Span, task: str | None
) -> tuple[dict[Kind, Failures], int, bool]:
    """Returns the failures in rollups, their number, and whether that is a lower bound."""
    rows = connection.execute(_KINDS, {**span.values, "task": task, "most": _MOST_KINDS}).all()
    kinds = {
        (row.error, row.task): Failures(row.number, row.first_at, row.last_at, row.job_id)
        for row in rows
    }
    total = rows[0].total if rows else 0
    is_lower_bound = OTHERS in kinds or len(rows) == _MOST_KINDS
    if task is not None and OTHERS in kinds:
        total -= kinds.pop(OTHERS).number
    return kinds, total, is_lower_bound


def _newest(
    connection: Connection, span: _Span, task: str | None
) -> tuple[list[tuple[Kind, Failures]], bool]:
    """Returns the jobs that failed since they were counted, and whether there may be more."""
    rows = connection.execute(_NEWEST, {**span.values, "task": task, "most": NEWEST}).all()
    return [of_jobs(row) for row in rows if row.job_id is not None], bool(rows[0].has_more)


def _complete(
    connection: Connection,
    span: _Span,
    groups: Collection[_Group],
    newest: Collection[tuple[Kind, Failures]],
) -> None:
    """Adds the beginnings, the steps and the schedules of groups."""
    by_kind = {kind: group for group in groups for kind in group.kinds}
    values = {**span.values, "kinds": recordset(_Kind(*kind) for kind in by_kind)}
    for row in connection.execute(_BEGINNINGS, values):
        failures = by_kind[row.error, row.task].kinds[row.error, row.task]
        failures.first_at = min(failures.first_at, row.first_at)
    for row in connection.execute(_COUNTS, values):
        by_kind[row.error, row.task].counts[row.step] += row.number
    for row in connection.execute(_SCHEDULES, values):
        by_kind[row.error, row.task].schedules[row.name] += row.number
    for kind, failures in newest:
        if group := by_kind.get(kind):
            step = (failures.last_at - span.since) // span.step
            group.counts[min(step, len(group.counts) - 1)] += 1
            group.schedules.update(list(failures.schedules))


class _Kind(NamedTuple):
    error: str
    task: str
