-- The statements that claim messages. `claim` and `take` read messages by `low`: from each queue's
-- start, or from a mark. `claim` claims nothing unless the consumer is `alive`.

-- A consumer with its own session is alive as long as it can claim, unless its row was deleted by
-- hand.
-- name: registered
SELECT FROM pgbeat.consumers c WHERE c.id = $3::integer
-- A consumer that lives by a lease locks its row, so that it can't be deleted during the claim.
-- name: leased
{registered} AND c.lease_until >= clock_timestamp() FOR KEY SHARE
-- name: from_the_start
SELECT r.tid
      FROM (SELECT w.queue_id
              FROM unnest($1::bigint[]) WITH ORDINALITY AS w (queue_id, position)
                   JOIN kombu_queue q ON q.id = w.queue_id AND q.paused_at IS NULL
             ORDER BY w.position) AS w
           CROSS JOIN LATERAL (
               SELECT c.ctid AS tid FROM kombu_message c
                WHERE c.queue_id = w.queue_id AND c.visible
                  AND (c.expires_at IS NULL OR c.expires_at > now())
                ORDER BY c.priority DESC, c.id + 0 LIMIT $2::integer FOR UPDATE SKIP LOCKED) AS r

-- While a long transaction elsewhere keeps dead rows from being cleaned up, a queue's index begins
-- with all messages of that time. The marks skip them by their ids.
-- name: from_marks
SELECT r.tid
      FROM (SELECT w.queue_id, w.priority, w.low
              FROM unnest($1::bigint[], $5::smallint[], $6::bigint[])
                       WITH ORDINALITY AS w (queue_id, priority, low, position)
                   JOIN kombu_queue q ON q.id = w.queue_id AND q.paused_at IS NULL
             ORDER BY w.position) AS w
           CROSS JOIN LATERAL (
               SELECT c.ctid AS tid FROM kombu_message c
                WHERE c.queue_id = w.queue_id AND c.visible
                  AND c.priority = w.priority AND c.id + 0 >= w.low
                  AND (c.expires_at IS NULL OR c.expires_at > now())
                ORDER BY c.id + 0 LIMIT $2::integer FOR UPDATE SKIP LOCKED) AS r

-- name: take
WITH acked AS (
        {ack}),
    picked AS MATERIALIZED (
        {from_the_start}
        LIMIT $2::integer)
    DELETE FROM kombu_message m WHERE m.ctid = ANY (ARRAY(SELECT tid FROM picked))
    RETURNING m.id, m.queue_id, m.priority, m.deliveries + 1, m.redelivered, m.payload,
              m.job_id

-- Acknowledged rows are found by id, never by consumer: that index still has everything that the
-- consumer ever claimed, as long as a transaction elsewhere may see it.
-- name: ack
DELETE FROM kombu_message WHERE id = ANY ($4::bigint[])
           AND claimed_by IS NOT DISTINCT FROM $3::integer

-- Each queue's rows are read in the index's order and locked as they are read; the outer LIMIT
-- stops at the number wanted, so no row is locked in vain. Queues come in the order given. Picked
-- rows are found by their place, so that no estimate of their number can lead to a join.
-- name: claim
WITH acked AS (
        {ack}),
    me AS MATERIALIZED ({alive}),
    picked AS MATERIALIZED (
        {low}
        WHERE EXISTS (SELECT FROM me)
        LIMIT $2::integer),
    claimed AS (
        UPDATE kombu_message m
           SET visible = false, claimed_by = $3::integer,
               deliveries = least(m.deliveries + 1, 32767)
         WHERE m.ctid = ANY (ARRAY(SELECT tid FROM picked))
        RETURNING m.id, m.queue_id, m.priority, m.deliveries, m.redelivered, m.payload,
                  m.job_id)
    SELECT * FROM claimed
    UNION ALL
    SELECT NULL, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, NULL,
           (SELECT count(*) FROM me), NULL,
           extract(epoch FROM clock_timestamp() - statement_timestamp())::text, NULL
