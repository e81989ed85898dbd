"""Chooses the schedules that a timeline shows, by what is newest; nothing is counted through."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import Connection, text

from pgbeat.database import connections
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


# The kinds in the order in which they are chosen: suspects of being late or of failing, what runs,
# what was decided last, what is due next.
_CANDIDATES = text(
    """
    WITH ticks AS MATERIALIZED (
        SELECT t.schedule_id, max(t.id) AS last, bool_or(t.outcome = 'failed') AS has_failed
          FROM (SELECT id, schedule_id, outcome FROM pgbeat.ticks
                 ORDER BY id DESC LIMIT :ticks) AS t
         GROUP BY t.schedule_id),
    found (kind, id, place) AS (
        SELECT 0, late.id, 0 FROM (
               SELECT s.id FROM pgbeat.schedules s
                WHERE s.namespace = :namespace AND s.enabled AND s.paused_at IS NULL
                  AND s.next_run < now() - CAST(:patience AS interval)
                ORDER BY s.next_run LIMIT :suspects) AS late
        UNION ALL
        SELECT 0, t.schedule_id, 1 FROM ticks t WHERE t.has_failed
        UNION ALL
        SELECT DISTINCT 0, failed.schedule_id, 1 FROM (
               SELECT j.schedule_id FROM pgbeat.jobs j
                WHERE j.namespace = :namespace AND j.state = 'failed' AND j.created_at >= :since
                ORDER BY j.created_at DESC, j.id DESC LIMIT :jobs) AS failed
         WHERE failed.schedule_id IS NOT NULL
        UNION ALL
        SELECT DISTINCT 1, running.schedule_id, 0 FROM (
               SELECT j.schedule_id FROM pgbeat.unfinished_jobs j
                WHERE j.namespace = :namespace AND j.state = 'running'
                ORDER BY j.created_at DESC, j.id DESC LIMIT :jobs) AS running
         WHERE running.schedule_id IS NOT NULL
        UNION ALL
        SELECT 2, t.schedule_id, -t.last FROM ticks t
        UNION ALL
        SELECT 3, next.id, row_number() OVER (ORDER BY next.next_run) FROM (
               SELECT s.id, s.next_run FROM pgbeat.schedules s
                WHERE s.namespace = :namespace AND s.enabled AND s.paused_at IS NULL
                  AND s.next_run IS NOT NULL
                ORDER BY s.next_run LIMIT :suspects) AS next)
    SELECT f.id, min(f.kind)
      FROM found f
     WHERE (SELECT s.namespace FROM pgbeat.schedules s WHERE s.id = f.id) = :namespace
     GROUP BY f.id ORDER BY min(f.kind), min(f.place) LIMIT :most
    """
)


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
            "namespace": namespace, "ticks": _TICKS, "jobs": _JOBS, "since": since,
            "suspects": _SUSPECTS, "patience": patience, "most": _SUSPECTS + 2 * limit,
        }  # fmt: skip
        kinds = dict[int, int](tuple(row) for row in connection.execute(_CANDIDATES, values))
        running = {key for key, kind in kinds.items() if kind == _RUNNING}
        found = {row.id: row for row in _read(connection, kinds)}
        rows = list({row.id: row for row in [*map(found.get, kinds), *rows] if row}.values())
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


def _read(connection: Connection, ids: Iterable[int]) -> list[Schedule]:
    rows: Any = connection.execute(model.SELECT.where(table.c.id.in_(list(ids))))
    return [Schedule._make(row) for row in rows]
