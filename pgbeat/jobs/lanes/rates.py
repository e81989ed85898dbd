"""Reads what is left of a lane's rate, and when it admits more."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, text

from pgbeat.database import connections, sql
from pgbeat.jobs.lanes.limiter import RateQuota
from pgbeat.jobs.lanes.model import Lane

#: The keys by which a rate counts the job.
KEYS = sql.load("rates.sql", "keys")

#: Seconds after which a lane is looked at again in any case.
_LONGEST = 86_400.0
#: By what a rate counts: see `_kind`.
_SPENT, _AGAIN = (
    {kind: text(sql.load("rates.sql", name + kind)) for kind in ("", "_by_key", "_by_cost")}
    for name in ("spent", "again")
)


def quota(connection: Connection, lane: Lane) -> RateQuota | None:
    """Returns what is left of the lane's rate; `None` if it has no rate."""
    if lane.rate_limit is None:
        return None
    rows = connection.execute(_SPENT[_kind(lane)], _of_rate(lane))
    spent = {key: float(number) for key, number in rows}
    has_keys = lane.rate_key is not None
    return RateQuota(lane.rate_limit, spent, str(lane.rate), has_keys=has_keys, unit=lane.rate_unit)


def retry_in(connection: Connection, lane: Lane, denied: Mapping[str | None, float]) -> float:
    """Returns the seconds until the rate admits a job with one of these keys, of these costs."""
    keys = [key or "" for key in denied]
    values = {**_of_rate(lane), "keys": keys, "costs": list(denied.values())}
    again = connection.execute(_AGAIN[_kind(lane)], values).scalar_one_or_none()
    seconds = min(max(0.0, float(again or 0)), _LONGEST)
    if lane.temporary_until is None:
        return seconds
    left = (lane.temporary_until - connections.clock(connection)).total_seconds()
    return max(0.0, min(seconds, left))


def _kind(lane: Lane) -> str:
    if lane.rate_unit is not None:
        return "_by_cost"
    return "" if lane.rate_key is None else "_by_key"


def _of_rate(lane: Lane) -> dict[str, Any]:
    return {
        **lane.identity,
        "period": lane.rate_period,
        "rate": lane.rate_limit,
        "key": lane.rate_key,
        "unit": lane.rate_unit,
    }


def at_present(connection: Connection, lane: Lane) -> Lane:
    """Returns the lane with the rate that holds now, by the database's clock."""
    return lane if lane.temporary_until is None else lane.at(connections.clock(connection))
