-- One statement, so that the row is never visible without the lock.
-- name: register
WITH mine AS (
    INSERT INTO pgbeat.workers AS w
           (id, name, pid, pool, concurrency, namespace, tasks, alive_until)
    VALUES (:id, :name, :pid, :pool, :concurrency, :namespace, CAST(:tasks AS text[]),
            now() + make_interval(secs => CAST(:lease AS float8)))
    ON CONFLICT (id) DO UPDATE
       SET missing_since = NULL, tasks = excluded.tasks, alive_until = excluded.alive_until
    RETURNING id)
SELECT CAST(:lease AS float8) IS NOT NULL
       OR pg_try_advisory_lock(CAST(:life AS integer), id) FROM mine

-- name: knowing
SELECT name, knows, extract(epoch FROM now() - started_at)::float8 FROM (
    SELECT w.name, w.started_at, w.tasks IS NULL OR :task = ANY (w.tasks) AS knows
      FROM pgbeat.workers w
     WHERE {alive} AND coalesce(w.namespace, :namespace) = :namespace
       AND (w.queues IS NULL OR coalesce(CAST(:queue AS text) = ANY (w.queues), true))) AS w
 WHERE knows OR started_at > now() - make_interval(secs => :window)
 ORDER BY knows DESC, started_at DESC LIMIT 1

-- name: missing
WITH known AS (
    SELECT w.id, w.missing_since, {alive} AS lives FROM pgbeat.workers w)
SELECT id, lives, missing_since IS NOT NULL AS is_noted,
       NOT lives AND coalesce(missing_since < now() - make_interval(secs => :patience), false)
       AS is_dead,
       NOT lives AND coalesce(missing_since < now() - make_interval(secs => :kept), false)
       AS is_old
  FROM known WHERE NOT lives OR missing_since IS NOT NULL

-- A batch's member whose first member runs no more: the process died, and the worker lives. The job
-- is looked up for members alone (what is unknown wouldn't end the condition), and by its id.
-- name: forsaken
coalesce(e.metadata #>> '{batch,id}' <> e.id::text, false)
            AND (SELECT u.state = 'running' AND u.dispatched_at IS NULL
                   FROM pgbeat.unfinished_jobs u WHERE u.id = e.job_id)
            AND NOT EXISTS (SELECT FROM pgbeat.running_executions f
                             WHERE f.id::text = e.metadata #>> '{batch,id}')

-- A worker without a row has left. If the execution has only just begun, the worker may not be
-- registered yet.
-- name: abandoned
SELECT e.id, e.job_id, e.worker, e.worker_id, e.acks_late
  FROM pgbeat.running_executions e LEFT JOIN pgbeat.jobs j ON j.id = e.job_id
 WHERE e.worker_id IS NOT NULL
   AND coalesce(j.namespace, :namespace) = :namespace
   AND (e.worker_id = ANY (CAST(:dead AS integer[]))
        OR e.started_at < now() - interval '10 seconds'
           AND NOT EXISTS (SELECT FROM pgbeat.workers w WHERE w.id = e.worker_id)
        OR {forsaken})
 LIMIT :limit

-- name: any_abandoned
SELECT EXISTS (
    SELECT FROM pgbeat.running_executions e
     WHERE e.worker_id IS NOT NULL
       AND (e.worker_id = ANY (CAST(:dead AS integer[]))
            OR NOT EXISTS (SELECT FROM pgbeat.workers w WHERE w.id = e.worker_id)
            OR {forsaken}))

-- Looks at few: executions whose message somebody else has accepted.
-- name: ended_beside
SELECT l.id, e.worker_id FROM pgbeat.running_executions l CROSS JOIN LATERAL (
       SELECT worker_id FROM pgbeat.ended_executions
        WHERE job_id = l.job_id AND NOT lost AND finished_at >= l.started_at
          AND retry_attempt >= l.retry_attempt OFFSET 0) AS e
 WHERE l.id = ANY (CAST(:ids AS uuid[]))

-- name: try_count
WITH free AS MATERIALIZED (
    SELECT metric FROM pgbeat.counters
     WHERE namespace = '' AND metric = :metric AND label = '' AND kind = ''
       FOR NO KEY UPDATE SKIP LOCKED),
added AS (
    UPDATE pgbeat.counters SET value = value + :more
     WHERE namespace = '' AND metric IN (SELECT metric FROM free) AND label = '' AND kind = ''
    RETURNING metric)
SELECT EXISTS (SELECT FROM added), EXISTS (
       SELECT FROM pgbeat.counters
        WHERE namespace = '' AND metric = :metric AND label = '' AND kind = '')

-- name: living
SELECT count(*) FROM pgbeat.workers w WHERE {alive}
