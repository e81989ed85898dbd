-- The versions that workers report, and those of queues for which unfinished jobs wait.
-- name: listing
WITH of_workers AS (
    SELECT w.versions ->> 'app' AS version, {alive} AS lives, w.started_at,
           (SELECT count(*) FROM pgbeat.running_executions e WHERE e.worker_id = w.id) AS running
      FROM pgbeat.workers w
     WHERE w.versions ? 'app' AND coalesce(w.namespace, :namespace) = :namespace),
reported AS (
    SELECT version, count(*) FILTER (WHERE lives) AS workers, min(started_at) AS started_at,
           sum(running) FILTER (WHERE lives) AS running
      FROM of_workers GROUP BY version),
pinned AS (
    SELECT split_part(j.queue, :separator, 2) AS version, count(*) AS waiting,
           min(j.created_at) AS oldest
      FROM pgbeat.unfinished_jobs j
     WHERE j.namespace = :namespace AND j.state <> 'running'
       AND strpos(j.queue, :separator) > 0
     GROUP BY 1)
SELECT version, coalesce(r.workers, 0), r.started_at, coalesce(r.running, 0)::bigint,
       coalesce(p.waiting, 0), p.oldest
  FROM reported r FULL JOIN pinned p USING (version)
 ORDER BY r.started_at DESC NULLS LAST, version
