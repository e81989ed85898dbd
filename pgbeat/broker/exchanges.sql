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
