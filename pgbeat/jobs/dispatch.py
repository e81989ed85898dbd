"""Dispatches the first waiting jobs of a lane: gives them its free slots, and publishes them.

What frees a slot, or puts something in a lane, calls `dispatch_lane` after its commit.
"""

import logging
from collections.abc import Collection, Iterable, Sequence, Set
from functools import partial
from typing import NamedTuple

from sqlalchemy import Connection

from pgbeat.broker.publishing.publisher import Publisher
from pgbeat.broker.publishing.unit_of_work import UnitOfWork
from pgbeat.database import connections
from pgbeat.jobs import lifecycle
from pgbeat.jobs.lanes import model as lanes
from pgbeat.jobs.lanes import reservations, slots
from pgbeat.jobs.lanes.limiter import Limiter
from pgbeat.jobs.lanes.model import Lane
from pgbeat.jobs.model import Job

logger = logging.getLogger("pgbeat.lanes")

#: Jobs dispatched in one transaction, or read at once, at most.
BATCH = 200
#: Slots from which on a lane stays busy though its workers report ends in batches.
ROOMY = 64
#: How far down its line a lane is looked at, for jobs that its policy lets pass others.
DEPTH = 2000
#: How often jobs that are locked are passed over for the next.
_TRIES = 3
#: What is wrong with lanes' policies, as it was logged.
_complaints: dict[tuple[str, str], str] = {}


class Dispatched(NamedTuple):
    """What a dispatch did."""

    #: Jobs that got a slot.
    jobs: int
    #: Seconds after which the rate allows more; `None` where only the end of a job does.
    retry_in: float | None


def dispatch_lane(
    connection: Connection, publisher: Publisher, namespace: str, lane: str, *, wait: bool = True
) -> Dispatched:
    """Gives the lane's free slots to direct executions that wait for one, then to its jobs.

    `connection` is in autocommit mode. Transactions that dispatch the same lane wait for each
    other, and jobs that another transaction has locked are passed over. Raises what publishing
    raises where the broker is away; nothing is dispatched then. Without `wait`, raises the error of
    a lock timeout where another transaction has locked the lane.
    """
    count, retry_in = 0, None
    todo = {(namespace, lane)}
    while todo:
        current = todo.pop()
        if not lanes.has_waiting(connection, *current):
            continue
        try:
            with connections.transaction(connection):
                turn = _dispatch_some(connection, publisher, *current, wait=wait)
        except BaseException:
            publisher.clear()
            raise
        count += turn.jobs
        todo |= turn.lanes
        if current == (namespace, lane):
            retry_in = turn.retry_in
    return Dispatched(count, retry_in)


def after_commit(unit: UnitOfWork, changed: Iterable[tuple[str, str]]) -> None:
    """Dispatches lanes once the unit is committed: here if it has the app.

    Otherwise the leading beat does, and where the transaction is the caller's.
    """
    for namespace, name in changed:
        if unit.is_callers:
            lanes.announce(unit.connection, namespace, name)
        else:
            unit.after_commit(partial(_dispatch_if_app, unit, namespace, name))


def _dispatch_if_app(unit: UnitOfWork, namespace: str, name: str) -> None:
    if unit.app is not None:
        dispatch_lane(unit.connection, unit.publisher, namespace, name)


class _Turn(NamedTuple):
    jobs: int = 0
    retry_in: float | None = None
    #: Lanes to dispatch because of it.
    lanes: Set[tuple[str, str]] = frozenset()


def _dispatch_some(
    connection: Connection, publisher: Publisher, namespace: str, name: str, *, wait: bool
) -> _Turn:
    lane = lanes.lock(connection, namespace, name, wait=wait)
    if lane is not None and lane.paused_at is not None:
        reservations.delete_dead(connection, namespace, name)
        return _Turn()
    retry_in: float | None = None
    # Nothing limits what is left in a lane that was removed.
    limit = None if lane is None else lane.max_running
    batch: Sequence[Job] = ()
    if lane is None or (lane.policy is None and lane.rate_limit is None):
        batch = slots.take_first(connection, namespace, name, slots=limit, limit=BATCH)
    if not batch and lane is not None:
        batch, retry_in = _choose(connection, lane)
    failed = lifecycle.publish(connection, publisher, batch, _is_tight(lane))
    more = lifecycle.follow(connection, publisher, failed)
    if len(batch) == BATCH:
        more.add((namespace, name))
    return _Turn(len(batch) - len(failed), retry_in, more)


def _is_tight(lane: Lane | None) -> bool:
    """Whether the next of a lane wait for the end of each that has a slot."""
    if lane is None:
        return False
    return lane.policy is not None or (lane.max_running is not None and lane.max_running < ROOMY)


def _choose(connection: Connection, lane: Lane) -> tuple[Sequence[Job], float | None]:
    """Gives slots to the jobs that all of the lane's limits admit.

    Returns them, and after how many seconds its rate may admit more.
    """
    reservations.delete_dead(connection, lane.namespace, lane.name)
    direct = reservations.live(connection, lane.namespace, lane.name)
    passed: set[str] = set()
    for _ in range(_TRIES):
        limiter = slots.limiter(connection, lane)
        denials = slots.admit_reservations(limiter, direct)
        granted = [key for key, denial in denials.items() if denial is None]
        chosen = _first(connection, lane, limiter, passed)
        started = set(reservations.start(connection, granted))
        batch = slots.take(connection, chosen)
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
        retry_in = slots.retry_in(connection, lane, limiter.quota.denied)
    return batch, retry_in


def _first(
    connection: Connection, lane: Lane, limiter: Limiter, passed: Collection[str]
) -> list[str]:
    """Returns the ids of the jobs that may go, in order."""
    chosen: list[str] = []
    for offset in range(0, DEPTH, BATCH):
        limit = BATCH
        if not limiter.asks_each:
            limit = min(BATCH, len(passed) + _room(limiter))
        page = (
            slots.waiting_jobs(connection, lane, limit=limit, offset=offset)
            if limiter.free != 0
            else []
        )
        for job in page:
            if job.work.id in passed or limiter.denial(job.work, job.keys) is not None:
                continue
            chosen.append(job.work.id)
            limiter.admit(job.work, job.keys)
            if len(chosen) == BATCH:
                return chosen
        if len(page) < BATCH or not limiter.asks_each:
            break
    return chosen


def _room(limiter: Limiter) -> int:
    """Returns how many jobs to read where each counts the same: one more is denied by the rate."""
    left = BATCH if limiter.free is None else limiter.free
    return left if limiter.quota is None else min(left, limiter.quota.left(None) + 1)


def _complain(lane: Lane, problem: str | None) -> None:
    """Logs once what is wrong with the lane's policy."""
    key = lane.namespace, lane.name
    if problem is None:
        _complaints.pop(key, None)
    elif _complaints.get(key) != problem:
        _complaints[key] = problem
        logger.error("Jobs of lane %r wait: %s", lane.name, problem)
