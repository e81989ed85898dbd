"""Discards messages: deletes them from their queue without delivery.

A message that would have started a job leaves a row in `pgbeat.message_ends`; its job ends.
"""

from sqlalchemy import Connection, text

from pgbeat.broker import message_ends, ports, queues
from pgbeat.database import sql


def purge(connection: Connection, name: str) -> int:
    """Deletes a queue's waiting messages as `queues.purge`, and cancels their jobs."""
    count = queues.purge(connection, name)
    if count:
        ports.job_writer().end_discarded(connection)
    return count


def delete_queue(
    connection: Connection, name: str, *, if_unused: bool = False, if_empty: bool = False
) -> int:
    """Deletes a queue with its messages and cancels their jobs; returns how many had waited."""
    count = queues.delete(connection, name, if_unused=if_unused, if_empty=if_empty)
    ports.job_writer().end_discarded(connection)
    return count


_EXPIRE = text(sql.load("discards.sql", note=message_ends.note("expired")))


def expire(connection: Connection) -> None:
    """Deletes expired messages and queues, and cancels the messages' jobs."""
    connection.execute(_EXPIRE)
    queues.delete_expired(connection)
    ports.job_writer().end_discarded(connection)
