-- Constants, not parameters, are what the planner matches with a partial index. History alone is in
-- the order of its partitions, of which the newest that has a row is enough.
-- name: ended
LEFT JOIN LATERAL (
    SELECT j.finished_at FROM pgbeat.ended_jobs j
     WHERE j.state = 'completed' AND j.schedule_id = s.id AND j.retried_by IS NULL
     ORDER BY j.finished_at DESC LIMIT 1) AS done ON true
LEFT JOIN LATERAL (
    SELECT j.id, j.finished_at, j.error, j.task FROM pgbeat.ended_jobs j
     WHERE j.state = 'failed' AND j.schedule_id = s.id AND j.retried_by IS NULL
     ORDER BY j.finished_at DESC LIMIT 1) AS failed ON true
LEFT JOIN LATERAL (
    SELECT count(*) AS count FROM (
        SELECT FROM pgbeat.ended_jobs j
         WHERE j.state = 'failed' AND j.schedule_id = s.id AND j.retried_by IS NULL
           AND j.finished_at > coalesce(done.finished_at, '-infinity')
         LIMIT :most) AS f) AS failures
    ON failed.finished_at > coalesce(done.finished_at, '-infinity')
LEFT JOIN LATERAL (
    SELECT j.finished_at FROM pgbeat.ended_jobs j
     WHERE j.state = 'failed' AND j.schedule_id = s.id AND j.retried_by IS NULL
       AND j.finished_at > coalesce(done.finished_at, '-infinity')
     ORDER BY j.finished_at LIMIT 1) AS first
    ON failed.finished_at > coalesce(done.finished_at, '-infinity')

-- name: outcomes
SELECT s.id, now(), done.finished_at, failed.finished_at, failed.id, failed.error,
       failed.task, coalesce(failures.count, 0), first.finished_at, open.count,
       open.waiting_since, again.id, again.attempt, again.max_attempts
  FROM unnest(CAST(:ids AS bigint[])) AS s (id)
{ended}
LEFT JOIN LATERAL (
    SELECT count(*) AS count, min(u.dispatched_at) FILTER (WHERE u.state = 'pending')
               AS waiting_since, max(u.attempt) AS attempt
      FROM (SELECT j.state, j.dispatched_at, j.attempt FROM pgbeat.jobs j
             WHERE j.schedule_id = s.id AND j.finished_at IS NULL
             LIMIT :unfinished) AS u) AS open ON true
LEFT JOIN LATERAL (
    SELECT j.id, j.attempt, j.max_attempts FROM pgbeat.jobs j
     WHERE j.schedule_id = s.id AND j.finished_at IS NULL AND j.attempt > 1
     LIMIT 1) AS again ON open.attempt > 1

-- The index has due times. What was decided since the launch was due since, too, except for missed
-- times that were made up for.
-- name: skips
SELECT s.id, first.due_at, last.reason
  FROM unnest(CAST(:ids AS bigint[]), CAST(:launches AS timestamptz[])) AS s (id, launched_at)
LEFT JOIN LATERAL (
    SELECT t.due_at FROM pgbeat.ticks t
     WHERE t.schedule_id = s.id AND t.due_at > s.launched_at AND t.outcome = 'skipped'
     ORDER BY t.due_at LIMIT 1) AS first ON true
LEFT JOIN LATERAL (
    SELECT t.reason FROM pgbeat.ticks t
     WHERE t.schedule_id = s.id AND t.due_at > s.launched_at AND t.outcome = 'skipped'
     ORDER BY t.due_at DESC LIMIT 1) AS last ON true

-- From one schedule that has a failed job to the next, by the index.
-- name: failing
WITH RECURSIVE known (id, number) AS (
    (SELECT j.schedule_id, 1 FROM pgbeat.jobs j
      WHERE j.state = 'failed' AND j.retried_by IS NULL AND j.schedule_id IS NOT NULL
      ORDER BY j.schedule_id LIMIT 1)
    UNION ALL
    SELECT (SELECT j.schedule_id FROM pgbeat.jobs j
             WHERE j.state = 'failed' AND j.retried_by IS NULL AND j.schedule_id > k.id
             ORDER BY j.schedule_id LIMIT 1), k.number + 1
      FROM known k WHERE k.id IS NOT NULL AND k.number < :schedules)
SELECT s.id, s.name, failures.count, first.finished_at, failed.error,
       s.paused_at IS NOT NULL, s.enabled
  FROM known k JOIN pgbeat.schedules s ON s.id = k.id
{ended}
 WHERE s.namespace = :namespace AND failures.count > 0
 ORDER BY failures.count DESC, s.name

-- name: stale
SELECT s.name, s.stale_since FROM pgbeat.schedules s
 WHERE s.namespace = :namespace AND s.stale_since IS NOT NULL AND s.enabled AND s.paused_at IS NULL
 ORDER BY s.stale_since LIMIT :most
