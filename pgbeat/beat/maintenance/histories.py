"""Keeps histories in partitions: adds periods ahead, and drops those that are old.

Dropping a period takes as long for a hundred million rows as for none. What retention keeps of it
(each schedule's newest) is copied to a partition that takes its place, where the pruner deletes it
row by row later. Such partitions become one as long as they are small.

Every namespace of a database has its rows in the same partitions. So each leading beat notes its
retention, and a period is dropped once it is old for all of them.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from itertools import pairwise
from typing import NamedTuple

from sqlalchemy import Connection, TextClause, text
from sqlalchemy.exc import DBAPIError

from pgbeat.config import Settings
from pgbeat.database import connections, sql
from pgbeat.database.locks import lock_waits
from pgbeat.monitoring.checks.periods import longest_retention
from pgbeat.schedules import ticks

#: The histories, in the order in which their periods are dropped: jobs before their executions.
HISTORIES = ("ended_jobs", "ended_executions", "ticks")
#: The partition for future rows begins so far ahead.
_AHEAD = timedelta(days=3)
#: Periods that cover the retention, about.
_PERIODS = 31
#: Tries of one step in a round. Each waits for locks for a moment only.
_TRIES = 20
#: Rows of partitions that are kept as one: so many are copied each time.
MERGED = 50_000


def step(longest: timedelta | None) -> timedelta:
    """Returns the length of a period, by the longest retention: a day, a week or thirty days."""
    if longest is None:
        return timedelta(days=30)
    days = longest / _PERIODS / timedelta(days=1)
    return timedelta(days=1 if days <= 1 else 7 if days <= 7 else 30)


_NOTE = text(
    """
    UPDATE pgbeat.namespaces SET retention_days = :days, retention_count = :count
     WHERE name = :namespace AND (retention_days, retention_count)
           IS DISTINCT FROM (CAST(:days AS float8), CAST(:count AS integer))
    """
)


def note(connection: Connection, settings: Settings) -> None:
    """Notes the retention of this namespace, which others in the database must heed."""
    values = {"days": settings.retention_days, "count": settings.retention_count}
    connection.execute(_NOTE, {**values, "namespace": settings.namespace})


def drops_whole_periods(connection: Connection, settings: Settings) -> bool:
    """Returns whether this namespace's rows go with their periods, since none keeps them longer."""
    longest = longest_retention(connection)
    return longest is not None and timedelta(days=settings.retention_days) >= longest


_KEPT_UNTIL = text(
    "SELECT history, max(ends_at) AS ends FROM pgbeat.partitions WHERE is_kept GROUP BY history"
)


def kept_until(connection: Connection) -> dict[str, datetime]:
    """Returns the end of the periods that were dropped, of each history."""
    return {row.history: row.ends for row in connection.execute(_KEPT_UNTIL)}


_TO_COME = text(
    "SELECT starts_at FROM pgbeat.partitions WHERE history = :history AND ends_at IS NULL"
)
_ADD = text("SELECT pgbeat.add_partition(:history, :ends)")


def add_ahead(connection: Connection) -> list[str]:
    """Adds the periods that begin soon, each in a transaction; returns the new partitions.

    After a gap without new periods, the first covers the gap, so that no row has to move.
    """
    length, added = step(longest_retention(connection)), []
    for history in HISTORIES:
        now = connections.now(connection)
        while (
            starts := connection.execute(_TO_COME, {"history": history}).scalar_one()
        ) < now + _AHEAD:
            ends = starts + length * (max(now - starts, timedelta(0)) // length + 1)
            added.append(_briefly(connection, _ADD, {"history": history, "ends": ends}))
    return added


class Partition(NamedTuple):
    """A period of a history."""

    history: str
    name: str
    starts_at: datetime
    ends_at: datetime


_OLDEST = text(
    """
    SELECT history, name, starts_at, ends_at FROM pgbeat.partitions
     WHERE history = :history AND NOT is_kept AND ends_at <= :before
     ORDER BY starts_at LIMIT 1
    """
)
#: The column of each history that says in which period a row is.
_MOMENTS = {"ended_jobs": "finished_at", "ended_executions": "finished_at", "ticks": "due_at"}
#: Each history's statements that find the rows to keep, their table, and their order.
_KEPT = {
    "ended_jobs": (("newest", "of_groups"), "jobs", "created_at"),
    "ended_executions": (("of_jobs",), "executions", ""),
    "ticks": (("newest", "late"), "ticks", "due_at"),
}
_KEEP = text(
    "SELECT pgbeat.keep_partition(CAST(:merged AS text[]), :period, CAST(:kept AS text[]))"
)
_DROP_GONE = text("SELECT pgbeat.drop_gone(:history)")
_ALONE = text(f"SELECT pg_advisory_xact_lock({ticks.OF_LATE})")
# From the oldest on.
_ARE_KEPT = text(
    "SELECT name, coalesce(starts_at, '-infinity')::text AS starts, ends_at AS ends "
    "FROM pgbeat.partitions WHERE history = :history AND is_kept ORDER BY ends_at"
)


def drop_oldest(connection: Connection) -> Partition | None:
    """Drops the oldest period that is too old for all namespaces. Returns it, or `None`.

    The rows to keep are looked up before any table is locked. Executions wait for their jobs.
    """
    longest = longest_retention(connection)
    if longest is None:
        return None
    before = connections.now(connection) - longest
    for history in HISTORIES:
        row = connection.execute(_OLDEST, {"history": history, "before": before}).one_or_none()
        if row is None:
            continue
        oldest = Partition(*row)
        with _keeping(connection, history):
            ids = _kept(connection, oldest, before)
            sizes = _sizes(connection, history)
            merged = [name for name, size in sizes[-1:] if size + len(ids) <= MERGED]
            connection.execute(_KEEP, {"merged": merged, "period": oldest.name, "kept": ids})
        _merge(connection, history)
        return oldest
    return None


def _kept(connection: Connection, oldest: Partition, before: datetime) -> list[str]:
    """Returns the ids of the rows of a period that are kept."""
    queries, table, moment = _KEPT[oldest.history]
    parts = {"history": oldest.history, "period_moment": _MOMENTS[oldest.history]}
    parts |= {"table": table, "moment": moment}
    values = {**oldest._asdict(), "before": before}
    statements = [text(sql.load("histories.sql", query, **parts)) for query in queries]
    return list({str(key) for each in statements for key in connection.scalars(each, values)})


def _sizes(connection: Connection, history: str) -> list[tuple[str, int]]:
    """Returns the partitions of kept rows, oldest first, and the number of rows in each."""
    size = text(sql.load("histories.sql", "size", history=history, moment=_MOMENTS[history]))
    return [
        (row.name, int(connection.scalar(size, {**row._mapping, "most": MERGED + 1}) or 0))
        for row in connection.execute(_ARE_KEPT, {"history": history}).all()
    ]


def _merge(connection: Connection, history: str) -> None:
    """Merges two partitions of kept rows if the pruner has left little of them."""
    for (older, size), (newer, other) in pairwise(_sizes(connection, history)):
        if size + other <= MERGED:
            with _keeping(connection, history):
                values = {"merged": [older, newer], "period": None, "kept": []}
                connection.execute(_KEEP, values)
            return


@contextmanager
def _keeping(connection: Connection, history: str) -> Iterator[None]:
    """Opens a transaction, in which partitions are replaced by one that holds the rows to keep.

    The database copies, then tries several times to lock the history, each time for a moment.
    Raises the error of the lock if it can't. Ticks of old times, which would be dropped if they
    came after that, wait for it.
    """
    with connections.transaction(connection):
        lock_waits.briefly(connection)
        connection.execute(_ALONE)
        yield
    is_left = True
    while is_left:
        is_left = connection.scalar(_DROP_GONE, {"history": history})


def _briefly(connection: Connection, statement: TextClause, values: dict[str, object]) -> str:
    """Runs a statement that needs a table for itself for a moment; waits for none longer than that.

    Raises the error of the lock if it can't have the table in any of its tries.
    """
    for is_last in (*(False,) * (_TRIES - 1), True):
        try:
            with connections.transaction(connection):
                lock_waits.briefly(connection)
                return str(connection.execute(statement, values).scalar_one())
        except DBAPIError as error:
            if is_last or not lock_waits.is_lock_timeout(error):
                raise
        time.sleep(0.25)
    raise AssertionError("unreachable")


def keep(
    connection: Connection, settings: Settings, tell: Callable[[str], object] = lambda told: None
) -> None:
    """Adds the periods that come soon, and drops all that are old.

    `connection` is in autocommit mode. `tell` is called with a sentence about each dropped period.
    """
    note(connection, settings)
    add_ahead(connection)
    while (dropped := drop_oldest(connection)) is not None:
        tell(f"Dropped {dropped.name}: what it kept is older than the retention")
