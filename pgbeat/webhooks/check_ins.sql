-- The first ten by name.
-- name: failing
SELECT s.name, coalesce(w.disabled_reason, d.log -> -1 ->> 'error')
  FROM pgbeat.webhooks w JOIN pgbeat.schedules s ON s.id = w.schedule_id
       CROSS JOIN LATERAL (SELECT state, log FROM pgbeat.deliveries
                            WHERE webhook_id = w.id AND state <> 'pending'
                            ORDER BY created_at DESC, id DESC LIMIT 1) d
 WHERE w.namespace = :namespace AND w.schedule_id IS NOT NULL AND d.state = 'failed'
 ORDER BY s.name LIMIT 10
