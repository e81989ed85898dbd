"""Shows which jobs and direct executions have a lane's slots, and why the others wait."""

from datetime import datetime
from typing import NamedTuple

from sqlalchemy import Connection, text

from pgbeat.database import sql
from pgbeat.jobs.lanes import reservations, slots
from pgbeat.jobs.lanes.model import HAS_SLOT, Lane


class SlotHolder(NamedTuple):
    """A job or a direct execution that has a slot."""

    #: The job's id, or `direct/NUMBER`.
    id: str
    task: str
    #: The job's state; `running` for a direct execution.
    state: str
    #: The job's worker, or the actor of the direct execution.
    by: str | None
    #: When it got its slot, and when it began to run.
    since: datetime
    started_at: datetime | None
    is_direct: bool


_HOLDERS = text(sql.load("occupancy.sql", "holders", has_slot=HAS_SLOT))


def holders(connection: Connection, lane: Lane, *, limit: int = 1000) -> list[SlotHolder]:
    """Returns the holders of the lane's slots, the oldest first."""
    rows = connection.execute(_HOLDERS, {**lane.identity, "limit": limit})
    return [SlotHolder(*row) for row in rows]


class InLine(NamedTuple):
    """A job or a direct execution that waits."""

    id: str
    task: str
    priority: int
    created_by: str
    created_at: datetime
    is_direct: bool
    #: Why it gets no slot now; `None` if it is about to get one.
    reason: str | None
    #: With which it takes turns in a fair lane.
    fair_key: str = ""


def line(connection: Connection, lane: Lane, *, limit: int = 20) -> list[InLine]:
    """Returns the first in line, direct executions before jobs, each with the reason why it waits.

    A transaction must be open. Changes nothing.
    """
    limiter = slots.limiter(connection, lane)
    direct = reservations.live(connection, lane.namespace, lane.name)
    denials = slots.admit_reservations(limiter, direct)
    pause = "the lane is paused" if lane.paused_at is not None else None
    entries = [
        InLine(r.work.id, r.task, 0, r.created_by, r.created_at, True, pause or denials[r.id])
        for r in direct
        if r.started_at is None
    ]
    for job in slots.waiting_jobs(connection, lane, limit=limit).jobs:
        work = job.work
        reason = pause or limiter.denial(work, job.keys)
        if reason is None:
            limiter.admit(work, job.keys)
        entries.append(
            InLine(
                id=work.id,
                task=work.task,
                priority=work.priority,
                created_by=work.created_by,
                created_at=job.created_at,
                is_direct=False,
                reason=reason,
                fair_key=work.fair_key,
            )
        )
    return entries[:limit]
