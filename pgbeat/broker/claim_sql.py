"""The statements that claim messages, as templates for `BrokerTables.sql`.

`CLAIM` and `TAKE` begin where `low` says: at a queue's start, or at a mark. A consumer that is not
`alive` claims nothing.
"""

# A consumer with a session of its own is alive as long as it can claim; the row is missed if it
# was deleted by hand.
REGISTERED = "SELECT FROM pgbeat.consumers c WHERE c.id = $3::integer"
# One that lives by a lease keeps its row from being deleted while it claims.
LEASED = REGISTERED + " AND c.lease_until >= clock_timestamp() FOR KEY SHARE"
FROM_THE_START = """
    SELECT r.tid
      FROM (SELECT w.queue_id
              FROM unnest($1::bigint[]) WITH ORDINALITY AS w (queue_id, position)
                   JOIN {queue} q ON q.id = w.queue_id AND q.paused_at IS NULL
             ORDER BY w.position) AS w
           CROSS JOIN LATERAL (
               SELECT c.ctid AS tid FROM {message} c
                WHERE c.queue_id = w.queue_id AND c.visible
                  AND (c.expires_at IS NULL OR c.expires_at > now())
                ORDER BY c.priority DESC, c.id + 0 LIMIT $2::integer FOR UPDATE SKIP LOCKED) AS r
"""
# Where a transaction that is open elsewhere keeps dead rows from being cleaned up, a queue's index
# begins with all the messages of that time: they are passed over by their ids.
FROM_MARKS = """
    SELECT r.tid
      FROM (SELECT w.queue_id, w.priority, w.low
              FROM unnest($1::bigint[], $5::smallint[], $6::bigint[])
                       WITH ORDINALITY AS w (queue_id, priority, low, position)
                   JOIN {queue} q ON q.id = w.queue_id AND q.paused_at IS NULL
             ORDER BY w.position) AS w
           CROSS JOIN LATERAL (
               SELECT c.ctid AS tid FROM {message} c
                WHERE c.queue_id = w.queue_id AND c.visible
                  AND c.priority = w.priority AND c.id + 0 >= w.low
                  AND (c.expires_at IS NULL OR c.expires_at > now())
                ORDER BY c.id + 0 LIMIT $2::integer FOR UPDATE SKIP LOCKED) AS r
"""
TAKE = """
    WITH acked AS (
        DELETE FROM {message} WHERE id = ANY ($4::bigint[])
           AND claimed_by IS NOT DISTINCT FROM $3::integer),
    picked AS MATERIALIZED (
        {low}
        LIMIT $2::integer)
    DELETE FROM {message} m WHERE m.ctid = ANY (ARRAY(SELECT tid FROM picked))
    RETURNING m.id, m.queue_id, m.priority, m.deliveries + 1, m.redelivered, m.payload
"""
# Each queue's rows are read in the index's order and locked as they are read; the outer LIMIT
# stops at the number wanted, so no row is locked in vain. Queues come in the order given. What
# was picked is found by its place: no estimate of how many that are can make it a join. What is
# acknowledged is found by its id, and never by its consumer: that index has all that this
# consumer ever claimed, as long as a transaction elsewhere may see it.
CLAIM = """
    WITH acked AS (
        DELETE FROM {message} WHERE id = ANY ($4::bigint[])
           AND claimed_by IS NOT DISTINCT FROM $3::integer),
    me AS MATERIALIZED ({alive}),
    picked AS MATERIALIZED (
        {low}
        WHERE EXISTS (SELECT FROM me)
        LIMIT $2::integer),
    claimed AS (
        UPDATE {message} m
           SET visible = false, claimed_by = $3::integer,
               deliveries = least(m.deliveries + 1, 32767)
         WHERE m.ctid = ANY (ARRAY(SELECT tid FROM picked))
        RETURNING m.id, m.queue_id, m.priority, m.deliveries, m.redelivered, m.payload)
    SELECT * FROM claimed
    UNION ALL
    SELECT NULL, NULL, NULL, (SELECT count(*) FROM me), NULL,
           extract(epoch FROM clock_timestamp() - statement_timestamp())::text
"""
