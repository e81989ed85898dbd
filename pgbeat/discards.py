"""Discards: jobs whose message was taken out of its queue without being delivered.

`pgbeat.message_ends` has a row for each, written where the message was deleted. A job that stands
alone ends in the same transaction. One in a lane or a group, and one that another transaction has
locked, ends with the next sweep (`pgbeat.recovery`), together with what follows from it.
"""

from collections.abc import Collection, Sequence

from sqlalchemy import Connection, text

from pgbeat import jobs, message_ends, queues
from pgbeat.jobs import Ended
from pgbeat.messages import BrokerTables

_WHY = {
    "purged": "its message was purged{queue}",
    "deleted": "its message was deleted{queue} with the queue",
    "expired": "expired: no worker took its message{queue} in time",
}


def why(how: str, queue: str | None) -> str:
    """Returns the reason that such a job ends with."""
    return _WHY[how].format(queue="" if queue is None else f" from queue {queue!r}")


def purge(connection: Connection, tables: BrokerTables, name: str) -> int:
    """Deletes the messages that wait in a queue, delayed ones too, and cancels the jobs that they
    would have started. Returns how many messages there were."""
    count = queues.purge(connection, tables, name)
    if count:
        settle_own(connection)
    return count


def delete_queue(
    connection: Connection,
    tables: BrokerTables,
    name: str,
    *,
    if_unused: bool = False,
    if_empty: bool = False,
) -> int:
    """Deletes a queue with its messages, and cancels the jobs that those would have started.
    Returns how many of the messages waited."""
    count = queues.delete(connection, tables, name, if_unused=if_unused, if_empty=if_empty)
    settle_own(connection)
    return count


_EXPIRE = """
    WITH gone_messages AS (
        DELETE FROM {message} m USING unnest(ARRAY(
            SELECT ctid FROM {message} WHERE expires_at <= now() AND claimed_by IS NULL
             ORDER BY expires_at LIMIT 5000 FOR UPDATE SKIP LOCKED)) AS e (tid)
         WHERE m.ctid = e.tid
        RETURNING m.job_id, (SELECT q.name FROM {queue} q WHERE q.id = m.queue_id) AS queue)
    {note}
""".replace("{note}", message_ends.note("expired"))


def expire(connection: Connection, tables: BrokerTables) -> None:
    """Deletes messages and queues that have outlived their time, and cancels the jobs that the
    messages would have started."""
    connection.execute(tables.text(_EXPIRE))
    queues.delete_expired(connection, tables)
    settle_own(connection)


_DISCARDED = """
    SELECT e.job_id, e.how, e.queue
      FROM pgbeat.message_ends e JOIN pgbeat.jobs j ON j.id = e.job_id
     WHERE e.how <> 'accepted' AND j.state IN ('pending', 'scheduled')
       AND j.dispatched_at <= e.ended_at
       AND NOT EXISTS (SELECT FROM pgbeat.message_ends n
                        WHERE n.job_id = e.job_id AND n.id > e.id)
"""
_WAITING = text(f"{_DISCARDED} AND j.namespace = :namespace ORDER BY e.id LIMIT 2000")
_AMONG = text(f"{_DISCARDED} AND e.job_id = ANY (CAST(:jobs AS uuid[]))")
# By the transaction that wrote them: what this one has just discarded.
_OWN = text(
    f"{_DISCARDED} AND e.xmin = pg_current_xact_id()::xid AND j.lane IS NULL AND j.group_id IS NULL"
)


def waiting(connection: Connection, namespace: str) -> list[str]:
    """Returns the jobs (ids) of discarded messages that have not ended."""
    return [str(row.job_id) for row in connection.execute(_WAITING, {"namespace": namespace})]


def settle(connection: Connection, job_ids: Collection[str]) -> list[Ended]:
    """Ends those of the jobs whose message was discarded; what follows is for `lifecycle.follow`.

    A job that another transaction has locked is left out.
    """
    return _end(connection, connection.execute(_AMONG, {"jobs": list(job_ids)}).all())


def settle_own(connection: Connection) -> None:
    """Ends the jobs whose messages the open transaction has discarded, if they stand alone."""
    _end(connection, connection.execute(_OWN).all())


def _end(connection: Connection, rows: Sequence[tuple[object, str, str | None]]) -> list[Ended]:
    reasons: dict[tuple[str, str | None], list[str]] = {}
    for job_id, how, queue in rows:
        reasons.setdefault((how, queue), []).append(str(job_id))
    ended: list[Ended] = []
    for (how, queue), job_ids in reasons.items():
        ended += jobs.end(
            connection, job_ids, "cancelled", why(how, queue), of=("pending", "scheduled")
        )
    return ended
