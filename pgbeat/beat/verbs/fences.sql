-- name: raise
WITH held_queues AS (
    UPDATE kombu_queue SET paused_at = now()
     WHERE paused_at IS NULL AND owner IS NULL AND NOT auto_delete RETURNING name),
held_schedules AS (
    UPDATE pgbeat.schedules SET paused_at = now(), paused_reason = :mark
     WHERE paused_at IS NULL RETURNING id)
INSERT INTO pgbeat.fences (epoch, raised_by, reason, restored_to, queues, schedules)
SELECT 1 + coalesce((SELECT max(epoch) FROM pgbeat.fences), 0), :raised_by, :reason, :restored_to,
       ARRAY(SELECT name FROM held_queues ORDER BY name),
       ARRAY(SELECT id FROM held_schedules ORDER BY id)
ON CONFLICT DO NOTHING RETURNING epoch

-- name: release
UPDATE pgbeat.fences f
   SET queues = ARRAY(SELECT q FROM unnest(f.queues) AS q WHERE q <> ALL (:queues)),
       schedules = ARRAY(SELECT s FROM unnest(f.schedules) AS s WHERE s <> ALL (:schedules)),
       released_at = CASE WHEN f.queues <@ CAST(:queues AS text[])
                           AND f.schedules <@ CAST(:schedules AS bigint[]) THEN now() END
 WHERE epoch = :epoch

-- name: release_schedules
UPDATE pgbeat.schedules s SET paused_at = NULL
 WHERE s.id = ANY (ARRAY(SELECT unnest(f.schedules) FROM pgbeat.fences f WHERE f.epoch = :epoch))
   AND s.paused_reason = :mark
   AND (CAST(:names AS text[]) IS NULL OR (s.namespace = :namespace AND s.name = ANY (:names)))
RETURNING s.id, s.name
