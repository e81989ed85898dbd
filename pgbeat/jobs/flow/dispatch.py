"""Dispatches lanes: gives their free slots to the first jobs in line, and publishes these.

Code that frees a slot, or adds to a lane, must call `dispatch_lane` after its commit.
"""

import logging
from collections.abc import Collection, Iterable, Sequence, Set
from functools import partial
from typing import NamedTuple
from uuid import UUID

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from pgbeat.broker.publishing.publisher import Publisher
from pgbeat.broker.publishing.unit_of_work import UnitOfWork
from pgbeat.database import connections, privileges
from pgbeat.jobs.flow import lifecycle
from pgbeat.jobs.flow.lifecycle import Urgency
from pgbeat.jobs.lanes import model as lanes
from pgbeat.jobs.lanes import rates, reservations, slots
from pgbeat.jobs.lanes.limiter import Limiter
from pgbeat.jobs.lanes.model import Lane, Room
from pgbeat.jobs.rows.model import Job

logger = logging.getLogger("pgbeat.lanes")

#: Jobs dispatched in one transaction, or read at once, at most.
BATCH = 200
# A lane with more slots stays busy while its workers collect the ends of a few milliseconds.
_FEW_SLOTS = 4
# How far down a line to search for jobs that the lane's policy lets pass others.
_DEPTH = 2000
# How often to skip locked jobs and choose others.
_TRIES = 3
# The problems of lanes' policies that were logged.
_complaints: dict[tuple[str, str], str] = {}


class Dispatched(NamedTuple):
    """The result of a dispatch."""

    #: The number of jobs that got a slot.
    jobs: int
    #: Seconds after which the lane's rate may admit more; `None` if no time does.
    retry_in: float | None


def dispatch_lane(
    connection: Connection,
    publisher: Publisher,
    namespace: str,
    lane: str,
    job_ids: Collection[UUID] | None = None,
    *,
    wait: bool = True,
) -> Dispatched:
    """Gives the lane's free slots to direct executions that wait, then to its jobs.

    With `job_ids`, jobs that left their slots or came into the line, looks at their keys and at the
    next of a fair lane only, unless it has a policy or a rate by key. The connection must be in
    autocommit mode. Transactions that dispatch the same lane wait for each other. Without `wait`,
    raises the error of a lock timeout if another transaction has locked the lane. Skips jobs that
    are locked. Raises the errors of publishing: then nothing is dispatched.
    """
    count, retry_in = 0, None
    todo = {(namespace, lane): job_ids}
    while todo:
        current, ids = todo.popitem()
        if not lanes.has_waiting(connection, *current):
            continue
        try:
            with connections.transaction(connection):
                turn = _dispatch_some(connection, publisher, *current, ids, wait=wait)
        except BaseException:
            publisher.clear()
            raise
        count += turn.jobs
        todo |= lanes.by_lane(turn.rooms)
        if current == (namespace, lane):
            retry_in = turn.retry_in
    return Dispatched(count, retry_in)


def dispatch_lanes(connection: Connection, publisher: Publisher, rooms: Iterable[Room]) -> None:
    """Dispatches lanes, as `dispatch_lane` does."""
    for lane, job_ids in lanes.by_lane(rooms).items():
        dispatch_lane(connection, publisher, *lane, job_ids)


def dispatch_in_transaction(
    connection: Connection, publisher: Publisher, freed: Collection[Room]
) -> set[Room]:
    """Gives the free slots of lanes to their first jobs, in the open transaction.

    Returns the lanes that the caller must dispatch after the commit: those with more than a limit,
    and those that another transaction keeps locked. The locks of lanes are held until the commit,
    which should follow at once. Raises the errors of publishing and of statements: then the caller
    must roll back.
    """
    if not publisher.transactional:  # the messages would be there before the commit
        return set(freed)
    left: set[Room] = set()
    for lane, job_ids in lanes.by_lane(freed).items():
        taken = slots.take_next(connection, *lane, limit=BATCH, job_ids=job_ids)
        if taken is None:
            left |= {room for room in freed if room[:2] == lane}
        elif taken.jobs:
            failed = lifecycle.publish(connection, publisher, taken.jobs, _urgency(taken.slots))
            left |= lifecycle.follow(connection, publisher, failed)
            if len(taken.jobs) == BATCH:
                left.add(Room(*lane))
    return left


def after_commit(unit: UnitOfWork, changed: Iterable[Room]) -> None:
    """Dispatches lanes after the unit's commit, if it has the app and its own transaction.

    Otherwise the leading beat dispatches them.
    """
    for (namespace, name), job_ids in lanes.by_lane(changed).items():
        if unit.is_callers:
            lanes.announce(unit.connection, namespace, name)
        else:
            unit.after_commit(partial(_dispatch_if_app, unit, namespace, name, job_ids))


def _dispatch_if_app(
    unit: UnitOfWork, namespace: str, name: str, job_ids: Collection[UUID] | None
) -> None:
    if unit.app is None:
        return
    try:
        dispatch_lane(unit.connection, unit.publisher, namespace, name, job_ids)
    except DBAPIError as error:
        if not privileges.is_denied(error):
            raise
        lanes.announce(unit.connection, namespace, name)  # the role makes jobs, and no more


class _Turn(NamedTuple):
    jobs: int = 0
    retry_in: float | None = None
    #: Lanes to dispatch because of it.
    rooms: Set[Room] = frozenset()


def _dispatch_some(
    connection: Connection,
    publisher: Publisher,
    namespace: str,
    name: str,
    job_ids: Collection[UUID] | None,
    *,
    wait: bool,
) -> _Turn:
    lane = lanes.lock(connection, namespace, name, wait=wait)
    if lane is None or lane.paused_at is not None:
        reservations.delete_dead(connection, namespace, name)
    if lane is not None:
        if lane.paused_at is not None:
            return _Turn()
        lane = rates.at_present(connection, lane)
        if lane.fair_by is None and job_ids is None:
            slots.clear_keys(connection, lane)
    retry_in: float | None = None
    # A lane that was removed has no limit.
    limit = None if lane is None else lane.max_running
    batch: Sequence[Job] = ()
    is_plain = lane is None or (lane.policy is None and lane.rate_limit is None)
    if is_plain:
        if lane is None or lane.fair_by is None:
            batch = slots.take_first(connection, namespace, name, slots=limit, limit=BATCH)
        else:
            batch = slots.take_turns(connection, lane, limit=BATCH, job_ids=job_ids)
    if lane is not None and not batch and not (is_plain and reservations.none(connection, lane)):
        batch, retry_in = _choose(connection, lane, job_ids)
    failed = lifecycle.publish(connection, publisher, batch, _urgency_of(lane))
    more = lifecycle.follow(connection, publisher, failed)
    if len(batch) == BATCH:
        more.add(Room(namespace, name))
    return _Turn(len(batch) - len(failed), retry_in, more)


def _urgency_of(lane: Lane | None) -> Urgency:
    if lane is None:
        return None
    return "soon" if lane.policy is not None else _urgency(lane.max_running)


def _urgency(slots: int | None) -> Urgency:
    """Returns how soon the ends of jobs matter to a lane with so many slots."""
    if slots is None:
        return None
    return "now" if slots <= _FEW_SLOTS else "soon"


def _choose(
    connection: Connection, lane: Lane, job_ids: Collection[UUID] | None
) -> tuple[Sequence[Job], float | None]:
    """Gives slots to the jobs that all limits of the lane admit.

    Returns the jobs, and the seconds after which the lane's rate may admit more.
    """
    reservations.delete_dead(connection, lane.namespace, lane.name)
    direct = reservations.live(connection, lane.namespace, lane.name)
    passed: set[str] = set()
    batch: Sequence[Job] = ()
    for _ in range(_TRIES):
        limiter = slots.limiter(connection, lane)
        denials = slots.admit_reservations(limiter, direct)
        granted = [key for key, denial in denials.items() if denial is None]
        chosen, in_turn, stops = _first(connection, lane, limiter, passed, job_ids)
        if slots.correct_keys(connection, lane, chosen):
            continue
        started = set(reservations.start(connection, granted))
        batch = slots.take(connection, chosen)
        slots.note_turns(connection, lane, in_turn, stops)
        if started:
            lanes.announce(connection, lane.namespace, lane.name)
        missed = set(chosen).difference(str(job.id) for job in batch)
        if batch or started or not (missed or granted):
            break
        passed |= missed
        direct = reservations.live(connection, lane.namespace, lane.name)
    _complain(lane, limiter.problem)
    retry_in = None
    if limiter.quota is not None and limiter.quota.denied:
        retry_in = rates.retry_in(connection, lane, limiter.quota.denied)
    return batch, retry_in


class _Chosen(NamedTuple):
    ids: list[str]
    #: Those that came by their keys' turns.
    in_turn: list[str]
    #: Where the next walks begin, by priority (see `slots.Line`).
    stops: dict[int, str]


def _first(
    connection: Connection,
    lane: Lane,
    limiter: Limiter,
    passed: Collection[str],
    job_ids: Collection[UUID] | None,
) -> _Chosen:
    """Chooses the jobs to dispatch, in order."""
    chosen = _Chosen([], [], {})
    if limiter.free == 0:
        return chosen
    for offset in range(0, _DEPTH, BATCH):
        limit = BATCH
        if not limiter.asks_each:
            limit = min(BATCH, len(passed) + _room(limiter))
        page, stops = slots.waiting_jobs(
            connection,
            lane,
            limit=limit,
            offset=offset,
            is_limited=not limiter.asks_each,
            job_ids=job_ids,
        )
        for job in page:
            if job.work.id in passed or limiter.denial(job.work, job.keys) is not None:
                if job.is_in_turn:  # its key stays the next
                    stops.pop(job.work.priority, None)
                continue
            chosen.ids.append(job.work.id)
            if job.is_in_turn:
                chosen.in_turn.append(job.work.id)
            limiter.admit(job.work, job.keys)
            if len(chosen.ids) == BATCH:
                break
        chosen.stops.update(stops)
        if len(chosen.ids) == BATCH or len(page) < BATCH or not limiter.asks_each:
            break
    return chosen


def _room(limiter: Limiter) -> int:
    """Returns how many jobs to read if all count the same: one too many, which a rate denies."""
    left = BATCH if limiter.free is None else limiter.free
    if limiter.quota is None or limiter.quota.unit is not None:
        return left
    return min(left, limiter.quota.left(None) + 1)


def _complain(lane: Lane, problem: str | None) -> None:
    """Logs a problem of the lane's policy once."""
    key = lane.namespace, lane.name
    if problem is None:
        _complaints.pop(key, None)
    elif _complaints.get(key) != problem:
        _complaints[key] = problem
        logger.error("Jobs of lane %r wait: %s", lane.name, problem)
