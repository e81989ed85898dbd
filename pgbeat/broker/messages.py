"""Messages: rows of the broker's tables, which are those of kombu's SQLAlchemy transport."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import psycopg
from sqlalchemy import Connection, text
from sqlalchemy.dialects import postgresql
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.elements import TextClause

from pgbeat.broker import claim_sql, message_copies, message_ends, ports
from pgbeat.database import connections
from pgbeat.database.connections import recordset
from pgbeat.database.prepared import Statement
from pgbeat.errors import SchemaError

_quote = postgresql.dialect().identifier_preparer.quote  # type: ignore[no-untyped-call]

#: Inserts a message `d` for a queue `q`, within the limits that the queue was declared with.
_INSERT = """
    INSERT INTO {message} (visible, payload, priority, available_at, expires_at, queue_id, job_id)
    SELECT d.available_at IS NULL OR d.available_at <= now(), d.payload,
           least(d.priority, coalesce(q.max_priority, 9)),
           CASE WHEN d.available_at > now() THEN d.available_at END,
           greatest(d.available_at, now()) + least(d.ttl, q.message_ttl) * interval '1 ms', q.id,
           d.job_id
"""
#: Joins the queues, each once, whose bindings match the message's exchange and routing key.
_BOUND = """
    JOIN {queue} q ON q.id IN (
        SELECT b.queue_id FROM {binding} b
         WHERE b.exchange = d.exchange AND CASE b.type WHEN 'fanout' THEN true
               WHEN 'topic' THEN d.routing_key ~ b.pattern
               ELSE b.routing_key = d.routing_key END)
"""


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
    #: How that job is made, if there is none yet: the value of `NEW_JOB_HEADER`.
    new_job: Mapping[str, Any] | None = None


#: The queue and the payload of a message that was taken back.
Withdrawn = tuple[str, str]
#: The header of messages that start a job; their task id is the job's id.
JOB_HEADER = "pgbeat_job"

#: The header of those whose end a lane or a group waits for: workers record it `soon` or `now`.
AWAITED_HEADER = "pgbeat_awaited"
#: The header of a message that only revokes its task: why.
REASON_HEADER = "pgbeat_revoked"
#: The header of a task that becomes a job as its message is written (`pgbeat.jobs.task_jobs`).
NEW_JOB_HEADER = "pgbeat_new_job"


@dataclass(frozen=True)
class BrokerTables:
    """The broker's tables, as the transport's options name them, and statements on them."""

    queue: str = "kombu_queue"
    message: str = "kombu_message"

    @classmethod
    def named(cls, options: Mapping[str, Any]) -> "BrokerTables":
        """Returns the tables that a transport's options name."""
        return cls(
            options.get("queue_tablename", cls.queue), options.get("message_tablename", cls.message)
        )

    def sql(self, template: str, **parts: str) -> str:
        """Returns a template of SQL with the tables' quoted names filled in.

        `parts` are templates for further placeholders; each may use those before it.
        """
        filled = {
            "queue": _quote(self.queue),
            "message": _quote(self.message),
            "dead": _quote(f"{self.message}_dead"),
            "exchange": _quote(f"{self.queue}_exchange"),
            "binding": _quote(f"{self.queue}_binding"),
            "consumer": _quote(f"{self.queue}_consumer"),
        }
        for name, part in parts.items():
            filled[name] = part.format(**filled)
        return template.format(**filled)

    def inserting(self, template: str, **parts: str) -> str:
        """Returns a template of SQL with the tables' names, parts, and an `{insert}`.

        That inserts messages `d` into queues `q`: what follows must be a FROM with both.
        """
        return self.sql(template, insert=_INSERT, **parts)

    def text(self, template: str, **parts: str) -> TextClause:
        """Returns the same as a statement for SQLAlchemy."""
        return _text(self, template, tuple(parts.items()))

    def exist(self, connection: Connection) -> bool:
        """Returns whether pgbeat's form of the tables is in the connection's search path."""
        return bool(connection.scalar(_ADOPTED, {"name": _quote(self.message)}))

    def require(self, connection: Connection) -> None:
        """Raises `SchemaError` if the database of a caller's transaction has no such tables."""
        if not self.exist(connection):
            raise SchemaError(
                "the transaction's database has no broker tables; run `pgbeat migrate` there, "
                "or use a session of the broker's database"
            )

    def adopt(self, connection: Connection) -> None:
        """Creates the tables, or adopts those of kombu's SQLAlchemy transport, once."""
        if not self.exist(connection):
            connection.execute(_ADOPT, {"queue": self.queue, "message": self.message})

    def missing_privileges(self, connection: Connection) -> list[str]:
        """Returns what the role lacks for publishing, such as `INSERT on kombu_message`."""
        needs = [
            (_quote(self.queue), "SELECT, INSERT", _MAY_USE_TABLE),
            (_quote(self.message), "SELECT, INSERT", _MAY_USE_TABLE),
            (_quote(f"{self.queue}_exchange"), "SELECT, INSERT", _MAY_USE_TABLE),
            (_quote(f"{self.queue}_binding"), "SELECT, INSERT", _MAY_USE_TABLE),
            ("queue_id_sequence", "USAGE", _MAY_USE_SEQUENCE),
            ("message_id_sequence", "USAGE", _MAY_USE_SEQUENCE),
        ]
        return [
            f"{privilege} on {name}"
            for name, privileges, query in needs
            for privilege in privileges.split(", ")
            if not connection.scalar(query, {"name": name, "privilege": privilege})
        ]

    def put(self, connection: Connection, batch: Sequence[Message]) -> int:
        """Writes messages in the order given, and the jobs that they make; creates missing queues.

        Returns how many rows the messages for exchanges became.
        """
        if any(m.new_job for m in batch):
            batch = ports.job_writer().write(connection, batch)
        direct = [m for m in batch if m.queue is not None]
        routed = [m for m in batch if m.queue is None]
        if direct and not message_copies.copy(connection, self, direct):
            missing = self._put(connection, direct)
            if missing:
                self.declare(connection, missing)
                self._put(connection, [m for m in direct if m.queue in missing])
        if routed:
            return connection.execute(
                self.text(_ROUTE, rows=":batch"), {"batch": recordset(routed)}
            ).rowcount
        return 0

    def _put(self, connection: Connection, batch: Sequence[Message]) -> set[str]:
        """Writes messages, except to missing queues, and returns the names of these."""
        raw = connections.driver(connection)
        if len(batch) == 1 and isinstance(raw, psycopg.Connection) and raw.autocommit:
            # In a connection of pgbeat's, since SQLAlchemy takes as long as the server.
            [m] = batch
            values = [m.queue, m.payload, m.priority, m.available_at, m.ttl, None, m.job_id]
            try:
                count = psycopg.RawCursor(raw).execute(self.put_one.sql, values).rowcount
            except psycopg.Error as error:
                raise DBAPIError.instance("put", None, error, psycopg.Error) from error
            return set() if count else {str(m.queue)}
        put = self.text(_PUT, rows=":batch", batch=_BATCH, insert=_INSERT, commit="true")
        return set(connection.scalars(put, {"batch": recordset(batch)}))

    def declare(self, connection: Connection, queues: Iterable[str]) -> None:
        """Creates the queues that are missing."""
        wanted = set(queues)
        missing = wanted - self.known(connection, wanted)
        if missing:
            connection.execute(self.text(_DECLARE), {"queues": sorted(missing)})

    def known(self, connection: Connection, queues: Iterable[str]) -> set[str]:
        """Returns those of the queues that exist."""
        return set(connection.scalars(self.text(_KNOWN), {"queues": sorted(queues)}))

    def withdraw(self, connection: Connection, jobs: Sequence[str]) -> dict[str, Withdrawn]:
        """Deletes the unclaimed messages of jobs, and returns them by the jobs' ids."""
        rows = connection.execute(self.text(_WITHDRAW), {"jobs": list(jobs)}) if jobs else ()
        return {str(job_id): (queue, payload) for job_id, queue, payload in rows}

    def delete(self, connection: Connection, jobs: Sequence[str]) -> None:
        """Deletes the messages of jobs, claimed or not."""
        if jobs:
            connection.execute(self.text(_DELETE), {"jobs": list(jobs)})

    def carrying(self, connection: Connection, jobs: Sequence[str]) -> set[str]:
        """Returns those of the jobs (ids) that have a message, claimed or not."""
        found = connection.scalars(self.text(_CARRYING), {"jobs": list(jobs)}) if jobs else ()
        return {str(job_id) for job_id in found}

    @cached_property
    def put_one(self) -> Statement:
        """Puts a message into a queue; no row if there is no such queue.

        Parameters: name, payload, priority, available_at, ttl, synchronous_commit (NULL: the
        session's), job_id.
        """
        return Statement("put", self.sql(_PUT_ONE))

    @cached_property
    def put_all(self) -> Statement:
        """Puts messages into queues; returns the names of queues that are missing.

        Parameters: the messages as JSON, synchronous_commit (NULL: the session's).
        """
        parts = {"rows": "$1", "batch": _BATCH, "insert": _INSERT}
        return Statement("put_all", self.sql(_PUT, **parts, commit=_COMMIT.format("$2")))

    @cached_property
    def route_one(self) -> Statement:
        """Puts a message to an exchange: as `put_one`, with the routing key at the end."""
        return Statement("route", self.sql(_ROUTE_ONE))

    @cached_property
    def claim(self) -> Statement:
        """Claims messages and acknowledges others.

        Parameters: queues, limit, consumer, acknowledged ids. Rows: id, queue_id, priority,
        deliveries, redelivered, payload; at the end one without an id, which has as its deliveries
        whether the consumer is alive (1) or may not claim (0), as its payload the seconds it took.
        """
        return self._claim("claim", claim_sql.FROM_THE_START, claim_sql.REGISTERED)

    @cached_property
    def claim_on(self) -> Statement:
        """Claims from where the last claim ended: the lowest id of each queue and priority."""
        return self._claim("claim_on", claim_sql.FROM_MARKS, claim_sql.REGISTERED)

    @cached_property
    def claim_leased(self) -> Statement:
        """Claims for a consumer that lives by a lease."""
        return self._claim("claim_leased", claim_sql.FROM_THE_START, claim_sql.LEASED)

    @cached_property
    def claim_leased_on(self) -> Statement:
        """Claims for such a consumer from where the last claim ended."""
        return self._claim("claim_leased_on", claim_sql.FROM_MARKS, claim_sql.LEASED)

    def _claim(self, name: str, low: str, alive: str) -> Statement:
        return Statement(name, self.sql(claim_sql.CLAIM, low=low, alive=alive))

    @cached_property
    def take(self) -> Statement:
        """Takes messages without acknowledgement; parameters as of `claim`."""
        return Statement("take", self.sql(claim_sql.TAKE, low=claim_sql.FROM_THE_START))

    @cached_property
    def ack(self) -> Statement:
        """Deletes claimed messages: ids, consumer."""
        return Statement("ack", self.sql(_ACK))

    @cached_property
    def accept(self) -> Statement:
        """Deletes claimed messages of jobs and records who took them: ids, consumer, worker."""
        return Statement("accept", self.sql(message_ends.ACCEPT))


@lru_cache(maxsize=1024)
def _text(tables: BrokerTables, template: str, parts: tuple[tuple[str, str], ...]) -> TextClause:
    return text(tables.sql(template, **dict(parts)))


_ADOPTED = text(
    "SELECT EXISTS (SELECT FROM pg_attribute "
    "WHERE attrelid = to_regclass(:name) AND attname = 'claimed_by')"
)
_ADOPT = text("SELECT pgbeat.adopt_broker(:queue, :message)")
_MAY_USE_TABLE = text("SELECT has_table_privilege(:name, :privilege)")
_MAY_USE_SEQUENCE = text("SELECT has_sequence_privilege(:name, :privilege)")

_KNOWN = "SELECT name FROM {queue} WHERE name = ANY (CAST(:queues AS text[]))"
_DECLARE = """
    INSERT INTO {queue} (name) SELECT name FROM unnest(CAST(:queues AS text[])) AS d (name)
        ON CONFLICT (name) DO NOTHING
"""
# What kombu's SQLAlchemy transport has delivered is neither visible, nor delayed, nor claimed.
_WITHDRAW = """
    WITH mine AS (
        SELECT id FROM {message} WHERE job_id = ANY (CAST(:jobs AS uuid[]))
           AND claimed_by IS NULL AND (visible OR available_at IS NOT NULL) FOR UPDATE SKIP LOCKED)
    DELETE FROM {message} m WHERE id IN (SELECT id FROM mine)
    RETURNING job_id, (SELECT name FROM {queue} q WHERE q.id = m.queue_id), payload
"""
_DELETE = "DELETE FROM {message} WHERE job_id = ANY (CAST(:jobs AS uuid[]))"
_CARRYING = """
    SELECT DISTINCT job_id FROM {message} WHERE job_id = ANY (CAST(:jobs AS uuid[]))
       AND (claimed_by IS NOT NULL OR visible OR available_at IS NOT NULL)
"""
_ACK = """
    DELETE FROM {message} WHERE id = ANY ($1::bigint[])
       AND claimed_by IS NOT DISTINCT FROM $2::integer
"""
# Returns the queues that are missing: by the same snapshot, whatever others do meanwhile.
_PUT = """
    WITH d AS MATERIALIZED (SELECT * {batch}),
    commits AS MATERIALIZED (SELECT {commit} AS so),
    put AS ({insert} FROM d JOIN {queue} q ON q.name = d.queue
             WHERE (SELECT so FROM commits) ORDER BY d.position)
    SELECT DISTINCT d.queue FROM d
     WHERE NOT EXISTS (SELECT FROM {queue} q WHERE q.name = d.queue)
"""
_BATCH = """
    FROM ROWS FROM (json_to_recordset(CAST({rows} AS json)) AS (
             queue text, payload text, priority integer, available_at timestamptz, ttl bigint,
             exchange text, routing_key text, job_id uuid))
         WITH ORDINALITY AS d (queue, payload, priority, available_at, ttl, exchange, routing_key,
             job_id, position)
"""
_ROUTE = _INSERT + _BATCH + _BOUND + "ORDER BY d.position"
#: Evaluated once, before the commit that it is for.
_COMMIT = "({0}::text IS NULL OR set_config('synchronous_commit', {0}, true) IS NOT NULL)"
_PUT_ONE = f"""{_INSERT}
    FROM {{queue}} q, (VALUES ($2::text, $3::integer, $4::timestamptz, $5::bigint, $7::uuid))
         AS d (payload, priority, available_at, ttl, job_id)
    WHERE q.name = $1 AND {_COMMIT.format("$6")}
"""
_ROUTE_ONE = f"""{_INSERT} FROM
    (VALUES ($1::text, $8::text, $2::text, $3::integer, $4::timestamptz, $5::bigint, $7::uuid))
    AS d (exchange, routing_key, payload, priority, available_at, ttl, job_id)
    {_BOUND} WHERE {_COMMIT.format("$6")}
"""
