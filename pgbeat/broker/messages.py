"""Messages: rows of the broker's tables, which are those of kombu's SQLAlchemy transport."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import Connection, text
from sqlalchemy.dialects import postgresql
from sqlalchemy.sql.elements import TextClause

from pgbeat.broker import claim_sql, message_ends
from pgbeat.database.connections import recordset
from pgbeat.database.prepared import Statement
from pgbeat.errors import SchemaError

_quote = postgresql.dialect().identifier_preparer.quote  # type: ignore[no-untyped-call]

#: A message `d` goes to a queue `q`; the queue's declaration has its say.
_INSERT = """
    INSERT INTO {message} (visible, payload, priority, available_at, expires_at, queue_id, job_id)
    SELECT d.available_at IS NULL OR d.available_at <= now(), d.payload,
           least(d.priority, coalesce(q.max_priority, 9)),
           CASE WHEN d.available_at > now() THEN d.available_at END,
           greatest(d.available_at, now()) + least(d.ttl, q.message_ttl) * interval '1 ms', q.id,
           d.job_id
"""
#: … to the queues, each once, whose bindings match its exchange and routing key.
_BOUND = """
    JOIN {queue} q ON q.id IN (
        SELECT b.queue_id FROM {binding} b
         WHERE b.exchange = d.exchange AND CASE b.type WHEN 'fanout' THEN true
               WHEN 'topic' THEN d.routing_key ~ b.pattern
               ELSE b.routing_key = d.routing_key END)
"""


class Message(NamedTuple):
    """A message to be put: to a queue or, where `queue` is `None`, to those that are bound."""

    queue: str | None
    payload: str
    priority: int = 0
    #: ISO 8601; kept from consumers until then.
    available_at: str | None = None
    #: Milliseconds that it lives, once available.
    ttl: int | None = None
    exchange: str = ""
    routing_key: str = ""
    #: The job that it starts, where it does.
    job_id: str | None = None


#: The header of messages that start a job: their task id is its id.
JOB_HEADER = "pgbeat_job"
#: And of those whose end somebody waits for, a lane or a group: workers tell it at once.
AWAITED_HEADER = "pgbeat_awaited"


def message(
    payload: Mapping[str, Any],
    *,
    queue: str | None = None,
    exchange: str = "",
    routing_key: str = "",
    delay: bool = True,
    dumps: Callable[[Any], str] = json.dumps,
) -> Message:
    """Returns the message of what kombu publishes: body, headers and properties.

    With `delay` the ETA of a Celery task is when it becomes available. Without, the worker keeps
    it in its memory until then, as on the stock transport.
    """
    properties, headers = payload["properties"], payload["headers"] or {}
    eta = headers.get("eta") if delay else None
    expiration = properties.get("expiration")
    try:
        priority = min(max(int(properties.get("priority") or 0), 0), 255)
    except (TypeError, ValueError):
        priority = 0
    return Message(
        queue,
        dumps(payload),
        priority,
        _moment(eta) if isinstance(eta, str) else None,
        int(expiration) if expiration is not None else None,
        exchange,
        routing_key,
        _job_id(headers.get("id")) if headers.get(JOB_HEADER) else None,
    )


def _moment(eta: str) -> str | None:
    """Returns the ETA with a zone: without one it is UTC to Celery, to Postgres the session's.
    `None` for what is none: the worker says so."""
    try:
        moment = datetime.fromisoformat(eta)
    except ValueError:
        return None
    return eta if moment.tzinfo is not None else moment.replace(tzinfo=UTC).isoformat()


def _job_id(text: Any) -> str | None:
    try:
        return str(UUID(text))
    except (ValueError, TypeError, AttributeError):
        return None


@dataclass(frozen=True)
class BrokerTables:
    """The broker's tables, named as in the transport's options. Table names are the operator's."""

    queue: str = "kombu_queue"
    message: str = "kombu_message"

    @classmethod
    def named(cls, options: Mapping[str, Any]) -> "BrokerTables":
        """Returns the tables that a transport's options name."""
        return cls(
            options.get("queue_tablename", cls.queue), options.get("message_tablename", cls.message)
        )

    def sql(self, template: str, **parts: str) -> str:
        """Returns a template of SQL with the tables' names, quoted, in their places.

        `parts` are templates too, for further places; each may use those before it.
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

    def text(self, template: str, **parts: str) -> TextClause:
        """Returns the same as a statement of SQLAlchemy's."""
        return text(self.sql(template, **parts))

    def exist(self, connection: Connection) -> bool:
        """Returns whether the tables are in the connection's search path, as pgbeat has them."""
        return bool(connection.scalar(_ADOPTED, {"name": _quote(self.message)}))

    def require(self, connection: Connection) -> None:
        """Raises `SchemaError` where a caller's transaction is of a database without them."""
        if not self.exist(connection):
            raise SchemaError(
                "the transaction's database has no broker's tables; run `pgbeat migrate` there, "
                "or take a session of the broker's database"
            )

    def adopt(self, connection: Connection) -> None:
        """Makes the tables, or takes over those of the stock transport. Again, it does nothing."""
        if not self.exist(connection):
            connection.execute(_ADOPT, {"queue": self.queue, "message": self.message})

    def missing_privileges(self, connection: Connection) -> list[str]:
        """Returns what publishing needs and the role lacks, such as `INSERT on kombu_message`."""
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
        """Writes messages in the order given, and makes missing queues. Returns how many rows
        those for exchanges became."""
        direct = [m for m in batch if m.queue is not None]
        routed = [m for m in batch if m.queue is None]
        if direct:
            missing = set(connection.scalars(self._put, {"batch": recordset(direct)}))
            if missing:
                self.declare(connection, missing)
                left = [m for m in direct if m.queue in missing]
                connection.execute(self._put, {"batch": recordset(left)})
        if routed:
            return connection.execute(self._route, {"batch": recordset(routed)}).rowcount
        return 0

    def declare(self, connection: Connection, queues: Iterable[str]) -> None:
        """Makes the queues that are missing."""
        wanted = set(queues)
        known = set(connection.scalars(self._known, {"queues": sorted(wanted)}))
        if wanted - known:
            connection.execute(self._declare, {"queues": sorted(wanted - known)})

    def withdraw(self, connection: Connection, jobs: Sequence[str]) -> set[str]:
        """Deletes the messages of jobs that no consumer has yet; the jobs (ids) that had one."""
        found = connection.scalars(self._withdraw, {"jobs": list(jobs)}) if jobs else ()
        return {str(job_id) for job_id in found}

    def carrying(self, connection: Connection, jobs: Sequence[str]) -> set[str]:
        """Returns the jobs (ids) among these that have a message, whoever has claimed it."""
        found = connection.scalars(self._carrying, {"jobs": list(jobs)}) if jobs else ()
        return {str(job_id) for job_id in found}

    def depths(self, connection: Connection) -> dict[str, int]:
        """Returns how many messages wait in each queue."""
        return {str(name): int(count) for name, count in connection.execute(self._depths)}

    @cached_property
    def _known(self) -> TextClause:
        return self.text("SELECT name FROM {queue} WHERE name = ANY (CAST(:queues AS text[]))")

    @cached_property
    def _declare(self) -> TextClause:
        return self.text(
            "INSERT INTO {queue} (name) SELECT name "
            "FROM unnest(CAST(:queues AS text[])) AS d (name) ON CONFLICT (name) DO NOTHING"
        )

    @cached_property
    def _put(self) -> TextClause:
        # The queues that are not there: by the same snapshot, whatever others do meanwhile.
        return self.text(
            "WITH d AS MATERIALIZED (SELECT * {batch}), put AS ({insert} "
            "FROM d JOIN {queue} q ON q.name = d.queue ORDER BY d.position) "
            "SELECT DISTINCT d.queue FROM d "
            "WHERE NOT EXISTS (SELECT FROM {queue} q WHERE q.name = d.queue)",
            batch=_BATCH,
            insert=_INSERT,
        )

    @cached_property
    def _route(self) -> TextClause:
        return self.text(_INSERT + _BATCH + _BOUND + "ORDER BY d.position")

    @cached_property
    def put_one(self) -> Statement:
        """Puts a message to a queue: name, payload, priority, available_at, ttl, synchronous_commit
        (NULL: as the session has it), job_id. No row where there is no such queue."""
        return Statement(
            "put",
            self.sql(_INSERT + "FROM {queue} q, " + _ONE + "WHERE q.name = $1 AND " + _COMMIT),
        )

    @cached_property
    def route_one(self) -> Statement:
        """Puts a message to an exchange; as `put_one`, and the routing key at the end."""
        return Statement(
            "route", self.sql(_INSERT + "FROM " + _ONE_ROUTED + _BOUND + "WHERE " + _COMMIT)
        )

    @cached_property
    def claim(self) -> Statement:
        """Claims messages: queues, at most, for which consumer; and acknowledges: ids.

        Rows: id, queue_id, priority, deliveries, redelivered, payload; and one at the end without
        an id: as its deliveries, 1 if the consumer is alive and 0 if it is not, and may not claim;
        as its payload, the seconds that it took.
        """
        return self._claiming("claim", claim_sql.FROM_THE_START, claim_sql.REGISTERED)

    @cached_property
    def claim_on(self) -> Statement:
        """The same from where the last one ended: for each queue and priority, the lowest id."""
        return self._claiming("claim_on", claim_sql.FROM_MARKS, claim_sql.REGISTERED)

    @cached_property
    def claim_leased(self) -> Statement:
        """`claim` for a consumer that lives by a lease."""
        return self._claiming("claim_leased", claim_sql.FROM_THE_START, claim_sql.LEASED)

    @cached_property
    def claim_leased_on(self) -> Statement:
        """`claim_on` for a consumer that lives by a lease."""
        return self._claiming("claim_leased_on", claim_sql.FROM_MARKS, claim_sql.LEASED)

    def _claiming(self, name: str, low: str, alive: str) -> Statement:
        return Statement(name, self.sql(claim_sql.CLAIM, low=low, alive=alive))

    @cached_property
    def take(self) -> Statement:
        """Takes messages for good: queues, at most, acknowledged ids and their consumer."""
        return Statement("take", self.sql(claim_sql.TAKE, low=claim_sql.FROM_THE_START))

    @cached_property
    def ack(self) -> Statement:
        """Deletes claimed messages: ids, claimed by which consumer."""
        return Statement(
            "ack",
            self.sql(
                "DELETE FROM {message} WHERE id = ANY ($1::bigint[]) "
                "AND claimed_by IS NOT DISTINCT FROM $2::integer"
            ),
        )

    @cached_property
    def accept(self) -> Statement:
        """Deletes claimed messages of jobs, and records who accepted them: ids, consumer, worker
        (NULL: one that records no executions)."""
        return Statement("accept", self.sql(message_ends.ACCEPT))

    @cached_property
    def _withdraw(self) -> TextClause:
        # What a stock consumer took is neither visible, nor delayed, nor claimed.
        return self.text(
            "WITH mine AS (SELECT id FROM {message} WHERE job_id = ANY (CAST(:jobs AS uuid[])) "
            "AND claimed_by IS NULL AND (visible OR available_at IS NOT NULL) "
            "FOR UPDATE SKIP LOCKED) "
            "DELETE FROM {message} WHERE id IN (SELECT id FROM mine) RETURNING job_id"
        )

    @cached_property
    def _carrying(self) -> TextClause:
        return self.text(
            "SELECT DISTINCT job_id FROM {message} WHERE job_id = ANY (CAST(:jobs AS uuid[])) "
            "AND (claimed_by IS NOT NULL OR visible OR available_at IS NOT NULL)"
        )

    @cached_property
    def _depths(self) -> TextClause:
        return self.text(
            "SELECT q.name, count(m.id) FROM {queue} q "
            "LEFT JOIN {message} m ON m.queue_id = q.id AND m.visible GROUP BY q.name ORDER BY 1"
        )


_ADOPTED = text(
    "SELECT EXISTS (SELECT FROM pg_attribute "
    "WHERE attrelid = to_regclass(:name) AND attname = 'claimed_by')"
)
_ADOPT = text("SELECT pgbeat.adopt_broker(:queue, :message)")
_MAY_USE_TABLE = text("SELECT has_table_privilege(:name, :privilege)")
_MAY_USE_SEQUENCE = text("SELECT has_sequence_privilege(:name, :privilege)")

_BATCH = """
    FROM ROWS FROM (json_to_recordset(CAST(:batch AS json)) AS (
             queue text, payload text, priority integer, available_at timestamptz, ttl bigint,
             exchange text, routing_key text, job_id uuid))
         WITH ORDINALITY AS d (queue, payload, priority, available_at, ttl, exchange, routing_key,
             job_id, position)
"""
_ONE = """(VALUES ($2::text, $3::integer, $4::timestamptz, $5::bigint, $7::uuid))
    AS d (payload, priority, available_at, ttl, job_id) """
_ONE_ROUTED = """
    (VALUES ($1::text, $8::text, $2::text, $3::integer, $4::timestamptz, $5::bigint, $7::uuid))
    AS d (exchange, routing_key, payload, priority, available_at, ttl, job_id) """
#: Evaluated once, before the commit that it is for.
_COMMIT = "($6::text IS NULL OR set_config('synchronous_commit', $6, true) IS NOT NULL)"
