"""Deletes messages that no consumer can get: already delivered by kombu, or of a deleted queue.

Indexes find both, however many other messages there are.
"""

from sqlalchemy import Connection

from pgbeat.broker import message_ends
from pgbeat.broker.messages import BrokerTables

# kombu's SQLAlchemy transport leaves delivered messages: neither visible, nor claimed, nor delayed.
_DELIVERED = """
    DELETE FROM {message} WHERE ctid = ANY (ARRAY(
        SELECT m.ctid FROM {message} m
         WHERE NOT m.visible AND m.claimed_by IS NULL AND m.available_at IS NULL
         LIMIT :limit FOR UPDATE SKIP LOCKED))
"""
# Goes from queue to queue by the index of ready messages. Delayed and claimed messages are deleted
# with their queue; one that is put at that moment may stay.
_OF_NO_QUEUE = """
    WITH RECURSIVE used AS (
        SELECT min(queue_id) AS id FROM {message} WHERE visible
        UNION ALL
        SELECT (SELECT min(m.queue_id) FROM {message} m WHERE m.visible AND m.queue_id > u.id)
          FROM used u WHERE u.id IS NOT NULL),
    gone AS MATERIALIZED (
        SELECT u.id FROM used u
         WHERE u.id IS NOT NULL AND NOT EXISTS (SELECT FROM {queue} q WHERE q.id = u.id)),
    gone_messages AS (
        DELETE FROM {message} WHERE ctid = ANY (ARRAY(
            SELECT c.tid FROM gone CROSS JOIN LATERAL (
                SELECT m.ctid AS tid FROM {message} m
                 WHERE m.queue_id = gone.id AND m.visible
                 ORDER BY m.priority DESC, m.id + 0
                 LIMIT :limit FOR UPDATE SKIP LOCKED) AS c
             LIMIT :limit))
        RETURNING job_id, NULL::text AS queue),
    noted AS ({note})
    SELECT count(*) FROM gone_messages
"""


def delete(connection: Connection, tables: BrokerTables, limit: int = 1000) -> int:
    """Deletes such messages, at most `limit` of each kind; returns how many."""
    delivered = connection.execute(tables.text(_DELIVERED), {"limit": limit}).rowcount
    statement = tables.text(_OF_NO_QUEUE, how="'deleted'", note=message_ends.NOTE)
    of_no_queue = connection.execute(statement, {"limit": limit}).scalar_one()
    return int(delivered) + int(of_no_queue)
