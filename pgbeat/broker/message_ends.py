"""Records how the messages of jobs ended, until the job's own row says so.

A message ends when a worker acknowledges it, when its queue is purged or deleted, and when it
expires. The transaction that deletes the message inserts a row here that says which. Rows are never
updated, so no lock held elsewhere can delay an acknowledgement.
"""

import os
from collections.abc import Collection
from typing import NamedTuple

from sqlalchemy import Connection, text

from pgbeat.database import sql
from pgbeat.database.prepared import Statement

_SQL = "message_ends.sql"
#: Deletes claimed messages: ids, consumer.
ACK = Statement("ack", sql.load(_SQL, "ack"))
#: Deletes claimed messages of jobs and records who took them: ids, consumer, worker.
ACCEPT = Statement("accept", sql.load(_SQL, "accept"))
#: The id of this process's worker, and the process's id.
_worker: tuple[int, int] | None = None


def accept_as(worker: int | None) -> None:
    """Sets the worker (an id in `pgbeat.workers`) for which this process accepts jobs."""
    global _worker
    _worker = None if worker is None else (worker, os.getpid())


def accepting_worker() -> int | None:
    """Returns that worker's id; `None` if this process records no executions."""
    return _worker[0] if _worker is not None and _worker[1] == os.getpid() else None


class End(NamedTuple):
    """The newest end of a job's messages."""

    how: str
    queue: str | None
    consumer_id: int | None
    worker_id: int | None


def note(how: str) -> str:
    """Returns SQL that records `how` the messages of a CTE `gone_messages` (job_id, queue) left."""
    return sql.load(_SQL, "note", how=how)


_NEWEST = text(
    """
    SELECT DISTINCT ON (job_id) job_id, how, queue, consumer_id, worker_id
      FROM pgbeat.message_ends WHERE job_id = ANY (CAST(:jobs AS uuid[]))
     ORDER BY job_id, id DESC
    """
)


def newest(connection: Connection, job_ids: Collection[str]) -> dict[str, End]:
    """Returns the newest end of each job's messages, by job id."""
    if not job_ids:
        return {}
    rows = connection.execute(_NEWEST, {"jobs": list(job_ids)})
    return {str(job): End(*rest) for job, *rest in rows}


_PAGE = text(
    """
    SELECT max(id) AS last, count(*) AS number FROM (
        SELECT id FROM pgbeat.message_ends WHERE id > :after ORDER BY id LIMIT :limit) AS page
    """
)


class EndsPage(NamedTuple):
    """The rows after one id, up to another."""

    after: int
    last: int


def page(connection: Connection, after: int, limit: int) -> tuple[EndsPage, int]:
    """Returns up to `limit` rows after an id, and where the next page begins; it may be the first.

    A job that snoozes, and others that wait, keep rows: no statement reads all of them at once.
    """
    row = connection.execute(_PAGE, {"after": after, "limit": limit}).one()
    last = row.last or after
    return EndsPage(after, last), last if row.number == limit else 0


_PRUNE = text(sql.load(_SQL, "prune"))


def prune(connection: Connection, page: EndsPage) -> None:
    """Deletes the rows that say nothing about the message that an unfinished job was sent as."""
    connection.execute(_PRUNE, page._asdict())


_FORGET = text("DELETE FROM pgbeat.message_ends WHERE job_id = ANY (CAST(:jobs AS uuid[]))")


def forget(connection: Connection, job_ids: Collection[str]) -> None:
    """Deletes the rows of jobs that the open transaction has ended."""
    if job_ids:
        connection.execute(_FORGET, {"jobs": list(job_ids)})
