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

-- An incident whose end was given up is open again, as it is at the receiver: its end is sent again,
-- not before `end_at`. The webhooks must be locked.
-- name: reopen
INSERT INTO pgbeat.incidents (webhook_id, kind, name, events, failures, alerts, began_at, failed_at,
                              next_alert_at, end_at)
SELECT webhook_id, split_part(incident, ':', 1), substr(incident, strpos(incident, ':') + 1),
       ARRAY(SELECT jsonb_array_elements_text(data -> 'failed')),
       CAST(data ->> 'failures' AS integer), 1, CAST(data ->> 'failing_since' AS timestamptz),
       CAST(data ->> 'last_failed_at' AS timestamptz), now(), end_at
  FROM given_up
 WHERE state = 'failed' AND incident IS NOT NULL
   AND event IN ('schedule.recovered', 'job.recovered')
ON CONFLICT DO NOTHING

-- The deliveries of a webhook that is disabled. It is told of the ends once it is enabled.
-- name: stop
WITH given_up AS (
    UPDATE pgbeat.deliveries
       SET state = 'failed', finished_at = now(), next_at = NULL, sent_at = NULL,
           log = log || jsonb_build_object('at', now(), 'error', 'the webhook was disabled')
     WHERE webhook_id = :id AND state = 'pending'
    RETURNING webhook_id, event, incident, state, payload -> 'data' AS data,
              CAST(NULL AS timestamptz) AS end_at)
{reopen}
