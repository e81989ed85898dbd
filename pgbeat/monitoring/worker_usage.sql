-- A worker that doesn't say its namespace may be of any.
-- name: listing
SELECT w.name, w.pid, w.pool, w.concurrency, w.started_at,
       CASE WHEN NOT {alive} THEN coalesce(w.missing_since, w.reported_at, w.started_at) END,
       (SELECT count(*) FROM pgbeat.running_executions e WHERE e.worker_id = w.id),
       w.host, w.versions, w.queues, w.memory_mb, w.cpu, w.reported_at, longest.tasks
  FROM pgbeat.workers w CROSS JOIN LATERAL (
       SELECT array_agg(ARRAY[e.job_id::text, j.task, e.started_at::text]
                        ORDER BY e.started_at) AS tasks
         FROM (SELECT job_id, started_at FROM pgbeat.running_executions
                WHERE worker_id = w.id ORDER BY started_at LIMIT :tasks) AS e
              JOIN pgbeat.unfinished_jobs j ON j.id = e.job_id) AS longest
 WHERE coalesce(w.namespace, :namespace) = :namespace
 ORDER BY w.name, w.id LIMIT :limit
