-- name: counts
SELECT w.name,
       (SELECT count(*) FROM pgbeat.deliveries d WHERE d.webhook_id = w.id),
       (SELECT count(*) FROM pgbeat.deliveries d
         WHERE d.webhook_id = w.id AND d.state = 'pending'),
       (SELECT count(*) FROM pgbeat.deliveries d
         WHERE d.webhook_id = w.id AND d.state = 'failed')
  FROM pgbeat.webhooks w WHERE w.namespace = :namespace AND w.schedule_id IS NULL

-- name: repeat
UPDATE pgbeat.deliveries d
   SET state = 'pending', attempts = 0, next_at = now(), finished_at = NULL,
       log = log || jsonb_build_object('at', now(), 'redelivered_by', CAST(:by AS text))
  FROM pgbeat.webhooks w
 WHERE w.id = d.webhook_id AND w.namespace = :namespace AND d.state <> 'pending'
   AND (d.id = ANY (CAST(:ids AS uuid[]))
        OR d.webhook_id = CAST(:webhook_id AS bigint) AND d.state = 'failed')
RETURNING d.id
