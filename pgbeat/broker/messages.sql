-- Inserts a message `d` for a queue `q`, within the limits that the queue was declared with: what
-- follows must be a FROM with both.
-- name: insert
INSERT INTO kombu_message
       (visible, payload, priority, available_at, expires_at, queue_id, job_id)
    SELECT d.available_at IS NULL OR d.available_at <= now(), d.payload,
           least(d.priority, coalesce(q.max_priority, 9)),
           CASE WHEN d.available_at > now() THEN d.available_at END,
           greatest(d.available_at, now()) + least(d.ttl, q.message_ttl) * interval '1 ms', q.id,
           d.job_id
-- Joins the queues, each once, whose bindings match the message's exchange and routing key.
-- name: bound
JOIN kombu_queue q ON q.id IN (
        SELECT b.queue_id FROM kombu_queue_binding b
         WHERE b.exchange = d.exchange AND CASE b.type WHEN 'fanout' THEN true
               WHEN 'topic' THEN d.routing_key ~ b.pattern
               ELSE b.routing_key = d.routing_key END)
-- name: batch
FROM ROWS FROM (json_to_recordset(CAST({rows} AS json)) AS (
             queue text, payload text, priority integer, available_at timestamptz, ttl bigint,
             exchange text, routing_key text, job_id uuid))
         WITH ORDINALITY AS d (queue, payload, priority, available_at, ttl, exchange, routing_key,
             job_id, position)
-- Returns the queues that are missing: by the same snapshot, whatever others do meanwhile. `commits`
-- is evaluated once, before the commit that it is for.
-- name: put
WITH d AS MATERIALIZED (SELECT * {batch}),
    commits AS MATERIALIZED (SELECT {commit} AS so),
    put AS ({insert} FROM d JOIN kombu_queue q ON q.name = d.queue
             WHERE (SELECT so FROM commits) ORDER BY d.position)
    SELECT DISTINCT d.queue FROM d
     WHERE NOT EXISTS (SELECT FROM kombu_queue q WHERE q.name = d.queue)
-- name: put_one
{insert}
    FROM kombu_queue q, (VALUES ($2::text, $3::integer, $4::timestamptz, $5::bigint, $7::uuid))
         AS d (payload, priority, available_at, ttl, job_id)
    WHERE q.name = $1
      AND ($6::text IS NULL OR set_config('synchronous_commit', $6, true) IS NOT NULL)
-- name: route
{insert} {batch} {bound} ORDER BY d.position
-- name: route_one
{insert} FROM
    (VALUES ($1::text, $8::text, $2::text, $3::integer, $4::timestamptz, $5::bigint, $7::uuid))
    AS d (exchange, routing_key, payload, priority, available_at, ttl, job_id)
    {bound}
    WHERE ($6::text IS NULL OR set_config('synchronous_commit', $6, true) IS NOT NULL)
-- What kombu's SQLAlchemy transport has delivered is neither visible, nor delayed, nor claimed.
-- name: withdraw
WITH mine AS (
        SELECT id FROM kombu_message WHERE job_id = ANY (CAST(:jobs AS uuid[]))
           AND claimed_by IS NULL AND (visible OR available_at IS NOT NULL) FOR UPDATE SKIP LOCKED)
    DELETE FROM kombu_message m WHERE id IN (SELECT id FROM mine)
    RETURNING job_id, (SELECT name FROM kombu_queue q WHERE q.id = m.queue_id), payload

-- The message is another consumer's or nobody's, will be since its consumer is dead, or was accepted by
-- another consumer.
-- name: passed_on
SELECT d.job_id
  FROM unnest(CAST(:jobs AS uuid[]), CAST(:consumers AS integer[])) AS d (job_id, consumer)
       CROSS JOIN LATERAL (
           SELECT claimed_by AS consumer, true AS is_there
             FROM kombu_message WHERE job_id = d.job_id
           UNION ALL (
           SELECT consumer_id, false FROM pgbeat.message_ends
            WHERE job_id = d.job_id AND how = 'accepted' ORDER BY id DESC LIMIT 1)
           ORDER BY is_there DESC LIMIT 1) AS m
 WHERE CASE WHEN m.consumer IS DISTINCT FROM d.consumer THEN true
            WHEN m.is_there THEN d.consumer NOT IN (SELECT id FROM pgbeat.consumers)
                                 OR d.consumer IN (SELECT pgbeat.dead_consumers())
            ELSE false END
