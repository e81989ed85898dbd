"""Dead letters: messages that no consumer could handle, kept with the reason."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Connection

from pgbeat.broker.messages import BrokerTables


class DeadLetter(NamedTuple):
    """A message that was rejected or delivered too often."""

    id: int
    #: Its queue; empty if that was deleted before.
    queue: str
    payload: str
    reason: str
    deliveries: int
    died_at: datetime

    @property
    def task(self) -> str | None:
        """The task's name, if the message is Celery's."""
        return self._header("task")

    @property
    def task_id(self) -> str | None:
        """The task's id, if the message is Celery's."""
        return self._header("id")

    def _header(self, key: str) -> str | None:
        try:
            found = json.loads(self.payload)["headers"][key]
        except (ValueError, LookupError, TypeError, RecursionError):
            return None
        return found if isinstance(found, str) else None


class Handled(NamedTuple):
    """Dead letters that a person requeued or dropped: their queues by id, and how many."""

    queues: Mapping[int, str]
    number: int

    @property
    def audited(self) -> tuple[str, str, dict[str, Any]]:
        """The kind, subject and values that the audit log records.

        The subject of one letter is its id, of several their common queue.
        """
        queues = Counter(self.queues.values())
        subject = next(iter(queues)) if len(queues) == 1 else ""
        if len(self.queues) == 1:
            subject = str(next(iter(self.queues)))
        ids = [*self.queues][:100]
        return "dead letter", subject, {"count": self.number, "queues": dict(queues), "ids": ids}


def _which(
    queue: str | None, ids: Sequence[int] | None, older_than: float | None = None
) -> tuple[str, dict[str, object]]:
    clauses = ["true"]
    values: dict[str, object] = {}
    if queue is not None:
        clauses.append("d.queue = :queue")
        values["queue"] = queue
    if ids is not None:
        clauses.append("d.id = ANY (:ids)")
        values["ids"] = list(ids)
    if older_than is not None:
        clauses.append("d.died_at < now() - make_interval(secs => :older_than)")
        values["older_than"] = older_than
    return " AND ".join(clauses), values


def find(
    connection: Connection,
    tables: BrokerTables,
    *,
    queue: str | None = None,
    ids: Sequence[int] | None = None,
    before: tuple[datetime, int] | None = None,
    limit: int | None = None,
) -> list[DeadLetter]:
    """Returns dead letters, newest first, or those after a page's last one.

    `before` is (`died_at`, `id`) of that one.
    """
    which, values = _which(queue, ids)
    if before is not None:
        which += " AND (d.died_at, d.id) < (:died_at, :id)"
        values |= {"died_at": before[0], "id": before[1]}
    statement = tables.text(
        "SELECT d.id, d.queue, d.payload, d.reason, d.deliveries, d.died_at FROM {dead} d "
        "WHERE {which} ORDER BY d.died_at DESC, d.id DESC LIMIT :limit",
        which=which,
    )
    return [DeadLetter(*row) for row in connection.execute(statement, {**values, "limit": limit})]


def choose(
    connection: Connection,
    tables: BrokerTables,
    *,
    queue: str | None = None,
    ids: Sequence[int] | None = None,
    older_than: float | None = None,
) -> dict[int, str]:
    """Locks dead letters and returns their queues by id; `older_than` is in seconds."""
    which, values = _which(queue, ids, older_than)
    statement = tables.text(
        "SELECT d.id, d.queue FROM {dead} d WHERE {which} ORDER BY d.id FOR UPDATE", which=which
    )
    return {int(id): str(name) for id, name in connection.execute(statement, values)}


def requeue(
    connection: Connection,
    tables: BrokerTables,
    *,
    queue: str | None = None,
    ids: Sequence[int] | None = None,
) -> int:
    """Requeues dead letters and resets their deliveries; returns how many.

    Missing queues are created. Letters without a queue stay.
    """
    which, values = _which(queue, ids)
    names = connection.scalars(
        tables.text(
            "SELECT DISTINCT d.queue FROM {dead} d WHERE {which} AND d.queue <> ''", which=which
        ),
        values,
    )
    tables.declare(connection, names)
    statement = tables.text(
        "WITH back AS (DELETE FROM {dead} d USING {queue} q "
        "WHERE {which} AND d.queue = q.name RETURNING d.*, q.id AS queue_id) "
        "INSERT INTO {message} (visible, payload, priority, queue_id, enqueued_at, redelivered, "
        "job_id) "
        "SELECT true, b.payload, b.priority, b.queue_id, b.enqueued_at, true, b.job_id "
        "FROM back b ORDER BY b.died_at, b.id",
        which=which,
    )
    return int(connection.execute(statement, values).rowcount)


def drop(
    connection: Connection,
    tables: BrokerTables,
    *,
    queue: str | None = None,
    ids: Sequence[int] | None = None,
    older_than: float | None = None,
    limit: int | None = None,
) -> int:
    """Deletes dead letters; returns how many. `older_than` is in seconds."""
    which, values = _which(queue, ids, older_than)
    # LIMIT NULL is no limit.
    statement = tables.text(
        "DELETE FROM {dead} d WHERE d.ctid = ANY (ARRAY("
        "SELECT d.ctid FROM {dead} d WHERE {which} LIMIT :limit))",
        which=which,
    )
    return int(connection.execute(statement, {**values, "limit": limit}).rowcount)
