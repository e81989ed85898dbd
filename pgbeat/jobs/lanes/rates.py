"""Reads what is left of a lane's rate, and when it admits more."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, text

from pgbeat.database import connections, sql
from pgbeat.jobs.lanes.limiter import RateQuota
from pgbeat.jobs.lanes.model import Lane

#: The keys by which a rate counts the job.
KEYS = sql.load("rates.sql", "keys")

_SPENT = text(sql.load("rates.sql", "spent"))
_SPENT_BY_KEY = text(sql.load("rates.sql", "spent_by_key"))


_SPENT_BY_COST = text(sql.load("rates.sql", "spent_by_cost"))


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


_AGAIN = text(sql.load("rates.sql", "again"))
_AGAIN_BY_KEY = text(sql.load("rates.sql", "again_by_key"))


_AGAIN_BY_COST = text(sql.load("rates.sql", "again_by_cost"))


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
        "namespace": lane.namespace,
        "lane": lane.name,
        "period": lane.rate_period,
        "rate": lane.rate_limit,
    }
    if lane.rate_unit is not None:
        return values | {"key": lane.rate_key, "unit": lane.rate_unit}
    return values if lane.rate_key is None else values | {"key": lane.rate_key}


def at_present(connection: Connection, lane: Lane) -> Lane:
    """Returns the lane with the rate that holds now, by the database's clock."""
    return lane if lane.temporary_until is None else lane.at(connections.clock(connection))
