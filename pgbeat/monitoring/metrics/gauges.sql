-- The oldest message of each priority is the first in the index. Delayed ones that are due wait, though
-- only a consumer makes them visible.
-- name: queues
WITH alive AS (SELECT id FROM pgbeat.consumers EXCEPT SELECT pgbeat.dead_consumers()),
delayed AS MATERIALIZED (
    SELECT queue_id, count(*) FILTER (WHERE available_at > now()) AS count,
           count(*) FILTER (WHERE available_at <= now()) AS due,
           min(available_at) FILTER (WHERE available_at <= now()) AS due_since
      FROM (
           SELECT queue_id, available_at FROM kombu_message
            WHERE available_at IS NOT NULL ORDER BY available_at LIMIT :most) AS m
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
       least(:most, coalesce(delayed.due, 0) + (SELECT count(*) FROM (
           SELECT FROM kombu_message m WHERE m.queue_id = q.id AND m.visible LIMIT :most) AS w))
           AS waiting,
       coalesce(delayed.count, 0) AS delayed, coalesce(claimed.count, 0) AS claimed,
       coalesce(dead.count, 0) AS dead, coalesce(consumed.count, 0) AS consumers,
       coalesce(extract(epoch FROM clock_timestamp() - least(delayed.due_since, (
           SELECT min(o.enqueued_at)
             FROM generate_series(0, least(coalesce(q.max_priority, 9), 255)) AS p (priority)
                  CROSS JOIN LATERAL (
                  SELECT m.enqueued_at FROM kombu_message m
                   WHERE m.queue_id = q.id AND m.visible AND m.priority = p.priority::smallint
                   ORDER BY m.id + 0 LIMIT 1) AS o))), 0)::float8 AS age,
       q.paused_at IS NOT NULL AS is_paused
  FROM (SELECT * FROM kombu_queue WHERE NOT auto_delete AND owner IS NULL
         ORDER BY name LIMIT :named) AS q
       LEFT JOIN delayed ON delayed.queue_id = q.id
       LEFT JOIN claimed ON claimed.queue_id = q.id
       LEFT JOIN dead ON dead.queue = q.name
       LEFT JOIN consumed ON consumed.queue_id = q.id
 ORDER BY q.name

-- name: schedules
SELECT 'active', (SELECT count(*) FROM (
           SELECT FROM pgbeat.schedules WHERE namespace = :namespace AND enabled
              AND paused_at IS NULL LIMIT :most) AS a)
 UNION ALL
SELECT 'paused', (SELECT count(*) FROM (
           SELECT FROM pgbeat.schedules WHERE namespace = :namespace AND enabled
              AND paused_at IS NOT NULL LIMIT :most) AS p)
 UNION ALL
SELECT k.state, count(d.state) FROM (VALUES ('disabled'), ('completed')) AS k (state)
  LEFT JOIN (
       SELECT CASE WHEN completed_at IS NOT NULL THEN 'completed'
                   ELSE 'disabled' END AS state
         FROM pgbeat.schedules WHERE namespace = :namespace AND NOT enabled LIMIT :most) AS d
    ON d.state = k.state
 GROUP BY 1

-- name: jobs
SELECT s.state, found.job_source, count(found.job_source)
  FROM unnest(CAST(:states AS text[]), CAST(:most AS integer[])) AS s (state, most)
       LEFT JOIN LATERAL pgbeat.newest_jobs(:namespace, s.state, s.most, true) AS found ON true
 GROUP BY 1, 2

-- name: lanes
SELECT l.name, l.max_running AS limit,
       (SELECT count(*) FROM (
           SELECT FROM pgbeat.jobs j
            WHERE j.namespace = l.namespace AND j.lane = l.name AND j.dispatched_at IS NOT NULL
              AND j.state IN ('pending', 'scheduled', 'running') LIMIT :most) AS u)
       + (SELECT count(*) FROM pgbeat.reservations r
           WHERE r.namespace = l.namespace AND r.lane = l.name AND r.started_at IS NOT NULL) AS used,
       (SELECT count(*) FROM (
           SELECT FROM pgbeat.jobs j
            WHERE j.namespace = l.namespace AND j.lane = l.name AND j.dispatched_at IS NULL
              AND j.state = 'pending' AND NOT j.is_blocked LIMIT :most) AS w)
       + (SELECT count(*) FROM pgbeat.reservations r
           WHERE r.namespace = l.namespace AND r.lane = l.name AND r.started_at IS NULL) AS waiting,
       l.paused_at IS NOT NULL AS is_paused
  FROM (SELECT * FROM pgbeat.lanes WHERE namespace = :namespace
         ORDER BY name LIMIT :named) AS l

-- name: webhooks
SELECT w.name, w.enabled AS is_enabled, p.pending,
       least(t.total - p.pending - p.failed, :over) AS delivered, p.failed
  FROM (SELECT id, name, enabled FROM pgbeat.webhooks
         WHERE namespace = :namespace AND schedule_id IS NULL
         ORDER BY name LIMIT :named) AS w
       CROSS JOIN LATERAL (
           SELECT (SELECT count(*) FROM (
                      SELECT FROM pgbeat.deliveries
                       WHERE webhook_id = w.id AND state = 'pending' LIMIT :most) AS d
                  ) AS pending,
                  (SELECT count(*) FROM (
                      SELECT FROM pgbeat.deliveries
                       WHERE webhook_id = w.id AND state = 'failed' LIMIT :most) AS d
                  ) AS failed OFFSET 0) AS p  -- counted once, however often it is named
       CROSS JOIN LATERAL (
           SELECT count(*) AS total FROM (
               SELECT FROM pgbeat.deliveries WHERE webhook_id = w.id
                LIMIT :over + p.pending + p.failed) AS d) AS t
