"""Registers consumers, requeues and rejects their claims, and releases them when they die."""

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import Connection, text
from sqlalchemy.sql.elements import TextClause

from pgbeat.broker import queues
from pgbeat.broker.messages import BrokerTables

#: The first half of the advisory locks that show which consumers are alive.
LIFE = 1885823587


def register(
    connection: Connection, tables: BrokerTables, name: str, lease: float | None = None
) -> int:
    """Registers a consumer, alive as long as this session or, with `lease`, for those seconds.

    Returns its id.
    """
    while True:
        values = {"tables": tables.sql("{message}"), "name": name, "lease": lease, "life": LIFE}
        made, lives = connection.execute(_REGISTER, values).one()
        if lives:
            return int(made)


# A single statement, so that no other consumer can see the row before its lock is held, and take
# this consumer for dead.
_REGISTER = text(
    "WITH made AS (INSERT INTO pgbeat.consumers (tables, name, lease_until) "
    "VALUES (CAST(:tables AS regclass), :name, "
    "now() + make_interval(secs => CAST(:lease AS float8))) RETURNING id) "
    "SELECT id, CASE WHEN CAST(:lease AS float8) IS NULL THEN pg_try_advisory_lock(:life, id) "
    "ELSE true END FROM made"
)


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


def give_up(connection: Connection, consumer: int) -> None:
    """Ends the consumer's lease, so that others release its claims."""
    connection.execute(_GIVE_UP, {"id": consumer})


_GIVE_UP = text("UPDATE pgbeat.consumers SET lease_until = '-infinity' WHERE id = :id")


def subscribe(
    connection: Connection, tables: BrokerTables, consumer: int, of: Sequence[int]
) -> set[int]:
    """Records that the consumer consumes from queues (ids); returns the `auto_delete` ones."""
    fragile = connection.scalars(
        tables.text(
            "WITH noted AS (INSERT INTO {consumer} (queue_id, consumer_id) "
            "SELECT queue, :consumer FROM unnest(CAST(:queues AS bigint[])) AS q (queue) "
            "ON CONFLICT DO NOTHING) "
            "SELECT id FROM {queue} WHERE id = ANY (:queues) AND auto_delete"
        ),
        {"queues": list(of), "consumer": consumer},
    )
    return {int(queue) for queue in fragile}


def unsubscribe(
    connection: Connection, tables: BrokerTables, consumer: int, of: Sequence[int]
) -> None:
    """Records that the consumer no longer consumes from queues (ids).

    `queues.delete_abandoned` must delete the `auto_delete` ones in the same transaction.
    """
    connection.execute(
        tables.text(
            "WITH gone AS (DELETE FROM {consumer} WHERE consumer_id = :consumer "
            "AND queue_id = ANY (:queues)) {mark_used}",
            which="q.id = ANY (:queues) AND q.expires IS NOT NULL",
            locked=queues.LOCK,
            mark_used=queues.MARK_USED,
        ),
        {"consumer": consumer, "queues": list(of)},
    )


def leave(connection: Connection, tables: BrokerTables, consumer: int) -> None:
    """Releases the consumer's claims, and deletes it with its exclusive queues."""
    _release(connection, tables, [consumer], limit=None, counts=False)


#: Inserts the rows of a CTE `dead` as dead letters. They keep the messages' ids, unless an older
#: letter has the same, as can happen after a restore or a reset of the sequence. If another
#: transaction takes that id at the same moment, the whole statement fails and the message stays.
_NOTE = """
        INSERT INTO {dead} (id, queue, payload, priority, deliveries, reason, enqueued_at, job_id)
        SELECT CASE WHEN EXISTS (SELECT FROM {dead} t WHERE t.id = d.id)
                    THEN greatest((SELECT max(t.id) FROM {dead} t), (SELECT max(o.id) FROM dead o))
                         + row_number() OVER (ORDER BY d.id)
                    ELSE d.id END,
               coalesce(q.name, ''), d.payload, d.priority, d.deliveries, {reason},
               d.enqueued_at, d.job_id
          FROM dead d LEFT JOIN {queue} q ON q.id = d.queue_id
"""
_SPENT = "'delivered ' || d.deliveries || ' times, the last time ' || :fate"


#: Whether a message `m` starts a job that has ended: the job was cancelled while a consumer had the
#: message, or ended without acknowledging it, or was retried before its process died. The message
#: of a failed job may have been requeued by hand.
_IS_OVER = """m.job_id IS NOT NULL AND coalesce((
                   SELECT j.state IN ('completed', 'cancelled', 'skipped')
                          OR j.retried_by IS NOT NULL
                     FROM pgbeat.jobs j WHERE j.id = m.job_id), false)"""
# Rows are found again by arrays: for a join, the planner may expect so many that it reads the whole
# table.
_REQUEUE = """
    WITH mine AS (
        SELECT m.id, m.queue_id, {over} AS over,
               :uncounted = 0 AND m.deliveries >= coalesce(q.delivery_limit, :limit) AS spent
          FROM {message} m LEFT JOIN {queue} q ON q.id = m.queue_id
         WHERE {which} FOR UPDATE OF m SKIP LOCKED),
    useless AS (
        DELETE FROM {message} m WHERE m.id = ANY (ARRAY(SELECT id FROM mine WHERE over))),
    dead AS (
        DELETE FROM {message} m
         USING unnest(ARRAY(SELECT id FROM mine WHERE spent AND NOT over)) AS d (id)
         WHERE m.id = d.id RETURNING m.*),
    noted AS (
        {note}),
    back AS (
        UPDATE {message} m SET visible = true, claimed_by = NULL, redelivered = true,
               deliveries = m.deliveries - :uncounted
          FROM unnest(ARRAY(SELECT id FROM mine WHERE spent IS NOT TRUE AND NOT over)) AS b (id)
         WHERE m.id = b.id RETURNING m.queue_id)
    SELECT {result}, count(pgbeat.announce_queue(queue_id, 'again'))
      FROM (SELECT DISTINCT queue_id FROM back) AS q
"""
#: The messages `m` among those given that the consumer has claimed.
_CLAIMED = "m.id = ANY (:messages) AND m.claimed_by IS NOT DISTINCT FROM :consumer"
#: Those of them that another session has locked.
_LEFT = """ARRAY(SELECT m.id FROM {message} m
                   WHERE {claimed} AND m.id <> ALL (ARRAY(SELECT id FROM mine)))"""


def _requeue(tables: BrokerTables, which: str, result: str) -> TextClause:
    parts = {"over": _IS_OVER, "claimed": _CLAIMED, "which": which, "reason": _SPENT}
    return tables.text(_REQUEUE, **parts, note=_NOTE, result=result)


def requeue(
    connection: Connection,
    tables: BrokerTables,
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
    left = connection.scalar(
        _requeue(tables, _CLAIMED, _LEFT), {**values, "limit": limit, "uncounted": int(not counts)}
    )
    return [int(message) for message in left or ()]


def reject(
    connection: Connection,
    tables: BrokerTables,
    consumer: int,
    messages: Sequence[int],
    reason: str = "rejected",
) -> list[int]:
    """Makes claimed messages dead letters.

    Returns those that another session has locked, which must be rejected later.
    """
    left = connection.scalar(
        tables.text(_REJECT, claimed=_CLAIMED, left=_LEFT, reason=":reason", note=_NOTE),
        {"messages": list(messages), "consumer": consumer, "reason": reason},
    )
    return [int(message) for message in left or ()]


_REJECT = """
    WITH mine AS (SELECT m.id FROM {message} m WHERE {claimed} FOR UPDATE SKIP LOCKED),
    dead AS (
        DELETE FROM {message} m WHERE m.id = ANY (ARRAY(SELECT id FROM mine)) RETURNING m.*),
    noted AS (
        {note})
    SELECT {left}
"""


# A consumer may have renewed its lease since it was found dead, so its row is locked and read
# again. A claim under a lease locks the row until it is done.
_DOOMED = """
    WITH locked AS (
        SELECT c.id FROM pgbeat.consumers c
         WHERE c.id = ANY (:dead) AND c.id IN (SELECT pgbeat.dead_consumers())
           AND (c.lease_until IS NULL OR c.lease_until < clock_timestamp())
           FOR UPDATE SKIP LOCKED)
    SELECT id FROM locked
    UNION ALL
    SELECT d.id FROM unnest(CAST(:dead AS integer[])) AS d (id)
     WHERE NOT EXISTS (SELECT FROM pgbeat.consumers c WHERE c.id = d.id)
"""


def release_dead(
    connection: Connection, tables: BrokerTables, dead: Sequence[int], *, limit: int | None
) -> int:
    """Releases the claims of dead or unknown consumers, and deletes their exclusive queues.

    Returns how many messages they had claimed.
    """
    doomed = list(connection.scalars(text(_DOOMED), {"dead": list(dead)}))
    return _release(connection, tables, doomed, limit=limit) if doomed else 0


def _release(
    connection: Connection,
    tables: BrokerTables,
    gone: Sequence[int],
    *,
    limit: int | None,
    counts: bool = True,
) -> int:
    values = {"dead": list(gone), "limit": limit, "uncounted": int(not counts)}
    connection.execute(tables.text(queues.LOCK, which=_THEIR_QUEUES), {"dead": list(gone)})
    released = connection.execute(
        _requeue(tables, "m.claimed_by = ANY (:dead)", "(SELECT count(*) FROM mine)"),
        {**values, "fate": "to a consumer that died"},
    ).one()[0]
    abandoned = connection.scalars(
        tables.text(
            "WITH gone AS (DELETE FROM {consumer} WHERE consumer_id = ANY (:dead) "
            "RETURNING queue_id) UPDATE {queue} SET used_at = now() "
            "WHERE id IN (SELECT queue_id FROM gone) RETURNING id"
        ),
        {"dead": list(gone)},
    ).all()
    queues.delete_owned(connection, tables, gone)
    queues.delete_abandoned(connection, tables, abandoned)
    # A row that another session had locked was skipped; its consumer stays for the next time.
    connection.execute(
        tables.text(
            "DELETE FROM pgbeat.consumers c WHERE id = ANY (:dead) "
            "AND NOT EXISTS (SELECT FROM {message} m WHERE m.claimed_by = c.id)"
        ),
        {"dead": list(gone)},
    )
    return int(released)


_THEIR_QUEUES = """
    q.owner = ANY (:dead)
    OR q.id IN (SELECT queue_id FROM {consumer} WHERE consumer_id = ANY (:dead))
"""


def unknown(connection: Connection, tables: BrokerTables) -> list[int]:
    """Returns the ids of deleted consumers that still have claims."""
    return [int(id) for id in connection.scalars(tables.text(_UNKNOWN))]


# Goes from holder to holder by the index, however many messages each has claimed.
_UNKNOWN = """
    WITH RECURSIVE holder AS (
        SELECT min(claimed_by) AS id FROM {message} WHERE claimed_by IS NOT NULL
        UNION ALL
        SELECT (SELECT min(m.claimed_by) FROM {message} m WHERE m.claimed_by > h.id)
          FROM holder h WHERE h.id IS NOT NULL)
    SELECT h.id FROM holder h
     WHERE h.id IS NOT NULL
       AND NOT EXISTS (SELECT FROM pgbeat.consumers c WHERE c.id = h.id)
"""


class DueMaintenance(NamedTuple):
    """Maintenance that is due across all consumers."""

    #: Ids of dead consumers.
    dead: list[int]
    #: Seconds until the next delayed message is due; `None` if there is none.
    next_due: float | None
    #: Whether messages or queues have expired.
    has_expired: bool
    #: How many consumers are registered.
    consumers: int


_DUE_MAINTENANCE = """
    SELECT ARRAY(SELECT d.id FROM pgbeat.dead_consumers() AS d (id)
                        JOIN pgbeat.consumers c USING (id)
                  WHERE c.tables = CAST(:tables AS regclass) AND c.id <> :consumer),
           (SELECT extract(epoch FROM min(available_at) - clock_timestamp())::float8
              FROM {message} WHERE available_at IS NOT NULL),
           coalesce((SELECT min(expires_at) FROM {message}
                      WHERE expires_at IS NOT NULL AND claimed_by IS NULL) <= now(), false)
               OR EXISTS (SELECT FROM {queue} q
                   WHERE q.used_at + q.expires * interval '1 millisecond' < now()
                     AND NOT EXISTS (SELECT FROM {consumer} c WHERE c.queue_id = q.id)),
           (SELECT count(*) FROM pgbeat.consumers WHERE tables = CAST(:tables AS regclass))
"""


_MAINTENANCE_LOCK = """
    SELECT pg_try_advisory_xact_lock(
        hashtextextended('pgbeat.maintenance ' || CAST(:tables AS regclass)::oid, 0))
"""


def try_maintenance_lock(connection: Connection, tables: BrokerTables) -> bool:
    """Takes the lock for releasing and promoting messages; returns whether this transaction has it.

    If two consumers requeued the same messages, the second would find nothing to do but would have
    locked the rows, since Postgres reads their newest version only under a lock. A consumer that
    was notified of them would skip the locked rows and sleep.
    """
    return bool(
        connection.scalar(tables.text(_MAINTENANCE_LOCK), {"tables": tables.sql("{message}")})
    )


def due_maintenance(
    connection: Connection, tables: BrokerTables, consumer: int = 0
) -> DueMaintenance:
    """Returns the maintenance that is due, in one statement that is cheap if there is none.

    It never reports `consumer` itself as dead, since only others may release its claims.
    """
    values = {"tables": tables.sql("{message}"), "consumer": consumer}
    return DueMaintenance(*connection.execute(tables.text(_DUE_MAINTENANCE), values).one())


_PROMOTE = """
    WITH due AS (
        SELECT m.ctid AS tid, {over} AS over FROM {message} m
         WHERE available_at <= clock_timestamp() ORDER BY available_at LIMIT :limit
           FOR UPDATE SKIP LOCKED),
    useless AS (
        DELETE FROM {message} m WHERE m.ctid = ANY (ARRAY(SELECT tid FROM due WHERE over))),
    ready AS (
        UPDATE {message} m
           SET visible = true, available_at = NULL, enqueued_at = now(),
               id = nextval('message_id_sequence')
          FROM unnest(ARRAY(SELECT tid FROM due WHERE NOT over)) AS d (tid)
         WHERE m.ctid = d.tid RETURNING m.queue_id)
    SELECT (SELECT count(*) FROM due), count(pgbeat.announce_queue(queue_id))
      FROM (SELECT DISTINCT queue_id FROM ready) AS q
"""


def promote(connection: Connection, tables: BrokerTables, limit: int = 1000) -> int:
    """Makes due delayed messages available, behind those that wait already; returns how many."""
    row = connection.execute(tables.text(_PROMOTE, over=_IS_OVER), {"limit": limit}).one()
    return int(row[0])
