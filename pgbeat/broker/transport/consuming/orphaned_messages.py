"""Deletes messages that no consumer can get: already delivered by kombu, or of a deleted queue.

Indexes find both, however many other messages there are.
"""

from sqlalchemy import Connection, text

from pgbeat.broker import message_ends
from pgbeat.database import sql

_DELIVERED = text(sql.load("orphaned_messages.sql", "delivered"))
_OF_NO_QUEUE = text(
    sql.load("orphaned_messages.sql", "of_no_queue", note=message_ends.note("deleted"))
)


def delete(connection: Connection, limit: int = 1000) -> int:
    """Deletes such messages, at most `limit` of each kind; returns how many."""
    delivered = connection.execute(_DELIVERED, {"limit": limit}).rowcount
    of_no_queue = connection.execute(_OF_NO_QUEUE, {"limit": limit}).scalar_one()
    return int(delivered) + int(of_no_queue)
