"""Gives the slots of lanes to jobs, and finds out which jobs may have one now."""

import logging
from collections.abc import Collection, Iterable
from datetime import datetime
from typing import Any, NamedTuple

import psycopg
from sqlalchemy import Connection, text

from pgbeat.database import connections
from pgbeat.errors import InvalidJob
from pgbeat.jobs import model as jobs
from pgbeat.jobs.endings import Ended
from pgbeat.jobs.lanes import concurrency
from pgbeat.jobs.lanes.concurrency import Work
from pgbeat.jobs.lanes.limiter import Limiter, RateQuota
from pgbeat.jobs.lanes.model import HAS_SLOT, IS_WAITING, Lane
from pgbeat.jobs.lanes.reservations import Reservation
from pgbeat.jobs.model import Job

logger = logging.getLogger("pgbeat.lanes")

_OF_LANE = "j.namespace = :namespace AND j.lane = :lane"
_HOLDERS = f"FROM pgbeat.unfinished_jobs j WHERE {_OF_LANE} AND {HAS_SLOT}"
_LINE = f"FROM pgbeat.unfinished_jobs j WHERE {_OF_LANE} AND {IS_WAITING}"
_IN_ORDER = "ORDER BY j.priority DESC, j.position, j.created_at, j.id"
_WORK = """
    CAST(j.id AS text), j.namespace, j.lane, j.task, j.args, j.kwargs, j.tags, j.resources,
    j.priority, j.created_by, j.schedule, j.template, CAST(j.group_id AS text), j.attempt
"""
# The keys by which a rate counts the job.
_KEYS = """
    CASE WHEN CAST(:key AS text) IS NULL THEN ARRAY[NULL]
         WHEN :key = 'task' THEN ARRAY[j.task]
         WHEN :key = 'created_by' THEN ARRAY[j.created_by]
         WHEN :key = 'tag' THEN CASE WHEN j.tags = '{}' THEN ARRAY[NULL] ELSE j.tags END
         ELSE ARRAY[j.kwargs ->> substr(:key, length('kwargs.') + 1)] END
"""

# Rows are found again by an array: for a join, Postgres may read the whole table.
_TAKE = """
    UPDATE pgbeat.unfinished_jobs j SET dispatched_at = statement_timestamp()
     WHERE j.id = ANY (ARRAY(SELECT id FROM mine))
"""
_TAKE_FIRST = text(
    f"""
    WITH mine AS (
        SELECT j.id {_LINE} {_IN_ORDER}
         LIMIT CASE
             WHEN EXISTS (SELECT FROM pgbeat.reservations
                           WHERE namespace = :namespace AND lane = :lane) THEN 0
             WHEN CAST(:slots AS integer) IS NULL THEN :limit
             ELSE least(:limit, greatest(0, :slots - (SELECT count(*) {_HOLDERS})))
         END FOR UPDATE SKIP LOCKED)
    {_TAKE} RETURNING {jobs.COLUMNS}
    """  # noqa: S608
)


def take_first(
    connection: Connection, namespace: str, name: str, *, slots: int | None, limit: int
) -> list[Job]:
    """Gives slots to the first jobs of a line, up to `limit`, and returns these in order.

    The lane must be locked, and have no other limit than its number of `slots` (`None`: no limit).
    Takes no job if there are reservations.
    """
    values = {"namespace": namespace, "lane": name, "slots": slots, "limit": limit}
    return _ordered(connection.execute(_TAKE_FIRST, values))


_NEXT_COLUMNS = ", ".join(f"(n.job).{name}" for name in Job._fields)
_TAKE_NEXT = f"SELECT n.slots, {_NEXT_COLUMNS} FROM pgbeat.take_next($1, $2, $3) n"  # noqa: S608


class Taken(NamedTuple):
    """Jobs that got slots of a lane, in order."""

    jobs: list[Job]
    #: The lane's number of slots; `None` for no limit.
    slots: int | None


def take_next(connection: Connection, namespace: str, name: str, *, limit: int) -> Taken | None:
    """Gives slots to the first jobs of a line, up to `limit`, and locks the lane.

    Returns `None`, and does nothing, if another transaction has locked the lane, if it has a policy
    or a rate, if it was removed, and if there are reservations. Raises psycopg's errors.
    """
    cursor = psycopg.RawCursor(connections.driver(connection))
    rows = cursor.execute(_TAKE_NEXT, [namespace, name, limit]).fetchall()
    if rows and rows[0][1] is None:
        return None
    return Taken(_ordered(row[1:] for row in rows), rows[0][0] if rows else None)


_TAKE_THESE = text(
    f"""
    WITH mine AS (
        SELECT id FROM pgbeat.unfinished_jobs j
         WHERE id = ANY (CAST(:ids AS uuid[])) AND {IS_WAITING}
           FOR UPDATE SKIP LOCKED)
    {_TAKE} RETURNING {jobs.COLUMNS}
    """  # noqa: S608
)


def take(connection: Connection, ids: Collection[str]) -> list[Job]:
    """Gives slots to these jobs, and returns them in order. Skips jobs that are locked."""
    return _ordered(connection.execute(_TAKE_THESE, {"ids": list(ids)})) if ids else []


def _ordered(rows: Iterable[Any]) -> list[Job]:
    found = [Job(*row) for row in rows]
    return sorted(found, key=lambda j: (-j.priority, j.position or 0, j.created_at, j.id))


_COUNT = text(f"SELECT count(*) {_HOLDERS}")


def count_running(connection: Connection, lane: Lane) -> int:
    """Returns how many jobs have a slot."""
    values = {"namespace": lane.namespace, "lane": lane.name}
    return int(connection.execute(_COUNT, values).scalar_one())


class Waiting(NamedTuple):
    """A job in a waiting line."""

    work: Work
    #: The keys by which a rate counts it.
    keys: list[str | None]
    created_at: datetime


_WAITING_JOBS = text(
    f"""
    SELECT {_KEYS}, j.created_at, {_WORK}
      {_LINE} {_IN_ORDER} LIMIT :limit OFFSET :offset
    """
)


def waiting_jobs(
    connection: Connection, lane: Lane, *, limit: int = 200, offset: int = 0
) -> list[Waiting]:
    """Returns a part of the waiting line, in order."""
    values = {
        "namespace": lane.namespace, "lane": lane.name, "key": lane.rate_key,
        "limit": limit, "offset": offset,
    }  # fmt: skip
    rows = connection.execute(_WAITING_JOBS, values)
    return [Waiting(Work(*work), keys, created_at) for keys, created_at, *work in rows]


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
    SELECT k.key, count(*) FROM pgbeat.jobs j CROSS JOIN LATERAL unnest({_KEYS}) AS k (key)
    {_WITHIN} GROUP BY k.key
    """  # noqa: S608
)


def quota(connection: Connection, lane: Lane) -> RateQuota | None:
    """Returns what is left of the lane's rate; `None` if it has no rate."""
    if lane.rate_limit is None:
        return None
    statement = _SPENT if lane.rate_key is None else _SPENT_BY_KEY
    rows = connection.execute(statement, _of_rate(lane))
    spent: dict[str | None, int] = {row[0]: row[1] for row in rows}
    return RateQuota(lane.rate_limit, spent, str(lane.rate), has_keys=lane.rate_key is not None)


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
              FROM pgbeat.jobs j CROSS JOIN LATERAL unnest({_KEYS}) AS k (key)
            {_WITHIN} AND coalesce(k.key, '') = ANY (CAST(:keys AS text[]))
             GROUP BY k.key) AS d
    """  # noqa: S608
)


def retry_in(connection: Connection, lane: Lane, denied: Collection[str | None]) -> float:
    """Returns the seconds until the rate admits a job with one of these keys."""
    values = _of_rate(lane)
    if lane.rate_key is None:
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
    return values if lane.rate_key is None else values | {"key": lane.rate_key}


_RUNNING = text(f"SELECT {_WORK} {_HOLDERS}")


def limiter(connection: Connection, lane: Lane) -> Limiter:
    """Returns the lane's limiter, which knows the jobs that have a slot."""
    policy, problem = None, None
    if lane.policy is not None:
        try:
            policy = concurrency.make(lane.policy, lane.options)
        except InvalidJob as error:
            problem = str(error)
    count = 0 if policy is not None or lane.max_running is None else count_running(connection, lane)
    limiter = Limiter(lane.max_running, policy, quota(connection, lane), count, problem)
    if policy is not None:
        values = {"namespace": lane.namespace, "lane": lane.name}
        for row in connection.execute(_RUNNING, values):
            limiter.admit(Work(*row))
    return limiter


def admit_reservations(limiter: Limiter, direct: Iterable[Reservation]) -> dict[int, str | None]:
    """Counts direct executions, and returns the reason for which each waiting one must wait.

    The reason is `None` for one that may have a slot now. Those that must wait are counted as if
    they had a slot: no job takes what they wait for.
    """
    denials: dict[int, str | None] = {}
    for each in sorted(direct, key=lambda each: each.started_at is None):
        if each.started_at is None:
            denials[each.id] = limiter.denial(each.work)
        limiter.admit(each.work)
    return denials


_COMPLETED = text(
    f"""
    SELECT l.policy, l.options, {_WORK}
      FROM pgbeat.jobs j JOIN pgbeat.lanes l ON l.namespace = j.namespace AND l.name = j.lane
     WHERE j.id = ANY (CAST(:ids AS uuid[])) AND j.dispatched_at IS NOT NULL
       AND l.policy = ANY (CAST(:policies AS text[]))
    """  # noqa: S608
)


def notify_policies(connection: Connection, ended: Iterable[Ended]) -> None:
    """Calls `on_job_completed` of the policies of the lanes in which these jobs had slots."""
    policies = concurrency.listening()
    ids = [str(job.id) for job in ended if job.lane is not None and job.state in jobs.ENDED]
    if not policies or not ids:
        return
    rows = connection.execute(_COMPLETED, {"ids": ids, "policies": policies}).all()
    for policy, options, *work in rows:
        try:
            concurrency.make(policy, options).on_job_completed(Work(*work))
        except Exception:
            logger.exception("on_job_completed of policy %r failed for job %s", policy, work[0])
