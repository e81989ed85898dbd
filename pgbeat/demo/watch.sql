-- The job's own state if the worker records it, else that of its result.
-- name: ticks
SELECT t.id, t.decided_at, t.schedule, t.outcome,
       split_part(coalesce(t.reason, t.error, ''), E'\n', 1),
       coalesce(left(t.job_id::text, 8), ''),
       CASE WHEN t.job_id IS NULL THEN ''
            WHEN j.state <> 'pending' THEN j.state
            WHEN m.status = 'SUCCESS' THEN 'completed'
            WHEN m.status = 'FAILURE' THEN 'failed'
            WHEN m.status = 'STARTED' THEN 'running'
            ELSE 'pending' END,
       coalesce(j.error, (regexp_match(m.traceback, '([^\n]*)\s*$'))[1], ''),
       coalesce(j.finished_at, m.date_done) - t.decided_at
  FROM pgbeat.ticks t
  LEFT JOIN pgbeat.jobs j ON j.id = t.job_id
  LEFT JOIN pgbeat.results m
         ON m.task_id = t.job_id::text AND m.status IN ('SUCCESS', 'FAILURE', 'STARTED')
 WHERE t.decided_at >= :since
 ORDER BY t.id DESC LIMIT 200
