-- Jobs end after they were decided: partitions from before that, but for a clock's error, have none.
-- name: sparks
SELECT s.id, t.outcome, t.due_at, left(coalesce(t.reason, t.error), 300), j.state
  FROM unnest(CAST(:ids AS bigint[])) AS s (id)
       CROSS JOIN LATERAL (
           SELECT * FROM pgbeat.ticks WHERE schedule_id = s.id
            ORDER BY due_at DESC, id DESC LIMIT :most) AS t
       LEFT JOIN LATERAL (  -- of several jobs, the one that matters most
           SELECT state FROM (
                  SELECT state FROM pgbeat.unfinished_jobs
                   WHERE id = ANY (t.job_id || t.more_job_ids)
                   UNION ALL
                  SELECT state FROM pgbeat.ended_jobs
                   WHERE id = ANY (t.job_id || t.more_job_ids)
                     AND finished_at > t.decided_at - interval '1 day') AS made
            ORDER BY array_position(ARRAY['failed', 'running', 'pending', 'scheduled',
                                          'paused', 'cancelled', 'skipped'], state)
            LIMIT 1) AS j ON true
 ORDER BY s.id, t.due_at, t.id

-- Ids grow with time: the newest ticks are the last of the primary key.
-- name: ticks
WITH last AS MATERIALIZED (
    SELECT schedule_id, schedule, decided_at, outcome, reason, error FROM pgbeat.ticks
     ORDER BY id DESC LIMIT :newest),
own AS MATERIALIZED (
    SELECT t.*, left(split_part(coalesce(reason, error, ''), E'\n', 1), 300) AS why
      FROM last t
     WHERE t.decided_at > now() - interval '1 day'
       AND (SELECT namespace FROM pgbeat.schedules s WHERE s.id = t.schedule_id)
           = :namespace),
said AS (
    SELECT outcome, why, count(*) AS number, max(decided_at) AS at,
           (array_agg(schedule ORDER BY decided_at DESC))[1] AS schedule,
           array_agg(DISTINCT schedule_id) AS schedules
      FROM own WHERE outcome <> 'launched' GROUP BY outcome, why
     UNION ALL
    SELECT outcome, '', count(*), max(decided_at), '', '{}' FROM own
     WHERE outcome = 'launched' GROUP BY outcome)
SELECT outcome, why, number, at, schedule, schedules, b.since
  FROM (SELECT CASE WHEN count(*) >= :newest AND min(decided_at) > now() - interval '1 day'
                    THEN min(decided_at) END AS since FROM last) AS b
       LEFT JOIN said ON true

-- name: jobs
SELECT s.state, (SELECT count(*) FROM pgbeat.newest_jobs(:namespace, s.state, :most))
  FROM (VALUES ('pending'), ('running')) AS s (state)

-- name: deliveries
SELECT w.id,
       (SELECT count(*) FROM (SELECT FROM pgbeat.deliveries d
         WHERE d.webhook_id = w.id AND d.state = 'pending'
         ORDER BY next_at LIMIT :most) AS found),
       (SELECT count(*) FROM (SELECT FROM pgbeat.deliveries d
         WHERE d.webhook_id = w.id AND d.state = 'failed'
         ORDER BY created_at LIMIT :most) AS found),
       d.event, d.state, d.created_at, d.log -> -1
  FROM unnest(CAST(:ids AS bigint[])) AS w (id)
       LEFT JOIN LATERAL (
           SELECT * FROM pgbeat.deliveries WHERE webhook_id = w.id
            ORDER BY created_at DESC, id DESC LIMIT 1) AS d ON true
