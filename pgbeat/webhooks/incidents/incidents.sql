-- Webhooks are locked before their deliveries and incidents, as by those who disable or delete them.
-- name: failures
SELECT d.id, d.webhook_id, d.incident, d.event, (d.payload ->> 'timestamp')::timestamptz AS at,
       CASE WHEN d.event = 'job.failed' THEN (d.payload #>> '{data,created_at}')::timestamptz END
           AS made_at,
       d.event = ANY (w.events) AS is_wanted, w.per_incident
  FROM pgbeat.deliveries d JOIN pgbeat.webhooks w ON w.id = d.webhook_id
 WHERE d.incident IS NOT NULL AND d.turn IS NULL AND d.state = 'pending'
   AND w.namespace = :namespace
 ORDER BY d.created_at, d.id LIMIT :limit
   FOR KEY SHARE OF w SKIP LOCKED FOR NO KEY UPDATE OF d SKIP LOCKED

-- name: known
SELECT {columns}
  FROM json_to_recordset(CAST(:keys AS json)) AS k (webhook_id bigint, kind text, name text)
       JOIN pgbeat.incidents USING (webhook_id, kind, name)

-- name: write
INSERT INTO pgbeat.incidents ({columns})
SELECT {columns} FROM json_populate_recordset(NULL::pgbeat.incidents, CAST(:rows AS json))
ON CONFLICT (webhook_id, kind, name) DO UPDATE
   SET events = excluded.events, failures = excluded.failures, alerts = excluded.alerts,
       failed_at = excluded.failed_at, made_at = excluded.made_at,
       next_alert_at = excluded.next_alert_at, end_at = NULL

-- name: send
UPDATE pgbeat.deliveries d
   SET incident = CASE WHEN o.more IS NOT NULL THEN d.incident END,
       turn = CASE WHEN o.more IS NOT NULL THEN clock_timestamp() END,
       payload = d.payload || coalesce(o.more, '{}')
  FROM json_to_recordset(CAST(:sent AS json)) AS o (id uuid, more jsonb)
 WHERE d.id = o.id

-- name: drop
DELETE FROM pgbeat.deliveries WHERE id = ANY (CAST(:ids AS uuid[]))

-- One at a time: failures are taken in another thread, or by a beat that has just lost the lead.
-- name: key
hashtextextended('pgbeat.incidents ' || :namespace, 0)
-- name: lock
SELECT pg_advisory_xact_lock({key})
-- name: try
SELECT pg_try_advisory_xact_lock({key})

-- The next of those of webhooks that can be told of their ends.
-- name: page
SELECT i.webhook_id, i.kind, i.name
  FROM pgbeat.incidents i JOIN pgbeat.webhooks w ON w.id = i.webhook_id
 WHERE w.namespace = :namespace AND w.enabled
   AND (i.webhook_id, i.kind, i.name) > (CAST(:webhook_id AS bigint), :kind, :name)
 ORDER BY i.webhook_id, i.kind, i.name LIMIT :limit

-- The job that is well was made after the one that failed, not together with it by the same decision.
-- Of a task's jobs since then, which may all be schedules', only the newest are looked at.
-- A schedule that failures disabled has failed `max_retries` times; else somebody disabled it.
-- name: end
WITH open AS MATERIALIZED (
    SELECT i.*, w.namespace, w.per_incident, w.events AS wanted
      FROM json_to_recordset(CAST(:keys AS json)) AS k (webhook_id bigint, kind text, name text)
           JOIN pgbeat.incidents i USING (webhook_id, kind, name)
           JOIN pgbeat.webhooks w ON w.id = i.webhook_id AND w.enabled
     WHERE i.end_at <= now() IS NOT FALSE
       FOR KEY SHARE OF w SKIP LOCKED),
well AS MATERIALIZED (
    SELECT o.webhook_id, o.kind, o.name, 'schedule.recovered' AS event, jsonb_build_object(
               'id', s.id, 'name', s.name, 'task', s.task, 'owner', s.owner, 'labels', s.labels,
               'last_completed_at', pgbeat.last_completed_at(s.id)) AS data
      FROM open o JOIN pgbeat.schedules s ON s.namespace = o.namespace AND s.name = o.name
     WHERE o.kind = 'schedule'
       AND (s.last_run IS DISTINCT FROM s.last_failure OR NOT 'tick.failed' = ANY (o.events))
       AND (s.stale_since IS NULL OR NOT 'schedule.stale' = ANY (o.events))
       AND (s.paused_at IS NULL OR NOT 'schedule.paused' = ANY (o.events))
       AND (s.enabled OR s.completed_at IS NOT NULL OR NOT 'schedule.disabled' = ANY (o.events))
       AND (NOT o.events && ARRAY['job.failed', 'job.run.failed', 'job.late'] OR EXISTS (
            SELECT FROM (
                SELECT j.created_at FROM pgbeat.ended_jobs j
                 WHERE j.state = 'completed' AND j.schedule_id = s.id AND j.retried_by IS NULL
                   AND j.finished_at > o.failed_at
                 ORDER BY j.finished_at DESC LIMIT 10) AS newest
             WHERE newest.created_at > coalesce(o.made_at, '-infinity')))
    UNION ALL
    SELECT o.webhook_id, o.kind, o.name, 'job.recovered', pgbeat.job_facts(j) || jsonb_build_object(
               'state', j.state, 'started_at', j.started_at, 'finished_at', j.finished_at,
               'worker', j.worker)
      FROM open o CROSS JOIN LATERAL (
           SELECT id FROM (
               SELECT e.id, e.state, e.schedule_id FROM pgbeat.ended_jobs e
                WHERE e.namespace = o.namespace AND e.task = o.name
                  AND e.created_at > coalesce(o.made_at, o.failed_at - interval '1 day')
                  AND e.finished_at > o.failed_at
                ORDER BY e.created_at DESC LIMIT 100) AS newest
            WHERE newest.state = 'completed' AND newest.schedule_id IS NULL LIMIT 1) AS last
           JOIN pgbeat.ended_jobs j ON j.id = last.id
     WHERE o.kind = 'task' AND o.failed_at < now() - CAST(:quiet AS interval)),
closed AS MATERIALIZED (
    SELECT o.webhook_id, o.kind, o.name, 'schedule.recovered' AS event, jsonb_build_object(
               'id', s.id, 'name', o.name, 'task', s.task, 'owner', s.owner, 'labels', s.labels,
               'reason', CASE WHEN s.id IS NULL THEN 'the schedule was deleted'
                   ELSE concat_ws(': ', 'the schedule was disabled', s.disabled_reason) END) AS data
      FROM open o LEFT JOIN pgbeat.schedules s ON s.namespace = o.namespace AND s.name = o.name
     WHERE o.kind = 'schedule'
       AND (s.id IS NULL
            OR NOT s.enabled AND s.completed_at IS NULL
               AND s.retry_count < greatest(s.max_retries, 1)
               AND NOT 'schedule.disabled' = ANY (o.wanted))
    UNION ALL
    SELECT o.webhook_id, o.kind, o.name, 'job.recovered', jsonb_build_object(
               'task', o.name, 'reason', 'no job of the task has failed for 30 days')
      FROM open o WHERE o.kind = 'task' AND o.failed_at < now() - interval '30 days'),
ended AS (
    DELETE FROM pgbeat.incidents i
     USING open o LEFT JOIN well USING (webhook_id, kind, name)
           LEFT JOIN closed USING (webhook_id, kind, name)
     WHERE (i.webhook_id, i.kind, i.name) = (o.webhook_id, o.kind, o.name)
       AND coalesce(well.event, closed.event) IS NOT NULL
    RETURNING i.*, o.per_incident, o.wanted, coalesce(well.event, closed.event) AS event,
              coalesce(well.data, closed.data) AS data)
INSERT INTO pgbeat.deliveries (webhook_id, event, payload, incident, turn)
SELECT e.webhook_id, e.event, pgbeat.event_message(e.event, e.data || jsonb_build_object(
           'failures', e.failures, 'failed', e.events, 'failing_since', e.began_at,
           'last_failed_at', e.failed_at)),
       CASE WHEN e.per_incident THEN e.kind || ':' || e.name END,
       CASE WHEN e.per_incident THEN clock_timestamp() END
  FROM ended e
 WHERE e.event = ANY (e.wanted) OR e.per_incident AND e.alerts > 0
