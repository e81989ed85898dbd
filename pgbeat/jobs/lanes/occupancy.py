"""Occupancy: who has a lane's slots and why the others wait, for people to read."""

from datetime import datetime
from typing import NamedTuple

from sqlalchemy import Connection, text

from pgbeat.jobs.lanes import reservations, slots
from pgbeat.jobs.lanes.model import Lane


class SlotHolder(NamedTuple):
    """One that has a slot."""

    #: A job's id, or `direct/NUMBER`.
    id: str
    task: str
    #: The job's; of a direct execution, `running`.
    state: str
    #: The worker that runs it, or whoever asked for the direct execution.
    by: str | None
    #: When it got its slot, and when it began to run.
    since: datetime
    started_at: datetime | None
    is_direct: bool


_HOLDERS = text(
    """
    SELECT CAST(id AS text), task, state, worker, dispatched_at, started_at, false
      FROM pgbeat.jobs
     WHERE namespace = :namespace AND lane = :lane AND dispatched_at IS NOT NULL
       AND state IN ('pending', 'scheduled', 'running')
     UNION ALL
    SELECT 'direct/' || id, task, 'running', created_by, started_at, started_at, true
      FROM pgbeat.reservations
     WHERE namespace = :namespace AND lane = :lane AND started_at IS NOT NULL
     ORDER BY 5, 1 LIMIT :limit
    """
)


def holders(connection: Connection, lane: Lane, *, limit: int = 1000) -> list[SlotHolder]:
    """Who has a slot, the oldest first."""
    values = {"namespace": lane.namespace, "lane": lane.name, "limit": limit}
    return [SlotHolder(*row) for row in connection.execute(_HOLDERS, values)]


class InLine(NamedTuple):
    """One that waits."""

    id: str
    task: str
    priority: int
    created_by: str
    created_at: datetime
    is_direct: bool
    #: Why it gets no slot now; `None` for one that is about to.
    reason: str | None


def line(connection: Connection, lane: Lane, *, limit: int = 20) -> list[InLine]:
    """The first who wait, direct executions before jobs, each with the reason. In an open
    transaction; changes nothing."""
    limiter = slots.limiter(connection, lane)
    direct = reservations.live(connection, lane.namespace, lane.name)
    denials = slots.admit_reservations(limiter, direct)
    pause = "the lane is paused" if lane.paused_at is not None else None
    found = [
        InLine(r.work.id, r.task, 0, r.created_by, r.created_at, True, pause or denials[r.id])
        for r in direct
        if r.started_at is None
    ]
    for job in slots.waiting_jobs(connection, lane, limit=limit):
        work = job.work
        reason = pause or limiter.denial(work, job.keys)
        if reason is None:
            limiter.admit(work, job.keys)
        found.append(
            InLine(
                work.id, work.task, work.priority, work.created_by, job.created_at, False, reason
            )
        )
    return found[:limit]
