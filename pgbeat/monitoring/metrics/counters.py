"""Keeps counters that outlive the rows that they count, so that they never go down.

Ticks and executions are pruned, but each is a log: a scrape locks the log's mark, adds up what is
new since then, up to a limit, and moves the mark. No tick and no worker waits for a counter.
"""

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sqlalchemy import Connection, text

from pgbeat.database import sql
from pgbeat.database.connections import recordset
from pgbeat.database.privileges import may_change

#: Upper bounds of the histograms' buckets, in seconds; above the last is one more.
LATENESS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 3600)
DURATION = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 3600, 14400)
TICK = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
#: The `kind` of a histogram's sum; that of a bucket is its number.
SUM = "sum"
#: Between the state and the job's source, in the `kind` of executions. (Programs of the version
#: before count by state alone, and no unique index can hold both.)
BY = "/"
#: Schedules, and tasks, of a namespace that have sums of their own; the rest share `OTHER`.
NAMED = 100
OTHER = "other"
#: Rows added up at a time, and the seconds for which one is left alone: a row with a lower number
#: may not be committed yet.
MOST, LAG = 20_000, 5.0

_BEGIN = text(sql.load("counters.sql", "begin"))
_STARTED = text(
    "SELECT EXISTS (SELECT FROM pgbeat.counters WHERE namespace = '' AND metric = 'mark')"
)
_TICKS = text(sql.load("counters.sql", "ticks"))
_EXECUTIONS = text(sql.load("counters.sql", "executions"))
_LATE = text(sql.load("counters.sql", "late"))
# The names of schedules that are gone are free for others.
_FORGET = text(
    """
    DELETE FROM pgbeat.counters t
     WHERE t.metric = 'ticks' AND t.label <> :other AND NOT EXISTS (
           SELECT FROM pgbeat.schedules s WHERE s.namespace = t.namespace AND s.name = t.label)
    """
)


def count_up(connection: Connection, *, most: int = MOST) -> bool:
    """Adds up new rows; returns false if there are more, for the next time.

    Of each log it adds at most `most` rows, none younger than `LAG`. It does nothing on a read-only
    server, for a role that may only read, or while another session adds up. The first time begins
    with the newest rows.
    """
    if not may_change(connection, "counters"):
        return True
    if not connection.scalar(_STARTED):
        connection.execute(_BEGIN, {"most": most})
    looked = [
        connection.execute(
            statement,
            {
                "metric": metric,
                "other": OTHER,
                "named": NAMED,
                "lag": LAG,
                "most": most,
                **({"bounds": [float(bound) for bound in bounds], "sum": SUM} if bounds else {}),
                **({"by": BY} if metric == "executions" else {}),
            },
        ).scalar_one()
        for metric, statement, bounds in (
            ("ticks", _TICKS, LATENESS),
            ("executions", _EXECUTIONS, DURATION),
            ("late", _LATE, ()),
        )
    ]
    connection.execute(_FORGET, {"other": OTHER})
    return bool(max(looked) < most)


class CounterValue(NamedTuple):
    """One counter of a namespace."""

    metric: str
    #: The schedule or task that it counts for, if any.
    label: str
    #: An outcome, a state, the number of a bucket or `SUM`.
    kind: str
    value: float


_READ = text(
    "SELECT metric, label, kind, value FROM pgbeat.counters "
    "WHERE namespace = :namespace ORDER BY 1, 2, 3"
)


def read(connection: Connection, namespace: str) -> list[CounterValue]:
    """Returns all counters of a namespace."""
    return [CounterValue(*row) for row in connection.execute(_READ, {"namespace": namespace})]


_PLUS = text(
    """
    INSERT INTO pgbeat.counters AS t (namespace, metric, label, kind, value)
    SELECT :namespace, d.metric, coalesce(d.label, ''), d.kind, d.value
      FROM json_to_recordset(CAST(:batch AS json)) AS d (
               metric text, label text, kind text, value float8)
     ORDER BY 1, 2, 3, 4
    ON CONFLICT (namespace, metric, label, kind) DO UPDATE SET value = t.value + excluded.value
    """
)


def add(connection: Connection, namespace: str, more: Iterable[CounterValue]) -> None:
    """Adds to counters, each named once."""
    connection.execute(_PLUS, {"namespace": namespace, "batch": recordset(more)})


def bucket(seconds: float, bounds: Sequence[float]) -> int:
    """Returns the number of the bucket, as `width_bucket` does."""
    return sum(bound <= seconds for bound in bounds)


class BeatCounters:
    """Counts a beat's passes and take-overs, and writes the counts regularly."""

    def __init__(self, namespace: str, interval: float) -> None:
        """`interval` is how many seconds pass between two writes, at least."""
        self._namespace, self._interval = namespace, interval
        self._counts: Counter[tuple[str, str]] = Counter()
        self._write_at = 0.0

    def ticked(self, seconds: float) -> None:
        """Counts a pass that decided something, and how long it took."""
        self._counts["tick", str(bucket(seconds, TICK))] += 1
        self._counts["tick", SUM] += seconds  # type: ignore[assignment]

    def took_over(self) -> None:
        """Counts that this beat became the leader."""
        self._counts["take_overs", ""] += 1
        self._write_at = 0.0

    def write(self, connection: Connection) -> None:
        """Writes the counts, if it is time; the connection must be in autocommit mode."""
        now = time.monotonic()
        if self._counts and now >= self._write_at:
            self._write_at = now + self._interval
            counts = self._counts.items()
            values = (CounterValue(metric, "", kind, value) for (metric, kind), value in counts)
            add(connection, self._namespace, values)
            self._counts.clear()
