"""Starts batches, and finds their members: jobs that one call of their task runs together.

A member waits as a pending job whose message is kept in its row. The leading beat sends the message
of one member of each batch that is full, or whose oldest member has waited long enough. The run of
that one takes along others that wait. So a member belongs to no batch before it runs: what happens
to one that waits, or to the one whose message is on its way, concerns no other.
"""

from collections.abc import Collection
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import Connection, text

from pgbeat.database import sql
from pgbeat.jobs.policy.batches import BATCH
from pgbeat.jobs.rows.model import COLUMNS, Job

_TO_START, _TAKE, _OWN = (
    text(sql.load("batch_members.sql", name, columns=COLUMNS))
    for name in ("to_start", "take", "own")
)


def to_start(connection: Connection, namespace: str, *, limit: int = 500) -> list[Job]:
    """Returns a member of each batch that starts now, to be published."""
    rows = connection.execute(_TO_START, {"namespace": namespace, "limit": limit})
    return [Job(*row) for row in rows]


def take(connection: Connection, job_id: str) -> tuple[Job | None, list[Job]]:
    """Locks a job and the members that run together with it, and returns it and them, in order.

    The job is `None`, and has no others, if it was not sent as a member. Waits for its lock alone.
    """
    row = connection.execute(_OWN, {"id": job_id}).one_or_none()
    if row is None:
        return None, []
    own = Job(*row)
    batch = (own.message or {})[BATCH]
    values = {"id": job_id, "limit": int(batch["size"]) - 1}
    return own, [Job(*row) for row in connection.execute(_TAKE, values)]


_UNSENT = text(sql.load("batch_members.sql", "unsent"))


def unsent(connection: Connection, job_ids: Collection[str]) -> set[str]:
    """Returns those of the jobs that are members of batches, and have no message on its way."""
    rows = connection.scalars(_UNSENT, {"ids": list(job_ids)}) if job_ids else ()
    return {str(job_id) for job_id in rows}


class WaitingBatch(NamedTuple):
    """The members that wait with the same key."""

    #: How many they are, and how many start at once.
    members: int
    size: int
    #: When they start in any case.
    due_at: datetime


_WAITING = text(sql.load("batch_members.sql", "waiting"))


def waiting(connection: Connection, job: Job) -> WaitingBatch | None:
    """Returns with what a job waits for its batch; `None` if it doesn't."""
    batch = (job.message or {}).get(BATCH)
    if batch is None or job.state != "pending" or job.dispatched_at is not None:
        return None
    same = {"namespace": job.namespace, "task": job.task, "queue": job.queue}
    values = {**same, "key": batch["key"], "after": batch["after"]}
    members, due_at = connection.execute(_WAITING, values).one()
    return None if due_at is None else WaitingBatch(members, batch["size"], due_at)
