"""Discards messages: deletes them from their queue without delivery.

A message that would have started a job leaves a row in `pgbeat.message_ends`; its job ends.
"""

from sqlalchemy import Connection

from pgbeat.broker import message_ends, ports, queues
from pgbeat.broker.messages import BrokerTables


def purge(connection: Connection, tables: BrokerTables, name: str) -> int:
    """Deletes a queue's waiting messages as `queues.purge`, and cancels their jobs."""
    count = queues.purge(connection, tables, name)
    if count:
        ports.job_writer().end_discarded(connection)
    return count


def delete_queue(
    connection: Connection,
    tables: BrokerTables,
    name: str,
    *,
    if_unused: bool = False,
    if_empty: bool = False,
) -> int:
    """Deletes a queue with its messages and cancels their jobs; returns how many had waited."""
    count = queues.delete(connection, tables, name, if_unused=if_unused, if_empty=if_empty)
    ports.job_writer().end_discarded(connection)
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
    """Deletes expired messages and queues, and cancels the messages' jobs."""
    connection.execute(tables.text(_EXPIRE, how="'expired'", note=message_ends.NOTE))
    queues.delete_expired(connection, tables)
    ports.job_writer().end_discarded(connection)
