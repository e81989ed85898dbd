"""Messages: rows of the broker's tables, which are those of kombu's SQLAlchemy transport."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import psycopg
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from pgbeat.broker import message_copies, ports
from pgbeat.database import connections, sql
from pgbeat.database.connections import recordset
from pgbeat.database.prepared import Statement


class NewJob(dict[str, Any]):
    """How a message's job is made: the value of `NEW_JOB_HEADER`.

    Its type says that pgbeat made it: what comes as JSON, such as a signature's options, can't have
    it.
    """

    #: Equal for those that make jobs alike.
    key: Hashable = None


class Message(NamedTuple):
    """A message to put into a queue or, if `queue` is `None`, into those bound to `exchange`."""

    queue: str | None
    payload: str
    priority: int = 0
    #: When consumers may claim it (ISO 8601); `None` for now.
    available_at: str | None = None
    #: Milliseconds that it lives, once available.
    ttl: int | None = None
    exchange: str = ""
    routing_key: str = ""
    #: The job that it starts, if any.
    job_id: str | None = None
    #: How to make that job, if it doesn't exist yet.
    new_job: NewJob | None = None


#: The queue and the payload of a message that was taken back.
Withdrawn = tuple[str, str]
#: The header of messages that start a job; their task id is the job's id.
JOB_HEADER = "pgbeat_job"

#: The header of those whose end a lane or a group waits for: workers record it `soon` or `now`.
AWAITED_HEADER = "pgbeat_awaited"
#: The header of a message that only revokes its task: why.
REASON_HEADER = "pgbeat_revoked"
#: The header of a task that becomes a job as its message is written
#: (`pgbeat.jobs.writing.task_jobs`).
NEW_JOB_HEADER = "pgbeat_new_job"
#: Where a message's `delivery_info` has the id of the consumer that claimed it.
CONSUMER = "consumer_id"


def consumer_of(request: Any) -> int | None:
    """Returns the id of the consumer that claimed a task's message, if it is to acknowledge it."""
    properties = request.properties or {}
    consumer: int | None = (properties.get("delivery_info") or {}).get(CONSUMER)
    return consumer


def job_claim(request: Any) -> dict[str, int]:
    """Returns which consumer has claimed a job's message, by the job's id; empty without one."""
    consumer = consumer_of(request) if getattr(request, JOB_HEADER, None) else None
    return {} if consumer is None else {str(request.id): consumer}


def runs_again(request: Any) -> bool:
    """Returns whether a task's message was delivered before, or is that of Celery's retry."""
    return bool(request.retries or (request.delivery_info or {}).get("redelivered"))


#: Creates the queues among these that are missing.
Create = Callable[[Connection, Iterable[str]], None]


def declare(connection: Connection, queues: Iterable[str]) -> None:
    """Creates the queues that are missing."""
    wanted = set(queues)
    missing = wanted - known(connection, wanted)
    if missing:
        connection.execute(_DECLARE, {"queues": sorted(missing)})


def known(connection: Connection, queues: Iterable[str]) -> set[str]:
    """Returns those of the queues that exist."""
    return set(connection.scalars(_KNOWN, {"queues": sorted(queues)}))


def put(connection: Connection, batch: Sequence[Message], create: Create = declare) -> int:
    """Writes messages in the order given, and the jobs that they make; creates missing queues.

    Returns how many rows the messages for exchanges became.
    """
    if any(m.new_job for m in batch):
        batch = ports.job_writer().write(connection, batch)
    direct = [m for m in batch if m.queue is not None]
    routed = [m for m in batch if m.queue is None]
    if direct and not message_copies.copy(connection, direct):
        missing = _put(connection, direct)
        if missing:
            create(connection, missing)
            _put(connection, [m for m in direct if m.queue in missing])
    if routed:
        return connection.execute(_ROUTE, {"batch": recordset(routed)}).rowcount
    return 0


def _put(connection: Connection, batch: Sequence[Message]) -> set[str]:
    """Writes messages, except to missing queues, and returns the names of these."""
    raw = connections.driver(connection)
    if len(batch) == 1 and isinstance(raw, psycopg.Connection) and raw.autocommit:
        # In a connection of pgbeat's, since SQLAlchemy takes as long as the server.
        [m] = batch
        values = [m.queue, m.payload, m.priority, m.available_at, m.ttl, None, m.job_id]
        try:
            count = psycopg.RawCursor(raw).execute(PUT_ONE.sql, values).rowcount
        except psycopg.Error as error:
            raise DBAPIError.instance("put", None, error, psycopg.Error) from error
        return set() if count else {str(m.queue)}
    return set(connection.scalars(_PUT, {"batch": recordset(batch)}))


def withdraw(connection: Connection, jobs: Sequence[str]) -> dict[str, Withdrawn]:
    """Deletes the unclaimed messages of jobs, and returns them by the jobs' ids."""
    rows = connection.execute(_WITHDRAW, {"jobs": list(jobs)}) if jobs else ()
    return {str(job_id): (queue, payload) for job_id, queue, payload in rows}


def delete(connection: Connection, jobs: Sequence[str]) -> None:
    """Deletes the messages of jobs, claimed or not."""
    if jobs:
        connection.execute(_DELETE, {"jobs": list(jobs)})


def carrying(connection: Connection, jobs: Sequence[str]) -> set[str]:
    """Returns those of the jobs (ids) that have a message, claimed or not."""
    carried = connection.scalars(_CARRYING, {"jobs": list(jobs)}) if jobs else ()
    return {str(job_id) for job_id in carried}


def payload(connection: Connection, message: int, job: str) -> str | None:
    """Returns the payload of a job's message; `None` if it is gone."""
    found: str | None = connection.scalar(_PAYLOAD, {"id": message, "job": job})
    return found


def passed_on(connection: Connection, claims: Mapping[str, int]) -> set[str]:
    """Returns the jobs whose message is, will be, or was last somebody else's.

    `claims` are the consumers that had claimed them, by job id. The others stay with them until the
    transaction ends. Who changes the jobs must have locked them.
    """
    if not claims:
        return set()
    connection.execute(_HOLD, {"jobs": list(claims)})
    values = {"jobs": list(claims), "consumers": list(claims.values())}
    return {str(job_id) for job_id in connection.scalars(_PASSED_ON, values)}


_SQL = "messages.sql"
#: Inserts messages `d` into queues `q`: what follows must be a FROM with both.
INSERT = sql.load(_SQL, "insert")
#: Puts a message into a queue; no row if there is no such queue.
#:
#: Parameters: name, payload, priority, available_at, ttl, synchronous_commit (NULL: the
#: session's), job_id.
PUT_ONE = Statement("put", sql.load(_SQL, "put_one"))
_COMMIT = "($2::text IS NULL OR set_config('synchronous_commit', $2, true) IS NOT NULL)"
#: Puts messages into queues; returns the names of queues that are missing.
#:
#: Parameters: the messages as JSON, synchronous_commit (NULL: the session's).
PUT_ALL = Statement("put_all", sql.load(_SQL, "put", rows="$1", commit=_COMMIT))
#: Puts a message to an exchange: as `PUT_ONE`, with the routing key at the end.
ROUTE_ONE = Statement("route", sql.load(_SQL, "route_one"))

_PUT = text(sql.load(_SQL, "put", rows=":batch", commit="true"))
_ROUTE = text(sql.load(_SQL, "route", rows=":batch"))
_KNOWN = text("SELECT name FROM kombu_queue WHERE name = ANY (CAST(:queues AS text[]))")
_DECLARE = text(
    "INSERT INTO kombu_queue (name) SELECT name FROM unnest(CAST(:queues AS text[])) AS d (name) "
    "ON CONFLICT (name) DO NOTHING"
)
_WITHDRAW = text(sql.load(_SQL, "withdraw"))
_DELETE = text("DELETE FROM kombu_message WHERE job_id = ANY (CAST(:jobs AS uuid[]))")
_PAYLOAD = text("SELECT payload FROM kombu_message WHERE id = :id AND job_id = CAST(:job AS uuid)")
_HOLD = text("SELECT FROM kombu_message WHERE job_id = ANY (CAST(:jobs AS uuid[])) FOR SHARE")
_PASSED_ON = text(sql.load(_SQL, "passed_on"))
_CARRYING = text(
    "SELECT DISTINCT job_id FROM kombu_message WHERE job_id = ANY (CAST(:jobs AS uuid[])) "
    "AND (claimed_by IS NOT NULL OR visible OR available_at IS NOT NULL)"
)
