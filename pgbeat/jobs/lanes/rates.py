"""Reads what is left of a lane's rate, and when it admits more."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, text

from pgbeat.database import connections
from pgbeat.jobs.lanes.limiter import RateQuota
from pgbeat.jobs.lanes.model import Lane

#: The keys by which a rate counts the job.
KEYS = """
    CASE WHEN CAST(:key AS text) IS NULL THEN ARRAY[NULL]
         WHEN :key = 'task' THEN ARRAY[j.task]
         WHEN :key = 'created_by' THEN ARRAY[j.created_by]
         WHEN :key = 'tag' THEN CASE WHEN j.tags = '{}' THEN ARRAY[NULL] ELSE j.tags END
         ELSE ARRAY[j.kwargs ->> substr(:key, length('kwargs.') + 1)] END
"""

# Since when a rate counts.
_SINCE = "statement_timestamp() - CAST(:period AS interval)"
_OF_LANE = f"""j.namespace = :namespace AND j.lane = :lane
           AND (j.finished_at IS NULL OR j.finished_at > {_SINCE})"""
#: The slots `j` that the lane has given within the period. A job that snoozes gets one each time,
#: and its row knows only the last: the others count from when it began.
_GIVEN = f"""
    FROM (SELECT j.dispatched_at, j.id, j.task, j.created_by, j.tags, j.kwargs, j.resources
            FROM pgbeat.jobs j WHERE {_OF_LANE} AND j.dispatched_at > {_SINCE}
          UNION ALL
          SELECT e.started_at, j.id, j.task, j.created_by, j.tags, j.kwargs, j.resources
            FROM pgbeat.ended_executions e JOIN pgbeat.jobs j ON j.id = e.job_id
           WHERE e.state = 'snoozed' AND e.started_at > {_SINCE} AND e.finished_at > {_SINCE}
             AND {_OF_LANE}) AS j
"""  # noqa: S608
_BY_KEY = f"{_GIVEN} CROSS JOIN LATERAL unnest({KEYS}) AS k (key)"
_SPENT = text(
    f"""
    SELECT NULL, count(*) FROM (
        SELECT {_GIVEN} ORDER BY j.dispatched_at DESC LIMIT :rate) AS spent
    """  # noqa: S608
)
_SPENT_BY_KEY = text(f"SELECT k.key, count(*) {_BY_KEY} GROUP BY k.key")


_COST = "coalesce(CAST(j.resources ->> :unit AS numeric), 1)"
_SPENT_BY_COST = text(f"SELECT k.key, sum({_COST}) {_BY_KEY} GROUP BY k.key")


def quota(connection: Connection, lane: Lane) -> RateQuota | None:
    """Returns what is left of the lane's rate; `None` if it has no rate."""
    if lane.rate_limit is None:
        return None
    statement = _SPENT if lane.rate_key is None else _SPENT_BY_KEY
    if lane.rate_unit is not None:
        statement = _SPENT_BY_COST
    spent = {row[0]: float(row[1]) for row in connection.execute(statement, _of_rate(lane))}
    has_keys = lane.rate_key is not None
    return RateQuota(lane.rate_limit, spent, str(lane.rate), has_keys=has_keys, unit=lane.rate_unit)


# When the period no longer includes the job that was dispatched so long ago, another may go.
_AGAIN = text(
    f"""
    SELECT extract(epoch FROM j.dispatched_at + CAST(:period AS interval) - clock_timestamp())
      {_GIVEN} ORDER BY j.dispatched_at DESC OFFSET :rate - 1 LIMIT 1
    """  # noqa: S608
)
_AGAIN_BY_KEY = text(
    f"""
    SELECT extract(epoch FROM min(d.nth) + CAST(:period AS interval) - clock_timestamp())
      FROM (SELECT (array_agg(j.dispatched_at ORDER BY j.dispatched_at DESC))[:rate] AS nth
            {_BY_KEY} WHERE coalesce(k.key, '') = ANY (CAST(:keys AS text[]))
             GROUP BY k.key) AS d
    """  # noqa: S608
)


# When so much of a key's cost has left the period that the denied job fits: its newest jobs, summed
# up, take the rest until the one that must leave.
_AGAIN_BY_COST = text(
    f"""
    SELECT extract(epoch FROM min(f.leaves) + CAST(:period AS interval) - clock_timestamp()) FROM (
        SELECT max(t.dispatched_at) AS leaves FROM (
            SELECT coalesce(k.key, '') AS key, j.dispatched_at,
                   sum({_COST}) OVER (
                       PARTITION BY k.key ORDER BY j.dispatched_at DESC, j.id) AS total
            {_BY_KEY}) AS t
               JOIN unnest(CAST(:keys AS text[]), CAST(:costs AS numeric[])) AS d (key, cost)
               USING (key)
         WHERE t.total > greatest(CAST(:rate AS integer) - d.cost, 0)
         GROUP BY key) AS f
    """  # noqa: S608
)


def retry_in(connection: Connection, lane: Lane, denied: Mapping[str | None, float]) -> float:
    """Returns the seconds until the rate admits a job with one of these keys, of these costs."""
    seconds = _admits_in(connection, lane, denied)
    if lane.temporary_until is None:
        return seconds
    left = (lane.temporary_until - connections.clock(connection)).total_seconds()
    return max(0.0, min(seconds, left))


def _admits_in(connection: Connection, lane: Lane, denied: Mapping[str | None, float]) -> float:
    values = _of_rate(lane)
    if lane.rate_unit is not None:
        values["keys"] = [key or "" for key in denied]
        values["costs"] = list(denied.values())
        seconds = connection.execute(_AGAIN_BY_COST, values).scalar_one_or_none()
    elif lane.rate_key is None:
        seconds = connection.execute(_AGAIN, values).scalar_one_or_none()
    else:
        values["keys"] = [key or "" for key in denied]
        seconds = connection.execute(_AGAIN_BY_KEY, values).scalar_one_or_none()
    return max(0.0, float(seconds or 0))


def _of_rate(lane: Lane) -> dict[str, Any]:
    values = {
        "namespace": lane.namespace, "lane": lane.name, "period": lane.rate_period,
        "rate": lane.rate_limit,
    }  # fmt: skip
    if lane.rate_unit is not None:
        return values | {"key": lane.rate_key, "unit": lane.rate_unit}
    return values if lane.rate_key is None else values | {"key": lane.rate_key}


def at_present(connection: Connection, lane: Lane) -> Lane:
    """Returns the lane with the rate that holds now, by the database's clock."""
    return lane if lane.temporary_until is None else lane.at(connections.clock(connection))
