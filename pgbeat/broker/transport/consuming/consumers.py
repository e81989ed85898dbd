"""Registers consumers, requeues and rejects their claims, and releases them when they die."""

from collections.abc import Sequence
from typing import NamedTuple

import psycopg
from sqlalchemy import Connection, text
from sqlalchemy.sql.elements import TextClause

from pgbeat.broker import queues
from pgbeat.database import sql

#: The first half of the advisory locks that show which consumers are alive.
LIFE = 1885823587
_SQL = "consumers.sql"


def register(connection: Connection, name: str, lease: float | None = None) -> int:
    """Registers a consumer, alive as long as this session or, with `lease`, for those seconds.

    Returns its id.
    """
    while True:
        values = {"name": name, "lease": lease, "life": LIFE}
        consumer_id, lives = connection.execute(_REGISTER, values).one()
        if lives:
            return int(consumer_id)


_REGISTER = text(sql.load(_SQL, "register"))


def renew(connection: Connection, consumer: int, lease: float) -> bool:
    """Extends the consumer's lease to `lease` seconds from now.

    Returns false if it had run out: others may have released the consumer's claims already.
    """
    values = {"id": consumer, "lease": lease}
    return bool(connection.execute(_RENEW, values).rowcount)


_RENEW = text(
    "UPDATE pgbeat.consumers SET lease_until = clock_timestamp() + make_interval(secs => :lease) "
    "WHERE id = :id AND lease_until >= clock_timestamp()"
)


def give_up(connection: Connection, consumer: int, name: str) -> None:
    """Makes the consumer count as dead, so that others release its claims.

    After a failover, another one may have its id.
    """
    connection.execute(_GIVE_UP, {"id": consumer, "name": name})


_GIVE_UP = text(
    "UPDATE pgbeat.consumers SET lease_until = '-infinity' WHERE id = :id AND name = :name"
)


def subscribe(connection: Connection, consumer: int, of: Sequence[int]) -> set[int]:
    """Records that the consumer consumes from queues (ids); returns the `auto_delete` ones.

    Raises `psycopg.OperationalError` if a queue was deleted.
    """
    rows = connection.execute(_SUBSCRIBE, {"queues": list(of), "consumer": consumer})
    fragile = {int(queue): bool(is_fragile) for queue, is_fragile in rows}
    if missing := set(of) - fragile.keys():
        raise deleted(min(missing))
    return {queue for queue, is_fragile in fragile.items() if is_fragile}


def require_queues(connection: Connection, queues: Sequence[int]) -> None:
    """Raises `psycopg.OperationalError` if one of the queues (ids) was deleted."""
    missing = connection.scalar(_MISSING, {"queues": list(queues)})
    if missing is not None:
        raise deleted(missing)


def deleted(queue: int | str) -> psycopg.OperationalError:
    """Returns the error for a consumer of a queue (its id or name) that was deleted.

    A program that connects again declares the queue again.
    """
    return psycopg.OperationalError(f"queue {queue!r} was deleted while this process consumed it")


def unsubscribe(connection: Connection, consumer: int, of: Sequence[int]) -> None:
    """Records that the consumer no longer consumes from queues (ids).

    `queues.delete_abandoned` must delete the `auto_delete` ones in the same transaction.
    """
    connection.execute(_UNSUBSCRIBE, {"consumer": consumer, "queues": list(of)})


_SUBSCRIBE = text(sql.load(_SQL, "subscribe"))
_MISSING = text(
    "SELECT min(c.queue) FROM unnest(CAST(:queues AS bigint[])) AS c (queue) "
    "WHERE NOT EXISTS (SELECT FROM kombu_queue q WHERE q.id = c.queue)"
)
_EXPIRING = "q.id = ANY (:queues) AND q.expires IS NOT NULL"
_UNSUBSCRIBE = text(sql.load(_SQL, "unsubscribe", mark_used=queues.mark_used(_EXPIRING)))


def leave(connection: Connection, consumer: int) -> None:
    """Releases the consumer's claims, and deletes it with its exclusive queues."""
    _release(connection, [consumer], limit=None, counts=False)


def _requeue(which: str, result: str) -> TextClause:
    parts = {"which": which, "result": result, "reason": sql.load(_SQL, "spent")}
    return text(sql.load(_SQL, "requeue", **parts))


_REQUEUE = _requeue(sql.load(_SQL, "claimed"), sql.load(_SQL, "left"))
_RELEASE = _requeue("m.claimed_by = ANY (:dead)", "(SELECT count(*) FROM mine)")
_PUT_BACK = text(sql.load(_SQL, "put_back"))
_REJECT = text(sql.load(_SQL, "reject", reason=":reason"))


def requeue(
    connection: Connection,
    consumer: int,
    messages: Sequence[int],
    *,
    limit: int | None,
    counts: bool = True,
) -> list[int]:
    """Requeues claimed messages, or makes them dead letters if they reached the delivery limit.

    Unless `counts`, they were not started, and the delivery is not counted. Returns those that
    another session has locked, which must be requeued later: a claim that read a row before this
    consumer claimed it holds its lock for a moment, and an event loop must not wait for that.
    """
    values = {"messages": list(messages), "consumer": consumer, "fate": "rejected"}
    left = connection.scalar(_REQUEUE, {**values, "limit": limit, "uncounted": int(not counts)})
    return [int(message) for message in left or ()]


def put_back(
    connection: Connection, consumer: int, messages: Sequence[int], delay: float
) -> list[int]:
    """Requeues claimed messages for `delay` seconds later, and doesn't count their delivery.

    Returns those that another session has locked, which must be put back later.
    """
    values = {"messages": list(messages), "consumer": consumer, "delay": delay}
    return [int(message) for message in connection.scalar(_PUT_BACK, values) or ()]


def reject(
    connection: Connection, consumer: int, messages: Sequence[int], reason: str = "rejected"
) -> list[int]:
    """Makes claimed messages dead letters.

    Returns those that another session has locked, which must be rejected later.
    """
    left = connection.scalar(
        _REJECT, {"messages": list(messages), "consumer": consumer, "reason": reason}
    )
    return [int(message) for message in left or ()]


_DOOMED = text(sql.load(_SQL, "doomed"))


def release_dead(connection: Connection, dead: Sequence[int], *, limit: int | None) -> int:
    """Releases the claims of dead or unknown consumers, and deletes their exclusive queues.

    Returns how many messages they had claimed.
    """
    doomed = list(connection.scalars(_DOOMED, {"dead": list(dead)}))
    return _release(connection, doomed, limit=limit) if doomed else 0


def _release(
    connection: Connection, gone: Sequence[int], *, limit: int | None, counts: bool = True
) -> int:
    values = {"dead": list(gone), "limit": limit, "uncounted": int(not counts)}
    connection.execute(_LOCK_THEIRS, {"dead": list(gone)})
    released = connection.execute(_RELEASE, {**values, "fate": "to a consumer that died"}).one()[0]
    abandoned = connection.scalars(_ABANDON, {"dead": list(gone)}).all()
    queues.delete_owned(connection, gone)
    queues.delete_abandoned(connection, abandoned)
    # A row that another session had locked was skipped; its consumer stays for the next time.
    connection.execute(_DELETE, {"dead": list(gone)})
    return int(released)


_LOCK_THEIRS = text(queues.lock(sql.load(_SQL, "their_queues")))
_ABANDON = text(sql.load(_SQL, "abandon"))
_DELETE = text(
    "DELETE FROM pgbeat.consumers c WHERE id = ANY (:dead) "
    "AND NOT EXISTS (SELECT FROM kombu_message m WHERE m.claimed_by = c.id)"
)


def unknown(connection: Connection) -> list[int]:
    """Returns the ids of deleted consumers that still have claims."""
    return [int(id) for id in connection.scalars(_UNKNOWN)]


_UNKNOWN = text(sql.load(_SQL, "unknown"))


class DueMaintenance(NamedTuple):
    """Maintenance that is due across all consumers."""

    #: Ids of dead consumers.
    dead: list[int]
    #: Seconds until the next delayed message is due; `None` without one.
    next_due: float | None
    #: Whether messages or queues have expired.
    has_expired: bool
    #: How many consumers are registered.
    consumers: int


_DUE_MAINTENANCE = text(sql.load(_SQL, "due_maintenance"))
_MAINTENANCE_LOCK = text(
    "SELECT pg_try_advisory_xact_lock(hashtextextended('pgbeat.maintenance', 0))"
)


def try_maintenance_lock(connection: Connection) -> bool:
    """Takes the lock for releasing and promoting messages; returns whether this transaction has it.

    If two consumers requeued the same messages, the second would find nothing to do but would have
    locked the rows, since Postgres reads their newest version only under a lock. A consumer that
    was notified of them would skip the locked rows and sleep.
    """
    return bool(connection.scalar(_MAINTENANCE_LOCK))


def due_maintenance(connection: Connection, consumer: int = 0) -> DueMaintenance:
    """Returns the maintenance that is due, in one statement that is cheap without any.

    It never reports `consumer` itself as dead, since only others may release its claims.
    """
    return DueMaintenance(*connection.execute(_DUE_MAINTENANCE, {"consumer": consumer}).one())


_PROMOTE = text(sql.load(_SQL, "promote"))


def promote(connection: Connection, limit: int = 1000) -> int:
    """Makes due delayed messages available, behind those that wait already; returns how many."""
    row = connection.execute(_PROMOTE, {"limit": limit}).one()
    return int(row[0])
