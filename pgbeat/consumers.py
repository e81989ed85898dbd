"""Consumers: processes that claim messages, and what becomes of their claims when they die."""

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import Connection, text
from sqlalchemy.sql.elements import TextClause

from pgbeat import queues
from pgbeat.messages import BrokerTables

#: The first half of the advisory locks that consumers live by.
LIFE = 1885823587
#: What every consumer listens to: bindings that changed, messages that are due within seconds.
CHANNEL = "pgbeat_broker"


def queue_channel(queue: int) -> str:
    """What consumers of that queue listen to."""
    return f"pgbeat_queue_{queue}"


def register(
    connection: Connection, tables: BrokerTables, name: str, lease: float | None = None
) -> int:
    """Makes a consumer, alive as long as this session or, with `lease`, for so many seconds."""
    while True:
        values = {"tables": tables.sql("{message}"), "name": name, "lease": lease}
        made, lives = connection.execute(_REGISTER, values).one()
        if lives:
            return int(made)


# One statement: nobody sees the row before its lock is held, and takes it for a dead consumer's.
_REGISTER = text(
    "WITH made AS (INSERT INTO pgbeat.consumers (tables, name, lease_until) "
    "VALUES (CAST(:tables AS regclass), :name, "
    "now() + make_interval(secs => CAST(:lease AS float8))) RETURNING id) "
    f"SELECT id, CASE WHEN CAST(:lease AS float8) IS NULL THEN pg_try_advisory_lock({LIFE}, id) "
    "ELSE true END FROM made"
)


def renew(connection: Connection, consumer: int, lease: float) -> bool:
    """Lives for so many more seconds; whether it was known still."""
    values = {"id": consumer, "lease": lease}
    return bool(connection.execute(_RENEW, values).rowcount)


_RENEW = text(
    "UPDATE pgbeat.consumers SET lease_until = now() + make_interval(secs => :lease) WHERE id = :id"
)


def subscribe(connection: Connection, tables: BrokerTables, consumer: int, queue: int) -> None:
    """Notes that the consumer consumes from the queue."""
    connection.execute(
        tables.text(
            "INSERT INTO {consumer} (queue_id, consumer_id) VALUES (:queue, :consumer) "
            "ON CONFLICT DO NOTHING"
        ),
        {"queue": queue, "consumer": consumer},
    )


def unsubscribe(
    connection: Connection, tables: BrokerTables, consumer: int, of: Sequence[int]
) -> None:
    """Notes that it no longer does; a queue that deletes itself goes with its last consumer."""
    connection.execute(
        tables.text(
            "WITH gone AS (DELETE FROM {consumer} WHERE consumer_id = :consumer "
            "AND queue_id = ANY (:queues)) "
            "UPDATE {queue} SET used_at = now() WHERE id = ANY (:queues) AND expires IS NOT NULL"
        ),
        {"consumer": consumer, "queues": list(of)},
    )
    queues.delete_abandoned(connection, tables, of)


def leave(connection: Connection, tables: BrokerTables, consumer: int) -> None:
    """The consumer is gone: what it had goes back, what was its own goes with it."""
    bury(connection, tables, [consumer], limit=None, counts=False)


#: Rows deleted as `dead` are dead letters from now on.
_NOTE = """
        INSERT INTO {dead} (id, queue, payload, priority, deliveries, reason, enqueued_at, job_id)
        SELECT d.id, coalesce(q.name, ''), d.payload, d.priority, d.deliveries, {reason},
               d.enqueued_at, d.job_id
          FROM dead d LEFT JOIN {queue} q ON q.id = d.queue_id
        ON CONFLICT DO NOTHING
"""
_SPENT = "'delivered ' || d.deliveries || ' times, the last time ' || :fate"


def _note(reason: str) -> str:
    return _NOTE.replace("{reason}", reason)


#: Whether a message `m` starts a job that has ended: it was cancelled while a consumer had it, or
#: ended and was not acknowledged, or asked for Celery's retry before its process died. One that
#: failed for good may have been requeued by hand.
_IS_OVER = """m.job_id IS NOT NULL AND coalesce((
                   SELECT j.state IN ('completed', 'cancelled', 'skipped')
                          OR j.retried_by IS NOT NULL
                     FROM pgbeat.jobs j WHERE j.id = m.job_id), false)"""
# Rows are found again by arrays of them here: a join's planner may take them for so many that it
# reads the whole table.
_GIVE_BACK = """
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
    SELECT (SELECT count(*) FROM mine), count(pgbeat.announce_queue(queue_id, 'again'))
      FROM (SELECT DISTINCT queue_id FROM back) AS q
""".replace("{over}", _IS_OVER)


def _give_back(tables: BrokerTables, which: str) -> TextClause:
    statement = _GIVE_BACK.replace("{which}", which).replace("{note}", _note(_SPENT))
    return tables.text(statement)


def requeue(
    connection: Connection,
    tables: BrokerTables,
    consumer: int,
    messages: Sequence[int],
    *,
    limit: int | None,
    counts: bool = True,
) -> None:
    """Puts claimed messages back, or among the dead letters when the limit is reached.

    Where it doesn't count they were not started.
    """
    connection.execute(
        _give_back(
            tables, "m.id = ANY (:messages) AND m.claimed_by IS NOT DISTINCT FROM :consumer"
        ),
        {
            "messages": list(messages),
            "consumer": consumer,
            "limit": limit,
            "uncounted": 0 if counts else 1,
            "fate": "rejected",
        },
    )


def reject(
    connection: Connection,
    tables: BrokerTables,
    consumer: int,
    messages: Sequence[int],
    reason: str = "rejected",
) -> None:
    """Moves claimed messages among the dead letters."""
    connection.execute(
        tables.text(
            """
            WITH dead AS (DELETE FROM {message} m
                WHERE m.id = ANY (:messages) AND m.claimed_by IS NOT DISTINCT FROM :consumer
                RETURNING m.*)
            """
            + _note(":reason")
        ),
        {"messages": list(messages), "consumer": consumer, "reason": reason},
    )


def bury(
    connection: Connection,
    tables: BrokerTables,
    dead: Sequence[int],
    *,
    limit: int | None,
    counts: bool = True,
) -> int:
    """Gives back what dead consumers had claimed, and deletes what was theirs alone; how many
    messages they had."""
    released = connection.execute(
        _give_back(tables, "m.claimed_by = ANY (:dead)"),
        {
            "dead": list(dead),
            "limit": limit,
            "uncounted": 0 if counts else 1,
            "fate": "to a consumer that died",
        },
    ).one()[0]
    abandoned = connection.scalars(
        tables.text(
            "WITH gone AS (DELETE FROM {consumer} WHERE consumer_id = ANY (:dead) "
            "RETURNING queue_id) UPDATE {queue} SET used_at = now() "
            "WHERE id IN (SELECT queue_id FROM gone) RETURNING id"
        ),
        {"dead": list(dead)},
    ).all()
    queues.delete_owned(connection, tables, dead)
    queues.delete_abandoned(connection, tables, abandoned)
    # A row that somebody else had locked was passed over: its consumer is for the next time.
    connection.execute(
        tables.text(
            "DELETE FROM pgbeat.consumers c WHERE id = ANY (:dead) "
            "AND NOT EXISTS (SELECT FROM {message} m WHERE m.claimed_by = c.id)"
        ),
        {"dead": list(dead)},
    )
    return int(released)


class Survey(NamedTuple):
    """What there is to do for the good of all."""

    #: Consumers that died.
    dead: list[int]
    #: Seconds until the next delayed message is due, at most; `None` where there is none.
    next_due: float | None
    #: Whether messages, or queues, have outlived their time.
    has_expired: bool
    #: Consumers that are registered.
    consumers: int


_SURVEY = """
    SELECT ARRAY(SELECT d.id FROM pgbeat.dead_consumers() AS d (id)
                        JOIN pgbeat.consumers c USING (id)
                  WHERE c.tables = CAST(:tables AS regclass)),
           (SELECT extract(epoch FROM min(available_at) - clock_timestamp())::float8
              FROM {message} WHERE available_at IS NOT NULL),
           coalesce((SELECT min(expires_at) FROM {message}
                      WHERE expires_at IS NOT NULL AND claimed_by IS NULL) <= now(), false)
               OR EXISTS (SELECT FROM {queue} q
                   WHERE q.used_at + q.expires * interval '1 millisecond' < now()
                     AND NOT EXISTS (SELECT FROM {consumer} c WHERE c.queue_id = q.id)),
           (SELECT count(*) FROM pgbeat.consumers WHERE tables = CAST(:tables AS regclass))
"""


_TURN = """
    SELECT pg_try_advisory_xact_lock(
        hashtextextended('pgbeat.chores ' || CAST(:tables AS regclass)::oid, 0))
"""


def take_turn(connection: Connection, tables: BrokerTables) -> bool:
    """Whether nobody else buries or promotes just now, nor will until the transaction's end.

    Two who give the same messages back would be one too many: the second finds nothing to do, but
    has locked the rows by then, for Postgres looks at their newest version only under a lock; and
    who was told of them passes over what is locked, and goes to sleep.
    """
    return bool(connection.scalar(tables.text(_TURN), {"tables": tables.sql("{message}")}))


def survey(connection: Connection, tables: BrokerTables) -> Survey:
    """Looks around; one statement, cheap where nothing is to do."""
    values = {"tables": tables.sql("{message}")}
    return Survey(*connection.execute(tables.text(_SURVEY), values).one())


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
""".replace("{over}", _IS_OVER)


def promote(connection: Connection, tables: BrokerTables, limit: int = 1000) -> int:
    """Makes delayed messages available whose time has come; how many those are. They queue up
    behind those that wait already."""
    row = connection.execute(tables.text(_PROMOTE), {"limit": limit}).one()
    return int(row[0])


def delete_useless(connection: Connection, tables: BrokerTables) -> None:
    """Deletes messages whose queue is gone, and those that the stock transport delivered: it
    leaves them where they are. Reads the whole table."""
    connection.execute(
        tables.text(
            "DELETE FROM {message} m WHERE m.claimed_by IS NULL "
            "AND ((NOT m.visible AND m.available_at IS NULL) "
            "OR NOT EXISTS (SELECT FROM {queue} q WHERE q.id = m.queue_id))"
        )
    )
