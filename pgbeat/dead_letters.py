"""Dead letters: messages that nobody could handle, kept with the reason until a person decides."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import Connection

from pgbeat.messages import BrokerTables


class DeadLetter(NamedTuple):
    """A message that was given up."""

    id: int
    queue: str
    payload: str
    reason: str
    deliveries: int
    died_at: datetime


def _which(queue: str | None, ids: Sequence[int] | None) -> tuple[str, dict[str, object]]:
    clauses = ["true"]
    values: dict[str, object] = {}
    if queue is not None:
        clauses.append("queue = :queue")
        values["queue"] = queue
    if ids is not None:
        clauses.append("id = ANY (:ids)")
        values["ids"] = list(ids)
    return " WHERE " + " AND ".join(clauses), values


def find(
    connection: Connection,
    tables: BrokerTables,
    *,
    queue: str | None = None,
    ids: Sequence[int] | None = None,
    limit: int | None = None,
) -> list[DeadLetter]:
    """Dead letters, the newest first."""
    which, values = _which(queue, ids)
    statement = tables.text(
        "SELECT id, queue, payload, reason, deliveries, died_at FROM {dead}"
        + which
        + " ORDER BY died_at DESC, id DESC LIMIT :limit"
    )
    return [DeadLetter(*row) for row in connection.execute(statement, {**values, "limit": limit})]


def requeue(
    connection: Connection,
    tables: BrokerTables,
    *,
    queue: str | None = None,
    ids: Sequence[int] | None = None,
) -> int:
    """Puts dead letters back where they came from, their deliveries not counted; how many."""
    which, values = _which(queue, ids)
    names = connection.scalars(tables.text("SELECT DISTINCT queue FROM {dead}" + which), values)
    tables.declare(connection, names)
    statement = tables.text(
        "WITH back AS (DELETE FROM {dead}" + which + " RETURNING *) "
        "INSERT INTO {message} (visible, payload, priority, queue_id, enqueued_at, redelivered) "
        "SELECT true, d.payload, d.priority, q.id, d.enqueued_at, true "
        "FROM back d JOIN {queue} q ON q.name = d.queue ORDER BY d.died_at, d.id"
    )
    return int(connection.execute(statement, values).rowcount)


def drop(
    connection: Connection,
    tables: BrokerTables,
    *,
    queue: str | None = None,
    ids: Sequence[int] | None = None,
    older_than: float | None = None,
) -> int:
    """Deletes dead letters, with `older_than` only those of so many seconds ago; how many."""
    which, values = _which(queue, ids)
    if older_than is not None:
        which += " AND died_at < now() - make_interval(secs => :older_than)"
        values["older_than"] = older_than
    statement = tables.text("DELETE FROM {dead}" + which)
    return int(connection.execute(statement, values).rowcount)
