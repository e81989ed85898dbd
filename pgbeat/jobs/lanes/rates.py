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

_WITHIN = """
     WHERE j.namespace = :namespace AND j.lane = :lane
       AND j.dispatched_at > statement_timestamp() - CAST(:period AS interval)
       AND (j.finished_at IS NULL
            OR j.finished_at > statement_timestamp() - CAST(:period AS interval))
"""
_SPENT = text(
    f"""
    SELECT NULL, count(*) FROM (
        SELECT FROM pgbeat.jobs j {_WITHIN} ORDER BY j.dispatched_at DESC LIMIT :rate) AS spent
    """  # noqa: S608
)
_SPENT_BY_KEY = text(
    f"""
    SELECT k.key, count(*) FROM pgbeat.jobs j CROSS JOIN LATERAL unnest({KEYS}) AS k (key)
    {_WITHIN} GROUP BY k.key
    """  # noqa: S608
)


_COST = "coalesce(CAST(j.resources ->> :unit AS numeric), 1)"
_SPENT_BY_COST = text(
    f"""
    SELECT k.key, sum({_COST}) FROM pgbeat.jobs j CROSS JOIN LATERAL unnest({KEYS}) AS k (key)
    {_WITHIN} GROUP BY k.key
    """  # noqa: S608
)


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
      FROM pgbeat.jobs j {_WITHIN} ORDER BY j.dispatched_at DESC OFFSET :rate - 1 LIMIT 1
    """  # noqa: S608
)
_AGAIN_BY_KEY = text(
    f"""
    SELECT extract(epoch FROM min(d.nth) + CAST(:period AS interval) - clock_timestamp())
      FROM (SELECT (array_agg(j.dispatched_at ORDER BY j.dispatched_at DESC))[:rate] AS nth
              FROM pgbeat.jobs j CROSS JOIN LATERAL unnest({KEYS}) AS k (key)
            {_WITHIN} AND coalesce(k.key, '') = ANY (CAST(:keys AS text[]))
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
              FROM pgbeat.jobs j CROSS JOIN LATERAL unnest({KEYS}) AS k (key)
            {_WITHIN}) AS t
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
