"""Allotment: a lane's free slots go to the first of its waiting line, and their messages with them.

Whoever frees a slot, or puts something in a lane, calls `allot` after its commit.
"""

import logging
from collections.abc import Collection, Iterable, Sequence, Set
from functools import partial
from typing import NamedTuple

from sqlalchemy import Connection

from pgbeat.access.unit_of_work import UnitOfWork
from pgbeat.broker.publishing.publisher import Publisher
from pgbeat.database import connections
from pgbeat.jobs import lifecycle
from pgbeat.jobs.lanes import model as lanes
from pgbeat.jobs.lanes import reservations, slots
from pgbeat.jobs.lanes.limiter import Gate
from pgbeat.jobs.lanes.model import Lane
from pgbeat.jobs.model import Job

logger = logging.getLogger("pgbeat.lanes")

#: Jobs handed out in one transaction, or read at once, at most.
BATCH = 200
#: Slots of a lane that is not idle as long as its workers tell of ends as they tell of others'.
ROOMY = 64
#: How far down its line a lane is looked at, for jobs that its policy lets pass others.
DEPTH = 2000
#: How often jobs that somebody holds locked are passed over for the next.
_TRIES = 3
#: What is wrong with lanes' policies, as it was logged.
_complaints: dict[tuple[str, str], str] = {}


class Allotted(NamedTuple):
    """What became of it."""

    #: Jobs that got a slot.
    jobs: int
    #: Seconds after which to look again, for a rate; `None`: the end of a job will tell.
    again: float | None


def allot(
    connection: Connection, publisher: Publisher, namespace: str, lane: str, *, wait: bool = True
) -> Allotted:
    """Hands the lane's free slots to direct executions that wait for one, then to its jobs.

    `connection` is in autocommit mode. Others who allot the same lane wait for each other, and only
    jobs that nobody holds locked are handed out. Raises what publishing raises where the broker is
    away; nothing is handed out then. Without `wait`, raises the error of a lock timeout where
    another transaction has locked the lane.
    """
    handed, again = 0, None
    todo = {(namespace, lane)}
    while todo:
        current = todo.pop()
        if not lanes.needs_look(connection, *current):
            continue
        try:
            with connections.transaction(connection):
                turn = _hand_out(connection, publisher, *current, wait=wait)
        except BaseException:
            publisher.clear()
            raise
        handed += turn.jobs
        todo |= turn.lanes
        if current == (namespace, lane):
            again = turn.again
    return Allotted(handed, again)


def after_commit(unit: UnitOfWork, changed: Iterable[tuple[str, str]]) -> None:
    """Has lanes' free slots dispatched once the unit is committed: here if it has the app, else by
    the leading beat, as where the transaction is the caller's."""
    for namespace, name in changed:
        if unit.is_callers:
            lanes.announce(unit.connection, namespace, name)
        else:
            unit.after_commit(partial(_dispatch, unit, namespace, name))


def _dispatch(unit: UnitOfWork, namespace: str, name: str) -> None:
    if unit.app is not None:
        allot(unit.connection, unit.publisher, namespace, name)


class _Turn(NamedTuple):
    jobs: int = 0
    again: float | None = None
    #: Lanes that are to be looked at because of it.
    lanes: Set[tuple[str, str]] = frozenset()


def _hand_out(
    connection: Connection, publisher: Publisher, namespace: str, name: str, *, wait: bool
) -> _Turn:
    lane = lanes.lock(connection, namespace, name, wait=wait)
    if lane is not None and lane.paused_at is not None:
        reservations.delete_dead(connection, namespace, name)
        return _Turn()
    again: float | None = None
    # Where the lane was removed nothing limits what is left in it.
    limit = None if lane is None else lane.max_running
    batch: Sequence[Job] = ()
    if lane is None or (lane.policy is None and lane.rate_limit is None):
        batch = slots.take_first(connection, namespace, name, slots=limit, limit=BATCH)
    if not batch and lane is not None:
        batch, again = _choose(connection, lane)
    failed = lifecycle.hand_out(connection, publisher, batch, _is_tight(lane))
    more = lifecycle.follow(connection, publisher, failed)
    if len(batch) == BATCH:
        more.add((namespace, name))
    return _Turn(len(batch) - len(failed), again, more)


def _is_tight(lane: Lane | None) -> bool:
    """Whether the next of a lane wait for the end of each that has a slot."""
    if lane is None:
        return False
    return lane.policy is not None or (lane.max_running is not None and lane.max_running < ROOMY)


def _choose(connection: Connection, lane: Lane) -> tuple[Sequence[Job], float | None]:
    """Gives slots to those whom all of the lane's limits allow one; seconds after which to look
    again."""
    reservations.delete_dead(connection, lane.namespace, lane.name)
    direct = reservations.live(connection, lane.namespace, lane.name)
    passed: set[str] = set()
    for _ in range(_TRIES):
        gate = slots.gate(connection, lane)
        refusals = slots.enter_direct(gate, direct)
        granted = [key for key, refusal in refusals.items() if refusal is None]
        chosen = _first(connection, lane, gate, passed)
        started = set(reservations.start(connection, granted))
        batch = slots.take(connection, chosen)
        if started:
            lanes.announce(connection, lane.namespace, lane.name)
        missed = set(chosen).difference(str(job.id) for job in batch)
        if batch or started or not (missed or granted):
            break
        passed |= missed
        direct = reservations.live(connection, lane.namespace, lane.name)
    _complain(lane, gate.problem)
    again = None
    if gate.quota is not None and gate.quota.refused:
        again = slots.again(connection, lane, gate.quota.refused)
    return batch, again


def _first(connection: Connection, lane: Lane, gate: Gate, passed: Collection[str]) -> list[str]:
    """The jobs that may go, the first first."""
    chosen: list[str] = []
    for offset in range(0, DEPTH, BATCH):
        limit = BATCH
        if not gate.asks_each:
            limit = min(BATCH, len(passed) + _room(gate))
        page = slots.line(connection, lane, limit=limit, offset=offset) if gate.free != 0 else []
        for job in page:
            if job.work.id in passed or gate.refusal(job.work, job.keys) is not None:
                continue
            chosen.append(job.work.id)
            gate.enter(job.work, job.keys)
            if len(chosen) == BATCH:
                return chosen
        if len(page) < BATCH or not gate.asks_each:
            break
    return chosen


def _room(gate: Gate) -> int:
    """How many may go where each counts the same, and one more to be refused for the rate."""
    left = BATCH if gate.free is None else gate.free
    return left if gate.quota is None else min(left, gate.quota.left(None) + 1)


def _complain(lane: Lane, problem: str | None) -> None:
    """Says once what is wrong with the lane's policy."""
    key = lane.namespace, lane.name
    if problem is None:
        _complaints.pop(key, None)
    elif _complaints.get(key) != problem:
        _complaints[key] = problem
        logger.error("Jobs of lane %r wait: %s", lane.name, problem)
