"""Gives the slots of lanes to jobs, and finds out which jobs may have one now."""

import logging
from collections.abc import Collection, Iterable
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

import psycopg
from sqlalchemy import Connection, text

from pgbeat.database import connections
from pgbeat.errors import InvalidJob
from pgbeat.jobs import model as jobs
from pgbeat.jobs.endings import Ended
from pgbeat.jobs.lanes import concurrency, rates
from pgbeat.jobs.lanes.concurrency import Work
from pgbeat.jobs.lanes.limiter import Limiter
from pgbeat.jobs.lanes.model import HAS_SLOT, IS_WAITING, Lane
from pgbeat.jobs.lanes.reservations import Reservation
from pgbeat.jobs.model import Job

logger = logging.getLogger("pgbeat.lanes")

_OF_LANE = "j.namespace = :namespace AND j.lane = :lane"
_HOLDERS = f"FROM pgbeat.unfinished_jobs j WHERE {_OF_LANE} AND {HAS_SLOT}"
_LINE = f"FROM pgbeat.unfinished_jobs j WHERE {_OF_LANE} AND {IS_WAITING}"
_IN_ORDER = "ORDER BY j.priority DESC, j.fair_key, j.position, j.created_at, j.id"
_WORK = """
    CAST(j.id AS text), j.namespace, j.lane, j.task, j.args, j.kwargs, j.tags, j.resources,
    j.priority, j.created_by, j.schedule, j.template, CAST(j.group_id AS text), j.attempt,
    j.fair_key
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


_TAKE_TURNS = text(
    f"""
    SELECT {jobs.COLUMNS} FROM pgbeat.lanes l CROSS JOIN LATERAL pgbeat.take_turns(
           l, :limit, CAST(:job_ids AS uuid[])) AS j
     WHERE l.namespace = :namespace AND l.name = :lane
       AND NOT EXISTS (SELECT FROM pgbeat.reservations
                        WHERE namespace = :namespace AND lane = :lane)
    """  # noqa: S608
)


def take_turns(
    connection: Connection, lane: Lane, *, limit: int, job_ids: Collection[UUID] | None = None
) -> list[Job]:
    """Gives slots of a fair lane to the next jobs, and returns these, in order of the keys' turns.

    As `take_first`: the lane must be locked, and have no policy and no rate. With `job_ids`, jobs
    that left their slots or came into the line, passes over a limited number of keys without a free
    slot, then looks at those of these jobs.
    """
    ids = None if job_ids is None else list(job_ids)
    values = {"namespace": lane.namespace, "lane": lane.name, "limit": limit, "job_ids": ids}
    return [Job(*row) for row in connection.execute(_TAKE_TURNS, values)]


_CORRECT_KEYS = text(
    """
    SELECT pgbeat.correct_keys(l, CAST(:ids AS uuid[])) FROM pgbeat.lanes l
     WHERE l.namespace = :namespace AND l.name = :lane
    """
)


def correct_keys(connection: Connection, lane: Lane, ids: Collection[str]) -> bool:
    """Gives jobs of a fair lane the keys that they must have; returns whether one had another."""
    if lane.fair_by is None or not ids:
        return False
    values = {"namespace": lane.namespace, "lane": lane.name, "ids": list(ids)}
    return bool(connection.scalar(_CORRECT_KEYS, values))


_NOTE_TURNS = text(
    """
    SELECT pgbeat.note_turns(l, CAST(:ids AS uuid[])) FROM pgbeat.lanes l
     WHERE l.namespace = :namespace AND l.name = :lane
    """
)


def note_turns(connection: Connection, lane: Lane, ids: Collection[str]) -> None:
    """Notes which keys of a fair lane were served last, by the jobs that got slots, in order."""
    if lane.fair_by is not None and ids:
        values = {"namespace": lane.namespace, "lane": lane.name, "ids": list(ids)}
        connection.execute(_NOTE_TURNS, values)


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
_TAKE_NEXT = f"SELECT n.slots, {_NEXT_COLUMNS} FROM pgbeat.take_next($1, $2, $3, $4) n"  # noqa: S608


class Taken(NamedTuple):
    """Jobs that got slots of a lane, in order."""

    jobs: list[Job]
    #: The lane's number of slots; `None` for no limit.
    slots: int | None


def take_next(
    connection: Connection,
    namespace: str,
    name: str,
    *,
    limit: int,
    job_ids: Collection[UUID] | None = None,
) -> Taken | None:
    """Gives slots to the first jobs of a line, up to `limit`, and locks the lane.

    `job_ids` are as for `take_turns`. Returns `None`, and does nothing, if another transaction has
    locked the lane, if it has a policy or a rate, if it was removed, and if there are reservations.
    Raises psycopg's errors.
    """
    cursor = psycopg.RawCursor(connections.driver(connection))
    ids = None if job_ids is None else list(job_ids)
    rows = cursor.execute(_TAKE_NEXT, [namespace, name, limit, ids]).fetchall()
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
    """Gives slots to these jobs, and returns them in this order. Skips jobs that are locked."""
    if not ids:
        return []
    found = {str(row.id): Job(*row) for row in connection.execute(_TAKE_THESE, {"ids": list(ids)})}
    return [found[job_id] for job_id in ids if job_id in found]


def _ordered(rows: Iterable[Any]) -> list[Job]:
    found = [Job(*row) for row in rows]
    if found and found[0].fair_key:  # in the order of turns already
        return found
    return sorted(found, key=lambda j: (-j.priority, j.position or 0, j.created_at, j.id))


_COUNT = text(f"SELECT count(*) {_HOLDERS}")
_COUNT_BY_KEY = text(f"SELECT j.fair_key, count(*) {_HOLDERS} GROUP BY j.fair_key")


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
    SELECT {rates.KEYS}, j.created_at, {_WORK}
      {_LINE} {_IN_ORDER} LIMIT :limit OFFSET :offset
    """
)


_WAITING_TURNS = text(
    f"""
    SELECT {rates.KEYS}, j.created_at, {_WORK}
      FROM pgbeat.lanes l
           CROSS JOIN LATERAL pgbeat.fair_line(l, :limit + :offset, :is_limited)
               WITH ORDINALITY AS f (id, priority, fair_key, number)
           CROSS JOIN LATERAL (
               SELECT * FROM pgbeat.unfinished_jobs u WHERE u.id = f.id OFFSET 0) AS j
     WHERE l.namespace = :namespace AND l.name = :lane
     ORDER BY f.number OFFSET :offset
    """  # noqa: S608
)


def waiting_jobs(
    connection: Connection,
    lane: Lane,
    *,
    limit: int = 200,
    offset: int = 0,
    is_limited: bool = False,
) -> list[Waiting]:
    """Returns a part of the waiting line, in order.

    If it `is_limited`, without jobs for which their keys have no slot left.
    """
    values = {
        "namespace": lane.namespace, "lane": lane.name, "key": lane.rate_key,
        "limit": limit, "offset": offset,
    }  # fmt: skip
    if lane.fair_by is not None:
        values["is_limited"] = is_limited
    statement = _WAITING_JOBS if lane.fair_by is None else _WAITING_TURNS
    rows = connection.execute(statement, values)
    return [Waiting(Work(*work), keys, created_at) for keys, created_at, *work in rows]


_RUNNING = text(f"SELECT {_WORK} {_HOLDERS}")


def limiter(connection: Connection, lane: Lane) -> Limiter:
    """Returns the lane's limiter, which knows the jobs that have a slot."""
    lane = rates.at_present(connection, lane)
    policy, problem = None, None
    if lane.policy is not None:
        try:
            policy = concurrency.make(lane.policy, lane.options)
        except InvalidJob as error:
            problem = str(error)
    count = 0 if policy is not None or lane.max_running is None else count_running(connection, lane)
    by_key = {}
    if policy is None and lane.max_per_key is not None:
        values = {"namespace": lane.namespace, "lane": lane.name}
        by_key = {row[0]: row[1] for row in connection.execute(_COUNT_BY_KEY, values)}
    limiter = Limiter(
        lane.max_running, policy, rates.quota(connection, lane), count, problem,
        per_key=lane.max_per_key, taken_by_key=by_key,
    )  # fmt: skip
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
