"""Keeps counters that outlive the rows that they count, so that they never go down.

Ticks and executions are pruned, but each is a log: a scrape locks the log's mark, adds up what is
new since then, up to a limit, and moves the mark. No tick and no worker waits for a counter.
"""

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import Connection, text

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

_BEGIN = text(
    """
    INSERT INTO pgbeat.counters (namespace, metric, label, kind, value)
    SELECT '', 'mark', 'ticks', '', coalesce(max(id), 0) - :most FROM pgbeat.ticks
     UNION ALL
    SELECT '', 'mark', 'executions', '', coalesce(extract(epoch FROM (
               SELECT recorded_at FROM pgbeat.ended_executions WHERE recorded_at IS NOT NULL
                ORDER BY recorded_at DESC OFFSET :most LIMIT 1)) * 1000000, 0)
     UNION ALL
    SELECT '', 'mark', 'late', '', 0
    ON CONFLICT DO NOTHING
    """
)
_STARTED = text(
    "SELECT EXISTS (SELECT FROM pgbeat.counters WHERE namespace = '' AND metric = 'mark')"
)
# The first names keep sums of their own for good: a sum that moved would be a jump.
_ADD = """
    known AS (
        SELECT DISTINCT namespace, label FROM pgbeat.counters WHERE metric = :metric),
    admitted AS (
        SELECT namespace, label FROM known
         UNION ALL
        SELECT namespace, label FROM (
               SELECT n.namespace, n.label,
                      row_number() OVER (PARTITION BY n.namespace ORDER BY n.label)
                      + (SELECT count(*) FROM known k
                          WHERE k.namespace = n.namespace AND k.label <> :other) AS number
                 FROM (SELECT DISTINCT namespace, label FROM summed WHERE metric = :metric
                       EXCEPT SELECT namespace, label FROM known) AS n) AS numbered
         WHERE number <= :named),
    added AS (
        INSERT INTO pgbeat.counters AS t (namespace, metric, label, kind, value)
        SELECT s.namespace, s.metric,
               CASE WHEN s.label = '' OR a.label IS NOT NULL THEN s.label ELSE :other END,
               s.kind, sum(s.value)
          FROM summed s LEFT JOIN admitted a ON a.namespace = s.namespace AND a.label = s.label
         GROUP BY 1, 2, 3, 4
        ON CONFLICT (namespace, metric, label, kind)
        DO UPDATE SET value = t.value + excluded.value),
    moved AS (
        UPDATE pgbeat.counters SET value = last.value
          FROM (SELECT max(place) AS value FROM fresh) AS last
         WHERE namespace = '' AND metric = 'mark' AND label = :metric AND kind = ''
           AND last.value IS NOT NULL)
    SELECT count(*) FROM fresh
"""
_MARK = """
    WITH mark AS MATERIALIZED (
        SELECT value FROM pgbeat.counters
         WHERE namespace = '' AND metric = 'mark' AND label = :metric AND kind = ''
           FOR UPDATE SKIP LOCKED),
"""
_TICKS = text(
    f"""
    {_MARK}
    fresh AS MATERIALIZED (
        SELECT id AS place, schedule_id, schedule, outcome,
               CASE WHEN trigger = 'timetable'
                    THEN greatest(extract(epoch FROM decided_at - due_at), 0)::float8 END AS late
          FROM pgbeat.ticks
         WHERE id > (SELECT value::bigint FROM mark)
           AND decided_at < now() - make_interval(secs => :lag)
         ORDER BY id LIMIT :most),
    owned AS MATERIALIZED (
        SELECT s.namespace, f.* FROM fresh f JOIN pgbeat.schedules s ON s.id = f.schedule_id),
    summed AS MATERIALIZED (
        SELECT namespace, 'ticks' AS metric, schedule AS label, outcome AS kind,
               count(*)::float8 AS value
          FROM owned GROUP BY 1, 3, 4
         UNION ALL
        SELECT namespace, 'lateness', '', width_bucket(late, CAST(:bounds AS float8[]))::text,
               count(*)
          FROM owned WHERE late IS NOT NULL GROUP BY 1, 4
         UNION ALL
        SELECT namespace, 'lateness', '', :sum, sum(late)
          FROM owned WHERE late IS NOT NULL GROUP BY 1),
    {_ADD}
    """  # noqa: S608
)
# All that were recorded at one moment belong together. Jobs that ended a week before the first of
# them are not looked up: each partition of them costs as much as the one that has the job.
_EXECUTIONS = text(
    f"""
    {_MARK}
    since AS MATERIALIZED (
        SELECT to_timestamp(value / 1000000) AS at FROM mark),
    fresh AS MATERIALIZED (
        SELECT (extract(epoch FROM recorded_at) * 1000000)::float8 AS place, job_id,
               CASE WHEN lost THEN 'lost' ELSE state END AS state,
               coalesce(duration_ms / 1000, extract(epoch FROM finished_at - started_at)) AS took
          FROM pgbeat.ended_executions
         WHERE recorded_at > (SELECT at FROM since)
           AND recorded_at < now() - make_interval(secs => :lag)
           AND recorded_at <= coalesce((
               SELECT recorded_at FROM pgbeat.ended_executions
                WHERE recorded_at > (SELECT at FROM since)
                ORDER BY recorded_at OFFSET :most LIMIT 1), 'infinity')),
    owned AS MATERIALIZED (
        SELECT j.namespace, j.task, j.job_source, f.state, greatest(f.took, 0)::float8 AS took
          FROM fresh f CROSS JOIN LATERAL (
               SELECT namespace, task, job_source FROM pgbeat.unfinished_jobs WHERE id = f.job_id
                UNION ALL
               SELECT namespace, task, job_source FROM pgbeat.ended_jobs
                WHERE id = f.job_id AND finished_at > (SELECT at FROM since) - interval '7 days'
               OFFSET 0) AS j),
    summed AS MATERIALIZED (
        SELECT namespace, 'executions' AS metric, task AS label, state || :by || job_source AS kind,
               count(*)::float8 AS value
          FROM owned GROUP BY 1, 3, 4
         UNION ALL
        SELECT namespace, 'duration', task, width_bucket(took, CAST(:bounds AS float8[]))::text,
               count(*)
          FROM owned WHERE state IN ('completed', 'failed') GROUP BY 1, 3, 4
         UNION ALL
        SELECT namespace, 'duration', task, :sum, sum(took)
          FROM owned WHERE state IN ('completed', 'failed') GROUP BY 1, 3),
    {_ADD}
    """  # noqa: S608
)
# A retry is late with the job that it retries, which counts.
_LATE = text(
    f"""
    {_MARK}
    since AS MATERIALIZED (
        SELECT to_timestamp(value / 1000000) AS at FROM mark),
    fresh AS MATERIALIZED (
        SELECT namespace, (extract(epoch FROM late_at) * 1000000)::float8 AS place,
               CASE WHEN late_at >= created_at THEN missed_deadlines[1] END AS deadline
          FROM pgbeat.jobs
         WHERE late_at > (SELECT at FROM since)
           AND late_at < now() - make_interval(secs => :lag)
           AND late_at <= coalesce((
               SELECT late_at FROM pgbeat.jobs WHERE late_at > (SELECT at FROM since)
                ORDER BY late_at OFFSET :most LIMIT 1), 'infinity')),
    summed AS MATERIALIZED (
        SELECT namespace, 'late' AS metric, '' AS label, deadline AS kind, count(*)::float8 AS value
          FROM fresh WHERE deadline IS NOT NULL GROUP BY 1, 4),
    {_ADD}
    """  # noqa: S608
)
# The names of schedules that are gone are free for others.
_FORGET = text(
    """
    DELETE FROM pgbeat.counters t
     WHERE t.metric = 'ticks' AND t.label <> :other AND NOT EXISTS (
           SELECT FROM pgbeat.schedules s WHERE s.namespace = t.namespace AND s.name = t.label)
    """
)


def count_up(connection: Connection, *, most: int = MOST) -> bool:
    """Adds up what is new; returns false if there is more, for the next time.

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
                "metric": metric, "other": OTHER, "named": NAMED, "lag": LAG, "most": most,
                **({"bounds": [float(bound) for bound in bounds], "sum": SUM} if bounds else {}),
                **({"by": BY} if metric == "executions" else {}),
            },
        ).scalar_one()
        for metric, statement, bounds in (
            ("ticks", _TICKS, LATENESS),
            ("executions", _EXECUTIONS, DURATION),
            ("late", _LATE, ()),
        )
    ]  # fmt: skip
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
    """Counts what a beat measures of itself, and writes it now and then."""

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
            add(connection, self._namespace, _sums(self._counts))
            self._counts.clear()


def _sums(counts: Mapping[tuple[str, str], float]) -> list[CounterValue]:
    return [CounterValue(metric, "", kind, value) for (metric, kind), value in counts.items()]
