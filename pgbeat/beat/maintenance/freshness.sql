-- One that is stale is looked at again, ever more rarely: a job may have completed in a transaction
-- that did not see it as stale, and committed later.
-- name: look
WITH due AS (
    SELECT s.id, s.fresh_within, s.stale_since,
           greatest(s.created_at, s.failures_from, s.starts_at) AS since
      FROM pgbeat.schedules s
     WHERE s.namespace = :namespace AND s.stale_at <= now()
     ORDER BY s.stale_at LIMIT :limit
       FOR NO KEY UPDATE SKIP LOCKED),
judged AS (
    SELECT d.id, d.fresh_within + CASE WHEN d.stale_since IS NULL
               THEN greatest(done.finished_at, d.since) ELSE done.finished_at END AS fresh_until
      FROM due d LEFT JOIN LATERAL (
           SELECT j.finished_at FROM pgbeat.ended_jobs j
            WHERE j.state = 'completed' AND j.schedule_id = d.id AND j.retried_by IS NULL
              AND j.finished_at > now() - d.fresh_within
            ORDER BY j.finished_at DESC LIMIT 1) AS done ON true)
UPDATE pgbeat.schedules s
   SET stale_since = CASE WHEN j.fresh_until > now() THEN NULL
                          ELSE coalesce(s.stale_since, now()) END,
       stale_at = CASE WHEN j.fresh_until > now()
                       THEN least(j.fresh_until, '9999-12-29 00:00+00')
                       ELSE now() + greatest('1 minute', now() - s.stale_since) END
  FROM judged j WHERE s.id = j.id
