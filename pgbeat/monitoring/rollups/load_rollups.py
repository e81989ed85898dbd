"""Keeps rollups of the load: what ended in each minute and hour, and how many jobs waited.

Ends of jobs are counted from history, a span of whole minutes at a time, and each count replaces
the one before. So a minute may be counted twice, by two processes or by one that died and another,
and is right all the same. It is counted once when it is over, and once more, for good, `SETTLED`
later: an end is written after the time that it has, and committed after it is written. Ends that
are committed later than that are left out. Hours are added up from minutes that are settled.
"""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from heapq import nlargest
from typing import Any, NamedTuple

from sqlalchemy import Connection, text

from pgbeat.database import connections, sql
from pgbeat.database.connections import recordset
from pgbeat.jobs.messages.queue_routes import Route
from pgbeat.monitoring.rollups import error_rollups
from pgbeat.monitoring.rollups.histograms import BOUNDS, Histogram

MINUTE, HOUR, _DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
#: How long minutes and hours are kept.
MINUTES_KEPT, HOURS_KEPT = timedelta(days=1), timedelta(days=92)
#: How long the numbers of untracked tasks are kept.
_UNTRACKED_KEPT = timedelta(days=8)
#: How long after its end a minute is counted, and is counted for the last time.
FRESH, SETTLED = timedelta(seconds=2), timedelta(minutes=15)
#: Names of tasks, lanes or queues that are kept of a minute or hour, at most.
NAMES = 1000
#: The first time, minutes are counted back to here.
_FROM = timedelta(days=1)

#: A kind, a name and a time.
Key = tuple[str, str, datetime]

_BEGIN = text(
    """
    INSERT INTO pgbeat.rollup_progress (namespace, counted_until, settled_until)
    SELECT :namespace, since, since
      FROM date_trunc('hour', clock_timestamp() - CAST(:before AS interval), 'UTC') AS since
    ON CONFLICT DO NOTHING
    """
)
_TAKE = text(
    """
    SELECT counted_until, settled_until,
           date_trunc('minute', clock_timestamp() - CAST(:fresh AS interval)) AS counted_to,
           date_trunc('minute', clock_timestamp() - CAST(:settled AS interval)) AS settled_to
      FROM pgbeat.rollup_progress WHERE namespace = :namespace FOR UPDATE SKIP LOCKED
    """
)
_MOVE = text(
    """
    UPDATE pgbeat.rollup_progress
       SET counted_until = greatest(counted_until, :ends),
           settled_until = CASE WHEN :is_settled THEN :ends ELSE settled_until END
     WHERE namespace = :namespace
    """
)
_ENDED = text(sql.load("load_rollups.sql", "ended"))
_MINUTES = text(
    """
    SELECT kind, name, date_trunc('hour', at, 'UTC') AS at, completed, failed, cancelled, skipped,
           waiting, running, depth
      FROM pgbeat.rollups
     WHERE namespace = :namespace AND step = 60 AND at >= :starts AND at < :ends
    """
)
_DEPTHS = text(
    """
    SELECT date_trunc('minute', clock_timestamp()) AS at, task, lane, queue, count(*) AS number
      FROM pgbeat.unfinished_jobs
     WHERE namespace = :namespace AND state = 'pending'
     GROUP BY 1, 2, 3, 4
    """
)
_WRITE = text(sql.load("load_rollups.sql", "write"))
_WRITE_DEPTHS = text(sql.load("load_rollups.sql", "write_depths"))
_PRUNE = text(sql.load("load_rollups.sql", "prune"))


class Rollup(NamedTuple):
    """What ended in a minute or an hour, and how many jobs waited; histograms as stored."""

    kind: str
    name: str
    at: datetime
    completed: int
    failed: int
    cancelled: int
    skipped: int
    waiting: list[list[int]]
    running: list[list[int]]
    depth: int


class Sums:
    """Adds up the load of one thing in one span."""

    __slots__ = ("depth", "ends", "running", "waiting")

    def __init__(self) -> None:
        self.ends = {"completed": 0, "failed": 0, "cancelled": 0, "skipped": 0}
        self.waiting, self.running = Histogram(), Histogram()
        self.depth = 0

    def add(self, rollup: Any) -> None:
        """Adds a rollup; the depth is the greatest."""
        for state in self.ends:
            self.ends[state] += getattr(rollup, state)
        self.waiting.merge(rollup.waiting)
        self.running.merge(rollup.running)
        self.depth = max(self.depth, rollup.depth)

    def as_rollup(self, kind: str, name: str, at: datetime) -> Rollup:
        """Returns the sums as a row."""
        return Rollup(
            kind,
            name,
            at,
            **self.ends,
            waiting=self.waiting.pairs,
            running=self.running.pairs,
            depth=self.depth,
        )


def advance(connection: Connection, namespace: str, route: Route, span: timedelta) -> bool:
    """Counts the next span that is over, of whole minutes; returns whether there may be more.

    It is one transaction; the connection is in autocommit mode. Does nothing while another session
    counts.
    """
    connection.execute(_BEGIN, {"namespace": namespace, "before": _FROM})
    with connections.transaction(connection):
        until = connection.execute(
            _TAKE, {"namespace": namespace, "fresh": FRESH, "settled": SETTLED}
        ).one_or_none()
        if until is None:
            return False
        is_settled = until.settled_until < until.settled_to
        if is_settled:
            starts, last = until.settled_until, until.settled_to
        else:
            starts, last = until.counted_until, until.counted_to
        if starts >= last:
            return False
        ends = min(starts + span, last)
        counted = _count(connection, namespace, route, starts, ends)
        _write(connection, namespace, MINUTE, counted)
        if any(sums.ends["failed"] for sums in counted.values()):
            error_rollups.count(connection, namespace, starts, ends)
        if is_settled:
            _add_hours(connection, namespace, starts, ends)
        connection.execute(_MOVE, {"namespace": namespace, "ends": ends, "is_settled": is_settled})
    return True


def _count(
    connection: Connection, namespace: str, route: Route, starts: datetime, ends: datetime
) -> dict[Key, Sums]:
    """Returns the ends from `starts` until `ends`, by minute."""
    values = {"namespace": namespace, "starts": starts, "ends": ends, "bounds": list(BOUNDS)}
    counted: dict[Key, Sums] = {}
    for row in connection.execute(_ENDED, values):
        for kind, name in _names(row, route):
            sums = counted.setdefault((kind, name, row.at), Sums())
            sums.ends[row.state] += row.number
            if row.waiting is not None:
                sums.waiting.add(row.waiting, row.number)
                sums.running.add(row.running, row.number)
    return counted


def _names(row: Any, route: Route) -> Iterable[tuple[str, str]]:
    """Yields the kinds and names that a job counts for."""
    yield "all", ""
    yield "task", row.task
    if row.lane is not None:
        yield "lane", row.lane
    if (queue := row.queue or route(row.task)) is not None:
        yield "queue", queue


def _add_hours(connection: Connection, namespace: str, starts: datetime, ends: datetime) -> None:
    """Adds up the hours that end after `starts` and by `ends`."""
    hours = floor(starts, HOUR), floor(ends, HOUR)
    if hours[0] == hours[1]:
        return
    counted: dict[Key, Sums] = {}
    values = {"namespace": namespace, "starts": hours[0], "ends": hours[1]}
    for row in connection.execute(_MINUTES, values):
        counted.setdefault((row.kind, row.name, row.at), Sums()).add(row)
    _write(connection, namespace, HOUR, counted)
    error_rollups.add_up(connection, namespace, "hour", *hours)
    days = floor(starts, _DAY), floor(ends, _DAY)
    if days[0] != days[1]:
        error_rollups.add_up(connection, namespace, "day", *days)


def floor(moment: datetime, step: timedelta) -> datetime:
    """Returns the beginning of the step that a time is in, counted from 1970 in UTC."""
    seconds = int(step.total_seconds())
    return datetime.fromtimestamp(int(moment.timestamp()) // seconds * seconds, UTC)


def _write(
    connection: Connection,
    namespace: str,
    step: timedelta,
    counted: dict[Key, Sums],
    statement: Any = _WRITE,
) -> None:
    if counted:
        rows = recordset(sums.as_rollup(*key) for key, sums in _most_frequent(counted))
        values = {"namespace": namespace, "step": int(step.total_seconds()), "batch": rows}
        connection.execute(statement, values)


def _most_frequent(counted: dict[Key, Sums]) -> list[tuple[Key, Sums]]:
    """Returns the sums of up to `NAMES` names of each kind and time, those with the most jobs."""
    groups: dict[tuple[str, datetime], list[tuple[Key, Sums]]] = {}
    for key, sums in counted.items():
        groups.setdefault((key[0], key[2]), []).append((key, sums))
    return [
        item
        for group in groups.values()
        for item in nlargest(NAMES, group, lambda item: sum(item[1].ends.values()) + item[1].depth)
    ]


def sample_depth(connection: Connection, namespace: str, route: Route) -> None:
    """Notes how many jobs wait now: those that may run and have not begun."""
    depths: dict[Key, Sums] = {}
    for row in connection.execute(_DEPTHS, {"namespace": namespace}):
        for kind, name in _names(row, route):
            depths.setdefault((kind, name, row.at), Sums()).depth += row.number
    _write(connection, namespace, MINUTE, depths, _WRITE_DEPTHS)


def prune(connection: Connection, namespace: str) -> None:
    """Deletes minutes and hours that are old; minutes not before their hour is added up."""
    values = {"namespace": namespace, "minutes": MINUTES_KEPT, "hours": HOURS_KEPT}
    values |= {"error_hours": error_rollups.HOURS_KEPT, "untracked_hours": _UNTRACKED_KEPT}
    connection.execute(_PRUNE, values)
