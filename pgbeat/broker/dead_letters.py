"""Dead letters: messages that no consumer could handle, kept with the reason."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import Connection, text
from sqlalchemy.sql.elements import TextClause

from pgbeat.broker import messages, payloads
from pgbeat.database import sql


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
        return payloads.header(self.payload, "task")

    @property
    def task_id(self) -> str | None:
        """The task's id, if the message is Celery's."""
        return payloads.header(self.payload, "id")


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


@cache
def _statement(name: str, which: str) -> TextClause:
    return text(sql.load("dead_letters.sql", name, which=which))


def find(
    connection: Connection,
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
    rows = connection.execute(_statement("find", which), {**values, "limit": limit})
    return [DeadLetter(*row) for row in rows]


def choose(
    connection: Connection,
    *,
    queue: str | None = None,
    ids: Sequence[int] | None = None,
    older_than: float | None = None,
) -> dict[int, str]:
    """Locks dead letters and returns their queues by id; `older_than` is in seconds."""
    which, values = _which(queue, ids, older_than)
    rows = connection.execute(_statement("choose", which), values)
    return {int(id): str(name) for id, name in rows}


def requeue(
    connection: Connection, *, queue: str | None = None, ids: Sequence[int] | None = None
) -> int:
    """Requeues dead letters and resets their deliveries; returns how many.

    Missing queues are created. Letters without a queue stay.
    """
    which, values = _which(queue, ids)
    messages.declare(connection, connection.scalars(_statement("queues", which), values))
    return int(connection.execute(_statement("requeue", which), values).rowcount)


def drop(
    connection: Connection,
    *,
    queue: str | None = None,
    ids: Sequence[int] | None = None,
    older_than: float | None = None,
    limit: int | None = None,
) -> int:
    """Deletes dead letters; returns how many. `older_than` is in seconds."""
    which, values = _which(queue, ids, older_than)
    values["limit"] = limit
    return int(connection.execute(_statement("drop", which), values).rowcount)
