-- kombu's SQLAlchemy transport leaves delivered messages: neither visible, nor claimed, nor delayed.
-- name: delivered
DELETE FROM kombu_message WHERE ctid = ANY (ARRAY(
        SELECT m.ctid FROM kombu_message m
         WHERE NOT m.visible AND m.claimed_by IS NULL AND m.available_at IS NULL
         LIMIT :limit FOR UPDATE SKIP LOCKED))
-- Goes from queue to queue by the index of ready messages. Delayed and claimed messages are deleted
-- with their queue; one that is put at that moment may stay.
-- name: of_no_queue
WITH RECURSIVE used AS (
        SELECT min(queue_id) AS id FROM kombu_message WHERE visible
        UNION ALL
        SELECT (SELECT min(m.queue_id) FROM kombu_message m WHERE m.visible AND m.queue_id > u.id)
          FROM used u WHERE u.id IS NOT NULL),
    gone AS MATERIALIZED (
        SELECT u.id FROM used u
         WHERE u.id IS NOT NULL AND NOT EXISTS (SELECT FROM kombu_queue q WHERE q.id = u.id)),
    gone_messages AS (
        DELETE FROM kombu_message WHERE ctid = ANY (ARRAY(
            SELECT c.tid FROM gone CROSS JOIN LATERAL (
                SELECT m.ctid AS tid FROM kombu_message m
                 WHERE m.queue_id = gone.id AND m.visible
                 ORDER BY m.priority DESC, m.id + 0
                 LIMIT :limit FOR UPDATE SKIP LOCKED) AS c
             LIMIT :limit))
        RETURNING job_id, NULL::text AS queue),
    noted AS ({note})
    SELECT count(*) FROM gone_messages
