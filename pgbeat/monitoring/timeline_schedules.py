"""Chooses the schedules that a timeline shows, by the newest events, without counting all."""

from datetime import datetime, timedelta
from typing import NamedTuple

from sqlalchemy import Connection, text

from pgbeat.database import connections, sql
from pgbeat.database.tables import schedules as table
from pgbeat.monitoring import schedule_health
from pgbeat.monitoring.schedule_health import Health
from pgbeat.schedules import model
from pgbeat.schedules.model import Schedule

#: Ticks, and failed, running and late jobs, that are looked at: the newest.
_TICKS, _JOBS = 2000, 300
#: Schedules with failures whose health is looked at.
_SUSPECTS = 100
#: How far back failed jobs make a schedule one of the worst.
_RECENT = timedelta(days=7)
#: A kind of candidates below.
_RUNNING = 1


class Chosen(NamedTuple):
    """Schedules with their health, and whether others were left out."""

    schedules: list[Schedule]
    healths: dict[int, Health]
    has_more: bool


_CANDIDATES = text(sql.load("timeline_schedules.sql", "candidates"))


def chosen(
    connection: Connection,
    namespace: str,
    patience: timedelta,
    *,
    since: datetime,
    search: str | None,
    limit: int,
) -> Chosen:
    """Returns up to `limit` schedules, those that fail or are late first.

    If more than fit are there, those that run come next, then those that were decided last, then
    those that are due next. With `search`, it is the schedules that have it in their names.
    """
    rows = model.page(connection, namespace=namespace, search=search, limit=limit + 1)
    has_more = len(rows) > limit
    running: set[int] = set()
    if search or not has_more:
        rows = rows[:limit]
    else:
        values = {
            "namespace": namespace,
            "ticks": _TICKS,
            "jobs": _JOBS,
            "since": since,
            "suspects": _SUSPECTS,
            "patience": patience,
            "most": _SUSPECTS + 2 * limit,
        }
        kinds = dict[int, int](tuple(row) for row in connection.execute(_CANDIDATES, values))
        running = {key for key, kind in kinds.items() if kind == _RUNNING}
        query = model.SELECT.where(table.c.id.in_(list(kinds)))
        candidates = {row.id: Schedule._make(row) for row in connection.execute(query)}
        rows = list({row.id: row for row in [*map(candidates.get, kinds), *rows] if row}.values())
    healths = _healths(connection, rows, patience, limit)
    known = (row for row in rows if row.id in healths)
    rows = sorted(known, key=lambda row: _rank(healths[row.id]))[:limit]
    rows.sort(key=lambda row: (_rank(healths[row.id]), row.id not in running, row.name))
    return Chosen(rows, healths, has_more)


def worst(
    connection: Connection, namespace: str, patience: timedelta, *, search: str | None, limit: int
) -> Chosen:
    """Returns up to `limit` schedules by their health, those that fail or are late first.

    A failed job of the last days makes a schedule a candidate. With `search`, it is the schedules
    that have it in their names.
    """
    since = connections.now(connection) - _RECENT
    return chosen(connection, namespace, patience, since=since, search=search, limit=limit)


def _healths(
    connection: Connection, rows: list[Schedule], patience: timedelta, limit: int
) -> dict[int, Health]:
    """Returns the health of `rows`, of the first ones only if `limit` of those fail."""
    healths = schedule_health.of_schedules(connection, rows[: 2 * limit], patience)
    failing = sum(health.severity == "fail" for health in healths.values())
    if failing < limit and (rest := rows[2 * limit :]):
        healths |= schedule_health.of_schedules(connection, rest, patience)
    return healths


def _rank(health: Health) -> int:
    return ("fail", "warn", "ok").index(health.severity)
