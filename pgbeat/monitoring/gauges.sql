-- The oldest message of each priority is the first in the index.
-- name: queues
WITH alive AS (SELECT id FROM pgbeat.consumers EXCEPT SELECT pgbeat.dead_consumers()),
delayed AS MATERIALIZED (
    SELECT queue_id, count(*) FROM (
           SELECT queue_id FROM kombu_message WHERE available_at IS NOT NULL LIMIT :most) AS m
     GROUP BY 1),
claimed AS MATERIALIZED (
    SELECT queue_id, count(*) FROM (
           SELECT queue_id FROM kombu_message WHERE claimed_by IS NOT NULL LIMIT :most) AS m
     GROUP BY 1),
dead AS MATERIALIZED (
    SELECT queue, count(*) FROM (
           SELECT queue FROM kombu_message_dead ORDER BY died_at DESC LIMIT :most) AS m GROUP BY 1),
consumed AS MATERIALIZED (
    SELECT queue_id, count(*) FROM kombu_queue_consumer JOIN alive ON id = consumer_id GROUP BY 1)
SELECT q.name,
       (SELECT count(*) FROM (
           SELECT FROM kombu_message m WHERE m.queue_id = q.id AND m.visible LIMIT :most) AS w),
       coalesce(delayed.count, 0), coalesce(claimed.count, 0), coalesce(dead.count, 0),
       coalesce(consumed.count, 0),
       coalesce(extract(epoch FROM clock_timestamp() - (
           SELECT min(o.enqueued_at)
             FROM generate_series(0, least(coalesce(q.max_priority, 9), 255)) AS p (priority)
                  CROSS JOIN LATERAL (
                  SELECT m.enqueued_at FROM kombu_message m
                   WHERE m.queue_id = q.id AND m.visible AND m.priority = p.priority::smallint
                   ORDER BY m.id + 0 LIMIT 1) AS o)), 0)::float8,
       q.paused_at IS NOT NULL
  FROM (SELECT * FROM kombu_queue WHERE NOT auto_delete AND owner IS NULL
         ORDER BY name LIMIT :named) AS q
       LEFT JOIN delayed ON delayed.queue_id = q.id
       LEFT JOIN claimed ON claimed.queue_id = q.id
       LEFT JOIN dead ON dead.queue = q.name
       LEFT JOIN consumed ON consumed.queue_id = q.id
 ORDER BY q.name
