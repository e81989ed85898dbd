-- Each existing job, with its execution that this worker runs or has just ended, and whether it waits
-- for its batch.
-- name: last
SELECT j.id, e.id, coalesce(e.state = 'running', false), j.dispatched_at IS NOT NULL,
       coalesce(j.dispatched_at IS NULL AND j.state IN ('pending', 'scheduled')
                AND j.message ? 'batch', false)
  FROM pgbeat.jobs j LEFT JOIN LATERAL (
           SELECT id, state FROM pgbeat.executions
            WHERE job_id = j.id AND worker_id = :worker
              AND (state = 'running' OR finished_at > now() - interval '1 minute')
            ORDER BY number DESC LIMIT 1) AS e ON true
 WHERE j.id = ANY (CAST(:jobs AS uuid[]))

-- Waits until no transaction records executions of this worker for jobs that have ended
-- (`late_executions`), and lets none do so until this one ends.
-- name: lock
SELECT pg_advisory_xact_lock(1885823611, :worker)
