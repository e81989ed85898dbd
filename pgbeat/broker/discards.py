"""Discards: messages that are taken out of their queue without being delivered.

Each that would have started a job leaves a row in `pgbeat.message_ends`, and its job ends.
"""

from sqlalchemy import Connection

from pgbeat import settle_discarded
from pgbeat.broker import message_ends, queues
from pgbeat.broker.messages import BrokerTables


def purge(connection: Connection, tables: BrokerTables, name: str) -> int:
    """Deletes the messages that wait in a queue, delayed ones too, and cancels the jobs that they
    would have started. Returns how many messages there were."""
    count = queues.purge(connection, tables, name)
    if count:
        settle_discarded(connection)
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
    settle_discarded(connection)
    return count


_EXPIRE = """
    WITH gone_messages AS (
        DELETE FROM {message} m USING unnest(ARRAY(
            SELECT ctid FROM {message} WHERE expires_at <= now() AND claimed_by IS NULL
             ORDER BY expires_at LIMIT 5000 FOR UPDATE SKIP LOCKED)) AS e (tid)
         WHERE m.ctid = e.tid
        RETURNING m.job_id, (SELECT q.name FROM {queue} q WHERE q.id = m.queue_id) AS queue)
    {note}
"""


def expire(connection: Connection, tables: BrokerTables) -> None:
    """Deletes messages and queues that have outlived their time, and cancels the jobs that the
    messages would have started."""
    connection.execute(tables.text(_EXPIRE, how="'expired'", note=message_ends.NOTE))
    queues.delete_expired(connection, tables)
    settle_discarded(connection)
