"""Starts batches, and finds their members: jobs that one call of their task runs together.

A member waits as a pending job whose message is kept in its row. The leading beat sends the message
of one member of each batch that is full, or whose oldest member has waited long enough. The run of
that one takes along others that wait. So a member belongs to no batch before it runs: what happens
to one that waits, or to the one whose message is on its way, concerns no other.
"""

import json
import math
import time
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import Connection, text

from pgbeat.database import sql
from pgbeat.jobs.policy.batches import BATCH
from pgbeat.jobs.rows.model import COLUMNS, Job

#: Members that one look reads, unless their batches are larger than a fourth of that.
PAGE = 2000
#: Seconds between two looks while there are more members, or one is locked.
_PAUSE = 0.1
#: What tells in SQL that a job `j` is a member which waits, or whose message is on its way, and
#: its namespace.
IS_MEMBER = sql.load("batch_members.sql", "is_member")
NAMESPACE = sql.load("batch_members.sql", "namespace")

_PAGE, _START, _TAKE, _OWN = (
    text(sql.load("batch_members.sql", name, columns=COLUMNS))
    for name in ("page", "start", "take", "own")
)
_FIRST = {"task": "", "queue": "", "key": ""}


class BatchStarter:
    """Starts the batches of a namespace. Each look reads a page of their members, in turn."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self.forget()

    def forget(self) -> None:
        """Begins with the first page again."""
        #: The last key that was read, the largest batch that was seen, and the next to start.
        self._after, self._largest, self._soonest = _FIRST, 0, math.inf
        #: When to look again, though no member comes (`time.monotonic()`).
        self.look_at = 0.0

    def start(self, connection: Connection) -> list[Job]:
        """Returns a member of each batch of the page that starts now, to be published."""
        limit = max(PAGE, 4 * self._largest)
        values = {"namespace": self._namespace, **self._after, "limit": limit}
        page = connection.execute(_PAGE, values).one()
        rows = connection.execute(_START, {"ids": page.ids}).all() if page.ids else ()
        now = time.monotonic()
        if page.seconds is not None:
            self._soonest = min(self._soonest, now + page.seconds)
        if len(rows) < len(page.ids or ()):
            self._soonest = now + _PAUSE
        self._largest = max(self._largest, page.size or 0)
        if page.task is None:  # that was the last page
            self.look_at, self._after, self._soonest = self._soonest, _FIRST, math.inf
        else:
            self.look_at = now + _PAUSE
            self._after = {"task": page.task, "queue": page.queue, "key": page.key}
        return [Job(*row) for row in rows]


def take(
    connection: Connection, job_id: str, *, most: int | None = None
) -> tuple[Job | None, list[Job]]:
    """Locks a job and the members that run together with it, and returns it and them, in order.

    They are as many as the job was sent with, or `most` if that is less. The job is `None`, and has
    no others, if it was not sent as a member. Waits for its lock alone.
    """
    row = connection.execute(_OWN, {"id": job_id}).one_or_none()
    if row is None:
        return None, []
    own = Job(*row)
    batch = (own.message or {})[BATCH]
    size = int(batch["size"])
    limit = (size if most is None else min(size, most)) - 1
    values = {**_alike(own, batch), "id": job_id, "limit": limit}
    return own, [Job(*row) for row in connection.execute(_TAKE, values)]


def _alike(job: Job, batch: Mapping[str, Any]) -> dict[str, str]:
    """Returns what the members of a job's batch share."""
    key = str(batch["key"])
    return {"namespace": job.namespace, "task": job.task, "queue": job.queue or "", "key": key}


_WRITTEN_WITH = text(sql.load("batch_members.sql", "written_with"))


def stamps(
    connection: Connection, namespace: str, names: Collection[str]
) -> list[tuple[UUID, dict[str, Any]]]:
    """Returns members that wait, with their stamps: all those that have one of these names."""
    values = {"namespace": namespace, "texts": list(map(json.dumps, names))}
    rows = connection.execute(_WRITTEN_WITH, values)
    return [(row.id, json.loads(row.payload)["headers"].get("stamps") or {}) for row in rows]


_HALVE = text(sql.load("batch_members.sql", "halve"))


def halve(connection: Connection, execution_ids: Collection[UUID]) -> set[str]:
    """Makes members of batches that were killed run again in batches of half the size.

    Takes running executions. Returns the jobs of those that are such members, and have no message
    on its way.
    """
    rows = connection.scalars(_HALVE, {"ids": list(execution_ids)}) if execution_ids else ()
    return {str(job_id) for job_id in rows}


class WaitingBatch(NamedTuple):
    """The members that wait with the same key."""

    #: How many they are, and how many start at once.
    members: int
    size: int
    #: When they start in any case.
    due_at: datetime


_BATCH = text("SELECT message -> 'batch' FROM pgbeat.unfinished_jobs WHERE id = :id")
_WAITING = text(sql.load("batch_members.sql", "waiting"))


def waiting(connection: Connection, job: Job) -> WaitingBatch | None:
    """Returns with what a job waits for its batch; `None` if it doesn't.

    The job may be `brief` or masked: its message is read.
    """
    is_waiting = job.state == "pending" and job.dispatched_at is None
    batch = connection.scalar(_BATCH, {"id": str(job.id)}) if is_waiting else None
    if batch is None:
        return None
    values = {**_alike(job, batch), "after": batch["after"]}
    members, due_at = connection.execute(_WAITING, values).one()
    return None if due_at is None else WaitingBatch(members, batch["size"], due_at)
