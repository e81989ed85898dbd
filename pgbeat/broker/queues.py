"""Declares, pauses, purges, deletes and lists queues."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import Connection, text
from sqlalchemy.sql.elements import TextClause

from pgbeat.broker import message_ends
from pgbeat.broker.messages import BrokerTables
from pgbeat.database import channels
from pgbeat.database.missing import not_found
from pgbeat.errors import NotFound, QueueLocked

#: The arguments of a declaration that a queue keeps, and their columns.
ARGUMENTS = {
    "x-max-priority": "max_priority",
    "x-message-ttl": "message_ttl",
    "x-expires": "expires",
    "x-delivery-limit": "delivery_limit",
}
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


_STATE = """
    SELECT q.id, (SELECT count(*) FROM {message} m WHERE m.queue_id = q.id AND m.visible),
           (SELECT count(*) FROM {consumer} c WHERE c.queue_id = q.id)
      FROM {queue} q WHERE q.name = :name
"""
_DECLARE = """
    INSERT INTO {queue} AS q (name, durable, auto_delete, owner, max_priority, message_ttl,
           expires, delivery_limit)
    VALUES (:name, :durable, :auto_delete, :owner, :max_priority, :message_ttl,
            :expires, :delivery_limit)
    ON CONFLICT (name) DO UPDATE SET used_at = now(),
           max_priority = coalesce(excluded.max_priority, q.max_priority),
           message_ttl = coalesce(excluded.message_ttl, q.message_ttl),
           expires = coalesce(excluded.expires, q.expires),
           delivery_limit = coalesce(excluded.delivery_limit, q.delivery_limit)
"""
_LOCKED = """
    SELECT q.owner, q.owner IN (SELECT pgbeat.dead_consumers())
               OR NOT EXISTS (SELECT FROM pgbeat.consumers c WHERE c.id = q.owner)
      FROM {queue} q WHERE q.name = :name AND q.owner IS DISTINCT FROM :owner
       AND q.owner IS NOT NULL
"""


def find(connection: Connection, tables: BrokerTables, name: str) -> Declared | None:
    """Returns the queue of that name, or `None`."""
    row = connection.execute(tables.text(_STATE), {"name": name}).one_or_none()
    return Declared(*row) if row else None


def use(connection: Connection, tables: BrokerTables, names: Sequence[str]) -> dict[str, int]:
    """Returns the ids of the queues that exist, and restarts the clock of those that expire."""
    statement = tables.text(
        "WITH used AS ({mark_used}) "
        "SELECT name, id FROM {queue} WHERE name = ANY (CAST(:names AS text[]))",
        which="q.name = ANY (CAST(:names AS text[])) AND q.expires IS NOT NULL",
        locked=LOCK,
        mark_used=MARK_USED,
    )
    return {
        str(name): int(id) for name, id in connection.execute(statement, {"names": list(names)})
    }


#: Locks queues: everybody who changes several does it in this order. A worker that connects again
#: uses queues that somebody else is about to delete, as those of a dead one.
LOCK = "SELECT q.id FROM {queue} q WHERE {which} ORDER BY q.id FOR UPDATE"
#: Restarts the clock of queues. The part `which` says of which, and `locked` is `LOCK`.
MARK_USED = "UPDATE {queue} SET used_at = now() WHERE id = ANY (ARRAY({locked}))"


def declare_at_once(
    connection: Connection,
    tables: BrokerTables,
    name: str,
    *,
    durable: bool = True,
    auto_delete: bool = False,
    owner: int | None = None,
    arguments: Mapping[str, Any] | None = None,
    caller: int | None = None,
) -> Declared | None:
    """Creates the queue, or finds it, unless `declare` would change it; `None` then.

    It is a single statement, for processes that declare thousands of queues at every start.
    Raises `ValueError` as `declare` does.
    """
    check_name(name)
    values = {
        "name": name, "durable": durable, "auto_delete": auto_delete, "owner": owner,
        "caller": caller, **_columns(arguments),
    }  # fmt: skip
    row = connection.execute(tables.text(_AT_ONCE), values).one_or_none()
    return Declared(*row) if row else None


# A queue that expires must be marked as used. One with another owner may be locked, or the owner
# may be dead.
_AS_DECLARED = """
       AND q.expires IS NULL AND CAST(:expires AS bigint) IS NULL
       AND (q.owner IS NULL OR q.owner = CAST(:caller AS integer))
       AND coalesce(CAST(:max_priority AS smallint), q.max_priority)
           IS NOT DISTINCT FROM q.max_priority
       AND coalesce(CAST(:message_ttl AS bigint), q.message_ttl) IS NOT DISTINCT FROM q.message_ttl
       AND coalesce(CAST(:delivery_limit AS integer), q.delivery_limit)
           IS NOT DISTINCT FROM q.delivery_limit
"""
_AT_ONCE = f"""
    WITH made AS (
        INSERT INTO {{queue}} AS q (name, durable, auto_delete, owner, max_priority, message_ttl,
               expires, delivery_limit)
        SELECT CAST(:name AS text), CAST(:durable AS boolean), CAST(:auto_delete AS boolean),
               CAST(:owner AS integer), CAST(:max_priority AS smallint),
               CAST(:message_ttl AS bigint), CAST(:expires AS bigint),
               CAST(:delivery_limit AS integer)
         WHERE NOT EXISTS (SELECT FROM {{queue}} WHERE name = :name)
            ON CONFLICT (name) DO NOTHING RETURNING id)
    SELECT id, 0, 0 FROM made
    UNION ALL ({_STATE} {_AS_DECLARED})
"""  # noqa: S608


def _columns(arguments: Mapping[str, Any] | None) -> dict[str, int | None]:
    values = {column: _whole(key, arguments) for key, column in ARGUMENTS.items()}
    if values["max_priority"] is not None:
        values["max_priority"] = min(values["max_priority"], 255)
    return values


def declare(
    connection: Connection,
    tables: BrokerTables,
    name: str,
    *,
    durable: bool = True,
    auto_delete: bool = False,
    owner: int | None = None,
    arguments: Mapping[str, Any] | None = None,
    caller: int | None = None,
) -> Declared:
    """Creates the queue, or marks it as used.

    `owner` is the consumer that it is exclusive to, `caller` the one that declares it. Arguments
    that a later declaration leaves out stay. Raises `QueueLocked` if the queue is exclusive to
    another consumer, and `ValueError` for an invalid name or argument.
    """
    check_name(name)
    values = _columns(arguments)
    locked = connection.execute(tables.text(_LOCKED), {"name": name, "owner": caller}).one_or_none()
    if locked is not None:
        if not locked[1]:
            raise QueueLocked(f"queue {name!r} is exclusive to another running process")
        delete(connection, tables, name)
    connection.execute(
        tables.text(_DECLARE),
        {"name": name, "durable": durable, "auto_delete": auto_delete, "owner": owner, **values},
    )
    declared = find(connection, tables, name)
    if declared is None:  # another process has deleted it meanwhile
        return declare(
            connection, tables, name, durable=durable, auto_delete=auto_delete, owner=owner,
            arguments=arguments, caller=caller,
        )  # fmt: skip
    return declared


def _whole(key: str, arguments: Mapping[str, Any] | None) -> int | None:
    value = (arguments or {}).get(key)
    if value is None:
        return None
    try:
        number = int(value)
    except (TypeError, ValueError):
        number = -1
    if number < 0:
        raise ValueError(f"{key} must be a whole number, 0 or more, got {value!r}")
    return number


# No single index has all messages of a queue; three of them together do, and cost nothing where
# they have none.
_DELETE = """
    WITH gone AS (DELETE FROM {queue} WHERE id = ANY (ARRAY({locked})) RETURNING id, name),
    unbound AS (DELETE FROM {binding} WHERE queue_id IN (SELECT id FROM gone) RETURNING exchange),
    left_over AS (DELETE FROM {consumer} WHERE queue_id IN (SELECT id FROM gone)),
    exchanges AS (
        DELETE FROM {exchange} x
         WHERE x.auto_delete AND x.name IN (SELECT exchange FROM unbound)
           AND NOT EXISTS (SELECT FROM {binding} b WHERE b.exchange = x.name
                              AND b.queue_id NOT IN (SELECT id FROM gone))),
    lost AS (
        DELETE FROM {message} WHERE ctid = ANY (ARRAY(
            SELECT m.tid FROM gone CROSS JOIN LATERAL (
                SELECT c.ctid AS tid FROM {message} c
                 WHERE c.queue_id = gone.id AND c.visible
                UNION ALL
                SELECT c.ctid FROM {message} c
                 WHERE c.queue_id = gone.id AND c.available_at IS NOT NULL
                UNION ALL
                SELECT c.ctid FROM {message} c
                 WHERE c.queue_id = gone.id AND c.claimed_by IS NOT NULL) AS m))
        RETURNING visible, job_id, queue_id),
    gone_messages AS (
        SELECT l.job_id, gone.name AS queue FROM lost l JOIN gone ON gone.id = l.queue_id),
    noted AS (
        {note})
    SELECT count(*) FILTER (WHERE visible) FROM lost
"""


def _delete(tables: BrokerTables, which: str) -> TextClause:
    return tables.text(_DELETE, which=which, locked=LOCK, how="'deleted'", note=message_ends.NOTE)


def delete(
    connection: Connection,
    tables: BrokerTables,
    name: str,
    *,
    if_unused: bool = False,
    if_empty: bool = False,
) -> int:
    """Deletes the queue with its bindings and messages; returns how many messages waited."""
    which = "q.name = :name"
    if if_unused:
        which += " AND NOT EXISTS (SELECT FROM {consumer} c WHERE c.queue_id = q.id)"
    if if_empty:
        which += " AND NOT EXISTS (SELECT FROM {message} m WHERE m.queue_id = q.id)"
    return int(connection.execute(_delete(tables, which), {"name": name}).scalar_one())


def delete_abandoned(connection: Connection, tables: BrokerTables, queues: Sequence[int]) -> None:
    """Deletes those of the queues that are `auto_delete` and have no consumer left."""
    which = (
        "q.id = ANY (:queues) AND q.auto_delete "
        "AND NOT EXISTS (SELECT FROM {consumer} c WHERE c.queue_id = q.id)"
    )
    connection.execute(_delete(tables, which), {"queues": list(queues)})


def delete_expired(connection: Connection, tables: BrokerTables) -> None:
    """Deletes queues that no consumer has used for the time they were declared to live unused."""
    which = (
        "q.used_at + q.expires * interval '1 millisecond' < now() "
        "AND NOT EXISTS (SELECT FROM {consumer} c WHERE c.queue_id = q.id)"
    )
    connection.execute(_delete(tables, which))


def delete_owned(connection: Connection, tables: BrokerTables, owners: Sequence[int]) -> None:
    """Deletes the queues that were exclusive to these consumers."""
    connection.execute(_delete(tables, "q.owner = ANY (:owners)"), {"owners": list(owners)})


#: Messages that one call of `purge` deletes at most.
PURGED = 10_000


def purge(connection: Connection, tables: BrokerTables, name: str) -> int:
    """Deletes messages that wait in the queue, delayed ones too, up to `PURGED`; returns how many.

    If there are fewer, none is left but those that are locked: consumers are about to claim them.
    """
    values = {"name": name, "id": _id(connection, tables, name), "limit": PURGED}
    statement = tables.text(_PURGE, how="'purged'", note=message_ends.NOTE)
    return int(connection.execute(statement, values).scalar_one())


# Messages that kombu's SQLAlchemy transport delivered are not counted. The queue's id is a
# parameter so that the server can estimate how many messages the queue has.
_PURGE = """
    WITH gone_messages AS (
        DELETE FROM {message} m WHERE m.claimed_by IS NULL AND m.ctid = ANY (ARRAY(
            SELECT w.ctid FROM (
                SELECT c.ctid FROM {message} c WHERE c.queue_id = :id AND c.visible
                 LIMIT :limit FOR UPDATE SKIP LOCKED) AS w
            UNION ALL
            SELECT d.ctid FROM (
                SELECT c.ctid FROM {message} c
                 WHERE c.queue_id = :id AND c.available_at IS NOT NULL
                 LIMIT :limit FOR UPDATE SKIP LOCKED) AS d
             LIMIT :limit))
        RETURNING m.job_id, CAST(:name AS text) AS queue),
    noted AS (
        {note})
    SELECT count(*) FROM gone_messages
"""


_PAUSE = """
    UPDATE {queue} SET paused_at = CASE WHEN :paused THEN now() END
     WHERE name = :name AND (paused_at IS NULL) = :paused RETURNING id
"""
_AGAIN = text("SELECT pg_notify(:channel, 'again')")


def set_paused(connection: Connection, tables: BrokerTables, name: str, paused: bool) -> bool:
    """Stops consumers from claiming the queue's messages, or lets them claim again.

    Returns whether that is a change. Raises `NotFound`.
    """
    values = {"name": name, "paused": paused}
    changed = connection.execute(tables.text(_PAUSE), values).scalar_one_or_none()
    if changed is None and find(connection, tables, name) is None:
        raise _missing(connection, tables, name)
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

        Consumers on the stock transport are not seen.
        """
        return bool(self.waiting or self.claimed) and not self.consumers and not self.is_internal

    @property
    def audited(self) -> tuple[str, str, dict[str, Any]]:
        """The kind, subject and values that the audit log records."""
        return "queue", self.name, {"paused_at": self.paused_at}


# Dead consumers have their rows until a live one releases them.
_QUEUES = """
    WITH alive AS (SELECT id FROM pgbeat.consumers EXCEPT SELECT pgbeat.dead_consumers())
    SELECT q.name, coalesce(m.waiting, 0), coalesce(m.delayed, 0), coalesce(m.claimed, 0),
           coalesce(d.count, 0), coalesce(c.count, 0), clock_timestamp() - m.oldest, q.paused_at,
           q.auto_delete, q.owner
      FROM {queue} q
           LEFT JOIN (
               SELECT queue_id, count(*) FILTER (WHERE visible) AS waiting,
                      count(available_at) AS delayed, count(claimed_by) AS claimed,
                      min(enqueued_at) FILTER (WHERE visible) AS oldest
                 FROM {message} GROUP BY queue_id) m ON m.queue_id = q.id
           LEFT JOIN (SELECT queue, count(*) FROM {dead} GROUP BY queue) d ON d.queue = q.name
           LEFT JOIN (
               SELECT queue_id, count(*) FROM {consumer} JOIN alive ON id = consumer_id
                GROUP BY queue_id) c ON c.queue_id = q.id
"""


def all_queues(connection: Connection, tables: BrokerTables) -> list[QueueSummary]:
    """Returns every queue with its numbers, by name."""
    rows = connection.execute(tables.text(_QUEUES + " ORDER BY q.name"))
    return [QueueSummary(*row) for row in rows]


def get(connection: Connection, tables: BrokerTables, name: str) -> QueueSummary:
    """Returns the queue of that name with its numbers. Raises `NotFound`."""
    values = {"name": name, "id": _id(connection, tables, name)}
    row = connection.execute(tables.text(_QUEUE), values).one_or_none()
    if row is None:
        raise _missing(connection, tables, name)
    return QueueSummary(*row)


def _id(connection: Connection, tables: BrokerTables, name: str) -> int | None:
    statement = tables.text("SELECT id FROM {queue} WHERE name = :name")
    return connection.execute(statement, {"name": name}).scalar_one_or_none()


# As `_QUEUES`, without reading the other queues: each number comes from a part of an index.
_QUEUE = """
    SELECT q.name, w.count,
           (SELECT count(*) FROM {message} m WHERE m.queue_id = :id AND m.available_at IS NOT NULL),
           (SELECT count(*) FROM {message} m WHERE m.queue_id = :id AND m.claimed_by IS NOT NULL),
           (SELECT count(*) FROM {dead} d WHERE d.queue = :name),
           (SELECT count(*) FROM {consumer} c
             WHERE c.queue_id = :id AND c.consumer_id IN (
                       SELECT id FROM pgbeat.consumers EXCEPT SELECT pgbeat.dead_consumers())),
           clock_timestamp() - w.oldest, q.paused_at, q.auto_delete, q.owner
      FROM {queue} q CROSS JOIN (
               SELECT count(*), min(m.enqueued_at) AS oldest
                 FROM {message} m WHERE m.queue_id = :id AND m.visible) AS w
     WHERE q.id = :id
"""


def _missing(connection: Connection, tables: BrokerTables, name: str) -> NotFound:
    names = connection.scalars(tables.text("SELECT name FROM {queue} ORDER BY 1 LIMIT 10000"))
    return not_found("queue", name, names)
