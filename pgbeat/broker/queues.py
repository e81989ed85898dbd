"""Declares, pauses, purges, deletes and lists queues."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypedDict, Unpack

from sqlalchemy import Connection, text
from sqlalchemy.sql.elements import TextClause

from pgbeat.broker import message_ends
from pgbeat.database import channels, sql
from pgbeat.database.named_rows import not_found
from pgbeat.errors import NotFound, QueueLocked

#: The arguments of a declaration that a queue keeps, and their columns.
ARGUMENTS = {
    "x-max-priority": "max_priority",
    "x-message-ttl": "message_ttl",
    "x-expires": "expires",
    "x-delivery-limit": "delivery_limit",
}
#: The highest value of one: three thousand years. The server can't reckon with times far beyond.
HIGHEST = 10**14
#: The most characters of a name: the width of kombu's column.
LONGEST_NAME = 200


def check_name(name: Any) -> None:
    """Raises `ValueError` for an invalid name of a queue or its exchange."""
    if not isinstance(name, str) or "\0" in name:
        raise ValueError(f"a queue's name must be text without NUL, got {repr(name)[:40]}")
    name.encode()
    if not 0 < len(name) <= LONGEST_NAME:
        raise ValueError(
            f"a queue's name must have 1 to {LONGEST_NAME} characters; {name[:40]!r}… has "
            f"{len(name)}"
        )


class Declared(NamedTuple):
    """A queue that exists, with its waiting messages and the processes that consume from it."""

    id: int
    messages: int
    consumers: int


_SQL = "queues.sql"
_STATE, _DECLARE, _LOCKED = (text(sql.load(_SQL, name)) for name in ("state", "declare", "locked"))


def find(connection: Connection, name: str) -> Declared | None:
    """Returns the queue of that name, or `None`."""
    row = connection.execute(_STATE, {"name": name}).one_or_none()
    return Declared(*row) if row else None


def use(connection: Connection, names: Sequence[str]) -> dict[str, int]:
    """Returns the ids of the queues that exist, and restarts the clock of those that expire."""
    return {str(name): int(id) for name, id in connection.execute(_USE, {"names": list(names)})}


def of_message(connection: Connection, message: int) -> str | None:
    """Returns the queue of a message; `None` if it is not there any more."""
    name: str | None = connection.scalar(_OF_MESSAGE, {"message": message})
    return name


def lock(which: str) -> str:
    """Returns SQL that locks queues `q`."""
    return sql.load(_SQL, "lock", which=which)


def mark_used(which: str) -> str:
    """Returns SQL that restarts the clock of queues `q`."""
    return sql.load(_SQL, "mark_used", which=which)


_NAMED = "q.name = ANY (CAST(:names AS text[])) AND q.expires IS NOT NULL"
_USE = text(sql.load(_SQL, "use", which=_NAMED))
_OF_MESSAGE = text(
    "SELECT q.name FROM kombu_queue q JOIN kombu_message m ON m.queue_id = q.id "
    "WHERE m.id = :message"
)


class QueueOptions(TypedDict, total=False):
    """How a queue is declared: by default it is durable, and for all."""

    durable: bool
    auto_delete: bool
    #: The consumer that it is exclusive to, and the one that declares it.
    owner: int | None
    caller: int | None
    arguments: Mapping[str, Any] | None


_DEFAULTS = {"durable": True, "auto_delete": False, "owner": None, "caller": None}


def declare_at_once(
    connection: Connection, name: str, **options: Unpack[QueueOptions]
) -> Declared | None:
    """Creates the queue, or finds it, unless `declare` would change it; `None` then.

    It is a single statement, for processes that declare thousands of queues at every start.
    Raises `ValueError` as `declare` does.
    """
    row = connection.execute(_AT_ONCE, _values(name, options)).one_or_none()
    return Declared(*row) if row else None


def _values(name: str, options: QueueOptions) -> dict[str, Any]:
    check_name(name)
    return {"name": name, **_DEFAULTS, **options, **columns(options.get("arguments"))}


_AT_ONCE = text(sql.load(_SQL, "declare_at_once"))


def columns(arguments: Mapping[str, Any] | None) -> dict[str, int | None]:
    """Returns the arguments of a declaration by column. Raises `ValueError`."""
    values = {column: _whole(key, arguments) for key, column in ARGUMENTS.items()}
    if values["max_priority"] is not None:
        values["max_priority"] = min(values["max_priority"], 255)
    return values


def declare(connection: Connection, name: str, **options: Unpack[QueueOptions]) -> Declared:
    """Creates the queue, or marks it as used.

    Arguments that a later declaration leaves out stay. Raises `QueueLocked` if the queue is
    exclusive to another consumer, and `ValueError` for an invalid name or argument.
    """
    values = _values(name, options)
    caller = options.get("caller")
    locked = connection.execute(_LOCKED, {"name": name, "owner": caller}).one_or_none()
    if locked is not None:
        if not locked[1]:
            raise QueueLocked(f"queue {name!r} is exclusive to another running process")
        delete(connection, name)
    connection.execute(_DECLARE, values)
    # Another process may have deleted it meanwhile.
    return find(connection, name) or declare(connection, name, **options)


def _whole(key: str, arguments: Mapping[str, Any] | None) -> int | None:
    value = (arguments or {}).get(key)
    if value is None:
        return None
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        number = -1
    if not 0 <= number <= HIGHEST:
        raise ValueError(f"{key} must be a whole number from 0 to {HIGHEST}, got {value!r}")
    return number


def _deletion(which: str) -> tuple[TextClause, TextClause]:
    """Returns the statement that locks queues, and the one that deletes them.

    The second sees consumers that have subscribed while the first waited for them.
    """
    of = sql.load(_SQL, which)
    note = message_ends.note("deleted")
    return text(lock(of)), text(sql.load(_SQL, "delete", which=of, note=note))


_NAMED_ONE, _ABANDONED, _EXPIRED, _OWNED, _EXCLUSIVE = (
    _deletion(which) for which in ("named", "abandoned", "expired", "owned", "exclusive")
)


def _delete(connection: Connection, how: tuple[TextClause, TextClause], **values: Any) -> int:
    """Deletes queues with all that is theirs; returns how many messages waited."""
    locks, deletes = how
    connection.execute(locks, values)
    return int(connection.execute(deletes, values).scalar_one())


def delete(
    connection: Connection, name: str, *, if_unused: bool = False, if_empty: bool = False
) -> int:
    """Deletes the queue with its bindings and messages; returns how many messages waited."""
    return _delete(connection, _NAMED_ONE, name=name, if_unused=if_unused, if_empty=if_empty)


def delete_abandoned(connection: Connection, queues: Sequence[int]) -> None:
    """Deletes those of the queues that are `auto_delete` and have no consumer left."""
    _delete(connection, _ABANDONED, queues=list(queues))


def delete_expired(connection: Connection) -> None:
    """Deletes queues that no consumer has used for the time they were declared to live unused."""
    _delete(connection, _EXPIRED)


def delete_owned(connection: Connection, owners: Sequence[int]) -> None:
    """Deletes the queues that were exclusive to these consumers."""
    _delete(connection, _OWNED, owners=list(owners))


def delete_exclusive(connection: Connection, names: Sequence[str], owner: int) -> None:
    """Deletes those of the queues that are exclusive to the consumer."""
    _delete(connection, _EXCLUSIVE, names=list(names), owners=[owner])


#: Messages that one call of `purge` deletes at most.
PURGED = 10_000


def purge(connection: Connection, name: str) -> int:
    """Deletes messages that wait in the queue, delayed ones too, up to `PURGED`; returns how many.

    If there are fewer, none is left but those that are locked: consumers are about to claim them.
    """
    values = {"name": name, "id": _id(connection, name), "limit": PURGED}
    return int(connection.execute(_PURGE, values).scalar_one())


_PURGE = text(sql.load(_SQL, "purge", note=message_ends.note("purged")))
_PAUSE = text(
    "UPDATE kombu_queue SET paused_at = CASE WHEN :paused THEN now() END "
    "WHERE name = :name AND (paused_at IS NULL) = :paused RETURNING id"
)
_AGAIN = text("SELECT pg_notify(:channel, 'again')")


def set_paused(connection: Connection, name: str, paused: bool) -> bool:
    """Stops consumers from claiming the queue's messages, or lets them claim again.

    Returns whether that is a change. Raises `NotFound`.
    """
    values = {"name": name, "paused": paused}
    changed = connection.execute(_PAUSE, values).scalar_one_or_none()
    if changed is None and find(connection, name) is None:
        raise _missing(connection, name)
    if changed is not None and not paused:
        connection.execute(_AGAIN, {"channel": channels.of_queue(changed)})
    return changed is not None


class QueueSummary(NamedTuple):
    """A queue with its numbers, for people."""

    name: str
    waiting: int
    delayed: int
    claimed: int
    dead: int
    #: Processes that consume from it and are alive.
    consumers: int
    #: How long the oldest waiting message has waited.
    age: timedelta | None
    paused_at: datetime | None
    #: Whether it is deleted with its last consumer.
    auto_delete: bool
    #: The consumer that it is exclusive to.
    owner: int | None

    @property
    def is_internal(self) -> bool:
        """Whether it is deleted with its users: queues of remote control, events and replies."""
        return self.auto_delete or self.owner is not None

    @property
    def is_unserved(self) -> bool:
        """Whether it has messages, waiting or of a dead consumer, and none that lives consumes it.

        A paused queue needs no consumer. Those on the stock transport are not seen.
        """
        needs_one = bool(self.waiting or self.claimed) and self.paused_at is None
        return needs_one and not self.consumers and not self.is_internal

    @property
    def audited(self) -> tuple[str, str, dict[str, Any]]:
        """The kind, subject and values that the audit log records."""
        return "queue", self.name, {"paused_at": self.paused_at}


_QUEUES, _QUEUE = text(sql.load(_SQL, "all")), text(sql.load(_SQL, "one"))


def all_queues(connection: Connection) -> list[QueueSummary]:
    """Returns every queue with its numbers, by name."""
    return [QueueSummary(*row) for row in connection.execute(_QUEUES)]


def get(connection: Connection, name: str) -> QueueSummary:
    """Returns the queue of that name with its numbers. Raises `NotFound`."""
    values = {"name": name, "id": _id(connection, name)}
    row = connection.execute(_QUEUE, values).one_or_none()
    if row is None:
        raise _missing(connection, name)
    return QueueSummary(*row)


def _id(connection: Connection, name: str) -> int | None:
    return connection.execute(_ID, {"name": name}).scalar_one_or_none()


_ID = text("SELECT id FROM kombu_queue WHERE name = :name")
_NAMES = text("SELECT name FROM kombu_queue ORDER BY 1 LIMIT 10000")


def _missing(connection: Connection, name: str) -> NotFound:
    return not_found("queue", name, connection.scalars(_NAMES))
