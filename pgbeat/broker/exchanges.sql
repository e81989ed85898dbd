-- name: declare
WITH known AS (SELECT type FROM kombu_queue_exchange WHERE name = :name),
    made AS (
        INSERT INTO kombu_queue_exchange (name, type, durable, auto_delete)
        SELECT CAST(:name AS text), CAST(:type AS text), CAST(:durable AS boolean),
               CAST(:auto_delete AS boolean)
         WHERE NOT EXISTS (SELECT FROM known)
            ON CONFLICT (name) DO NOTHING RETURNING type)
    SELECT type FROM known UNION ALL SELECT type FROM made
-- name: delete
WITH gone AS (
    DELETE FROM kombu_queue_exchange x
     WHERE x.name = :name AND NOT (:if_unused AND EXISTS (
               SELECT FROM kombu_queue_binding b WHERE b.exchange = x.name))
    RETURNING name)
DELETE FROM kombu_queue_binding WHERE exchange IN (SELECT name FROM gone)
-- name: find_bound
SELECT q.name
  FROM json_to_recordset(CAST(:wanted AS json)) AS w (
           name text, exchange text, type text, routing_key text, max_priority smallint,
           message_ttl bigint, expires bigint, delivery_limit integer)
       JOIN kombu_queue q ON q.name = w.name
       JOIN kombu_queue_exchange x ON x.name = w.exchange AND x.type = w.type
       JOIN kombu_queue_binding b
         ON b.exchange = x.name AND b.routing_key = w.routing_key AND b.queue_id = q.id
 WHERE q.expires IS NULL AND w.expires IS NULL AND q.owner IS NULL AND NOT q.auto_delete
   AND coalesce(w.max_priority, q.max_priority) IS NOT DISTINCT FROM q.max_priority
   AND coalesce(w.message_ttl, q.message_ttl) IS NOT DISTINCT FROM q.message_ttl
   AND coalesce(w.delivery_limit, q.delivery_limit) IS NOT DISTINCT FROM q.delivery_limit
