"""Gives the slots of lanes to jobs, and finds out which jobs may have one now."""

import json
import logging
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

import psycopg
from sqlalchemy import Connection, text

from pgbeat.database import connections, sql
from pgbeat.errors import InvalidJob
from pgbeat.jobs.lanes import concurrency, rates
from pgbeat.jobs.lanes.concurrency import Work
from pgbeat.jobs.lanes.limiter import Limiter
from pgbeat.jobs.lanes.model import HAS_SLOT, IS_WAITING, Lane
from pgbeat.jobs.lanes.reservations import Reservation
from pgbeat.jobs.rows import model as jobs
from pgbeat.jobs.rows.model import Job
from pgbeat.jobs.states.endings import Ended

logger = logging.getLogger("pgbeat.lanes")

_TAKE_FIRST = text(
    sql.load(
        "slots.sql", "take_first", is_waiting=IS_WAITING, has_slot=HAS_SLOT, columns=jobs.COLUMNS
    )
)


_TAKE_TURNS = text(sql.load("slots.sql", "take_turns", columns=jobs.COLUMNS))


def take_turns(
    connection: Connection, lane: Lane, *, limit: int, job_ids: Collection[UUID] | None = None
) -> list[Job]:
    """Gives slots of a fair lane to the next jobs, and returns these, in order of the keys' turns.

    As `take_first`: the lane must be locked, and have no policy and no rate. With `job_ids`, jobs
    that left their slots or came into the line, passes over a limited number of keys without a free
    slot, then looks at those of these jobs.
    """
    ids = None if job_ids is None else list(job_ids)
    values = {**lane.identity, "limit": limit, "job_ids": ids}
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
    return bool(connection.scalar(_CORRECT_KEYS, {**lane.identity, "ids": list(ids)}))


_CLEAR_KEYS = text(sql.load("slots.sql", "clear_keys", is_waiting=IS_WAITING))


def clear_keys(connection: Connection, lane: Lane) -> None:
    """Clears the keys of jobs that wait in a lane that is not fair; the lane must be locked.

    The lane was fair before, and they were locked, or not committed, when it changed; or it was
    removed and made anew.
    """
    connection.execute(_CLEAR_KEYS, lane.identity)


_NOTE_TURNS = text(
    """
    SELECT pgbeat.note_turns(l, CAST(:ids AS uuid[]), CAST(:stops AS jsonb)) FROM pgbeat.lanes l
     WHERE l.namespace = :namespace AND l.name = :lane
    """
)


def note_turns(
    connection: Connection, lane: Lane, ids: Collection[str], stops: Mapping[int, str]
) -> None:
    """Notes which keys of a fair lane were served last, by the jobs that got slots, in order.

    `stops` are the keys at which walks ended early, by priority: the next ones begin there.
    """
    if lane.fair_by is not None and (ids or stops):
        values = {**lane.identity, "ids": list(ids), "stops": json.dumps(stops)}
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
_TAKE_NEXT = sql.load("slots.sql", "take_next", next_columns=_NEXT_COLUMNS)


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


_TAKE_THESE = text(sql.load("slots.sql", "take_these", is_waiting=IS_WAITING, columns=jobs.COLUMNS))


def take(connection: Connection, ids: Collection[str]) -> list[Job]:
    """Gives slots to these jobs, and returns them in this order. Skips jobs that are locked."""
    if not ids:
        return []
    by_id = {str(row.id): Job(*row) for row in connection.execute(_TAKE_THESE, {"ids": list(ids)})}
    return [by_id[job_id] for job_id in ids if job_id in by_id]


def _ordered(rows: Iterable[Any]) -> list[Job]:
    ordered = [Job(*row) for row in rows]
    if ordered and ordered[0].fair_key:  # in the order of turns already
        return ordered
    return sorted(ordered, key=lambda j: (-j.priority, j.position or 0, j.created_at, j.id))


_COUNT = text(sql.load("slots.sql", "count", has_slot=HAS_SLOT))
_COUNT_BY_KEY = text(sql.load("slots.sql", "count_by_key", has_slot=HAS_SLOT))


def count_running(connection: Connection, lane: Lane) -> int:
    """Returns how many jobs have a slot."""
    return int(connection.execute(_COUNT, lane.identity).scalar_one())


class Waiting(NamedTuple):
    """A job in a waiting line."""

    work: Work
    #: The keys by which a rate counts it.
    keys: list[str | None]
    created_at: datetime
    #: Whether it is its key's turn; a key that gained room may come without.
    is_in_turn: bool


class Line(NamedTuple):
    """A part of a waiting line, in order."""

    jobs: list[Waiting]
    #: Keys of a fair lane at which walks ended early, by priority (see `pgbeat.fair_line`).
    stops: dict[int, str]


_WAITING_JOBS = text(sql.load("slots.sql", "waiting_jobs", keys=rates.KEYS, is_waiting=IS_WAITING))


_WAITING_TURNS = text(sql.load("slots.sql", "waiting_turns", keys=rates.KEYS))


def waiting_jobs(
    connection: Connection,
    lane: Lane,
    *,
    limit: int = 200,
    offset: int = 0,
    is_limited: bool = False,
    job_ids: Collection[UUID] | None = None,
) -> Line:
    """Returns a part of the waiting line.

    If it `is_limited`, without jobs for which their keys have no slot left; `job_ids` are as for
    `take_turns` then.
    """
    values: dict[str, Any] = {**lane.identity, "key": lane.rate_key}
    values |= {"limit": limit, "offset": offset}
    if lane.fair_by is not None:
        values |= {"is_limited": is_limited, "job_ids": None if job_ids is None else list(job_ids)}
    statement = _WAITING_JOBS if lane.fair_by is None else _WAITING_TURNS
    line = Line([], {})
    for stopped, fair_key, keys, created_at, *work in connection.execute(statement, values):
        if stopped is None:
            asked = Work.of(*work)
            line.jobs.append(Waiting(asked, keys, created_at, asked.priority not in line.stops))
        else:
            line.stops[stopped] = fair_key
    return line


_RUNNING = text(sql.load("slots.sql", "running", has_slot=HAS_SLOT))


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
        by_key = {row[0]: row[1] for row in connection.execute(_COUNT_BY_KEY, lane.identity)}
    limiter = Limiter(
        lane.max_running,
        policy,
        rates.quota(connection, lane),
        count,
        problem,
        per_key=lane.max_per_key,
        taken_by_key=by_key,
    )
    if policy is not None:
        for row in connection.execute(_RUNNING, lane.identity):
            limiter.admit(Work.of(*row))
    return limiter


def admit_reservations(limiter: Limiter, direct: Iterable[Reservation]) -> dict[int, str | None]:
    """Counts direct executions, and returns the reason for which each waiting one must wait.

    The reason is `None` for one that may have a slot now. Those that must wait are counted as if
    they had a slot: no job takes what they wait for.
    """
    denials: dict[int, str | None] = {}
    for request in sorted(direct, key=lambda request: request.started_at is None):
        if request.started_at is None:
            denials[request.id] = limiter.denial(request.work)
        limiter.admit(request.work)
    return denials


_COMPLETED = text(sql.load("slots.sql", "completed"))


def notify_policies(connection: Connection, ended: Iterable[Ended]) -> None:
    """Calls `on_job_completed` of the policies of the lanes in which these jobs had slots."""
    policies = concurrency.listening()
    ids = [str(job.id) for job in ended if job.lane is not None and job.state in jobs.ENDED]
    if not policies or not ids:
        return
    rows = connection.execute(_COMPLETED, {"ids": ids, "policies": policies}).all()
    for policy, options, *work in rows:
        try:
            concurrency.make(policy, options).on_job_completed(Work.of(*work))
        except Exception:
            logger.exception("on_job_completed of policy %r failed for job %s", policy, work[0])
