"""Reads the load over time from rollups: what ended, how long it waited and ran, and the depth."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import Connection, text

from pgbeat.errors import InvalidInput
from pgbeat.monitoring.rollups.load_rollups import (
    HOUR,
    HOURS_KEPT,
    MINUTE,
    MINUTES_KEPT,
    Sums,
    floor,
)

#: Points that are returned at most, and about as many as are returned by default.
MOST, USUAL = 2_300, 100
#: The steps to choose from by default.
STEPS = tuple(
    timedelta(minutes=minutes) for minutes in (1, 2, 5, 10, 15, 30, 60, 120, 240, 480, 1440)
)
SINCE = timedelta(hours=1)


class Point(NamedTuple):
    """The load of a span; durations are seconds, of jobs that began and have ended."""

    at: datetime
    completed: int
    failed: int
    cancelled: int
    skipped: int
    waiting_p50: float | None
    waiting_p95: float | None
    running_p50: float | None
    running_p95: float | None
    #: Jobs that waited, at most.
    depth: int

    @property
    def ended(self) -> int:
        """Returns the number of all ends."""
        return self.completed + self.failed + self.cancelled + self.skipped


class Load(NamedTuple):
    """The load from `since` until `until`, a point for each step; `total` is all of it."""

    kind: str
    name: str
    since: datetime
    #: What ended later is not counted yet.
    until: datetime
    step: timedelta
    total: Point
    points: list[Point]


# Minutes begin where hours end, and may be missing further back than they are kept.
_READ = text(
    """
    SELECT at, completed, failed, cancelled, skipped, waiting, running, depth
      FROM pgbeat.rollups
     WHERE namespace = :namespace AND kind = :kind AND name = :name
       AND (step = 3600 AND at >= :since AND at < :middle
            OR step = 60 AND at >= greatest(:since, :middle)) AND at < :until
    """
)
PROGRESS = text(
    """
    SELECT now() AS now, p.counted_until,
           date_trunc('hour', p.settled_until, 'UTC') AS hours_until
      FROM (VALUES (1)) AS one LEFT JOIN pgbeat.rollup_progress p ON p.namespace = :namespace
    """
)


def load(
    connection: Connection,
    namespace: str,
    *,
    task: str | None = None,
    lane: str | None = None,
    queue: str | None = None,
    since: timedelta | datetime = SINCE,
    step: timedelta | None = None,
) -> Load:
    """Returns the load of all jobs of a namespace, or of those of a task, a lane or a queue.

    `since` is a time, or how long ago it was. A step is a whole number of minutes, and of hours if
    it begins more than a day ago; by default about a hundred make the span. Raises `InvalidInput`.
    """
    kind, name = _which({"task": task, "lane": lane, "queue": queue})
    progress = connection.execute(PROGRESS, {"namespace": namespace}).one()
    now = progress.now.astimezone(UTC)
    asked = beginning(now, since)
    # A minute's grace: a page for a day is asked for a moment after its links were made.
    by_hours = asked < now - MINUTES_KEPT - MINUTE
    step = _step(now - asked, step, by_hours)
    begins = floor(asked, step)
    until = floor(progress.counted_until.astimezone(UTC), MINUTE) if progress[1] else begins
    values = {
        "namespace": namespace,
        "kind": kind,
        "name": name,
        "since": begins,
        "middle": max(begins, progress.hours_until or begins) if by_hours else begins,
        "until": max(until, now),
    }
    total, spans = Sums(), dict[datetime, Sums]()
    for row in connection.execute(_READ, values):
        total.add(row)
        spans.setdefault(floor(row.at, step), Sums()).add(row)
    count = -((begins - max(until, begins)) // step)  # rounded up
    times = [begins + step * number for number in range(count)]
    points = [_point(at, spans.get(at) or Sums()) for at in times]
    return Load(kind, name, begins, max(until, begins), step, _point(begins, total), points)


def beginning(now: datetime, since: timedelta | datetime) -> datetime:
    """Returns when a span begins. Raises `InvalidInput`."""
    try:
        asked = now - since if isinstance(since, timedelta) else since.astimezone(UTC)
    except OverflowError:
        asked = now
    if not timedelta(0) < now - asked <= HOURS_KEPT:
        message = f"since must be within the last {HOURS_KEPT.days} days"
        raise InvalidInput.of("since", "out_of_range", message)
    return asked


def _which(names: Mapping[str, str | None]) -> tuple[str, str]:
    """Returns the kind and the name of the one that is given."""
    named = [(kind, name) for kind, name in names.items() if name]
    if len(named) > 1:
        raise InvalidInput.of(
            named[1][0], "conflict", "task, lane and queue exclude each other: give one of them"
        )
    return named[0] if named else ("all", "")


def _step(length: timedelta, step: timedelta | None, by_hours: bool) -> timedelta:
    """Returns the step, by default the shortest that makes few enough points."""
    least, unit = (HOUR, "hours") if by_hours else (MINUTE, "minutes")
    if step is None:
        return next(size for size in STEPS if size >= least and length / size <= USUAL)
    if step < least or step % least:
        message = f"step must be a whole number of {unit} for this span"
        raise InvalidInput.of("step", "out_of_range", message)
    if length / step > MOST:
        message = f"step must leave at most {MOST} points"
        raise InvalidInput.of("step", "out_of_range", message)
    return step


def _point(at: datetime, sums: Sums) -> Point:
    lengths: dict[str, Any] = {
        f"{name}_p{percent}": _rounded(histogram.percentile(percent / 100))
        for name, histogram in (("waiting", sums.waiting), ("running", sums.running))
        for percent in (50, 95)
    }
    return Point(at, **sums.ends, depth=sums.depth, **lengths)


def _rounded(seconds: float | None) -> float | None:
    """Returns two digits: there is no more in a histogram."""
    return None if seconds is None else float(f"{seconds:.2g}")
