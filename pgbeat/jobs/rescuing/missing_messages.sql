-- name: dead_letters
SELECT d.job_id, d.reason FROM kombu_message_dead d JOIN pgbeat.unfinished_jobs j ON j.id = d.job_id
 WHERE d.job_id IS NOT NULL AND d.died_at > now() - interval '1 day'
   AND j.namespace = :namespace
   AND (j.state IN ('pending', 'scheduled') AND j.dispatched_at IS NOT NULL
        OR j.state = 'running' AND NOT EXISTS (
            SELECT FROM pgbeat.running_executions e WHERE e.job_id = j.id))
   AND NOT EXISTS (SELECT FROM kombu_message m WHERE m.job_id = d.job_id)
 LIMIT 500

-- Accepted, and not recorded as begun. `is_gone`: by a worker that is dead or has left; others are asked
-- for only if it `deduplicates`. A worker that is not registered yet, or has lost its session, lives as
-- long as its consumer. If a worker records nothing, its jobs are never given up: they may have run.
-- OFFSET 0 as below.
-- name: accepted
WITH accepted AS MATERIALIZED (
    SELECT a.id, a.job_id, a.consumer_id, a.ended_at, w.name,
           w.id IS NULL OR w.id = ANY (CAST(:dead AS integer[])) AS has_left
      FROM pgbeat.message_ends a LEFT JOIN pgbeat.workers w ON w.id = a.worker_id
     WHERE a.id > :after AND a.id <= :last
       AND a.how = 'accepted' AND a.worker_id IS NOT NULL
       AND a.ended_at < now() - interval '10 seconds'
       AND (:deduplicates OR w.id IS NULL OR w.id = ANY (CAST(:dead AS integer[])))),
living AS MATERIALIZED (
    SELECT id FROM pgbeat.consumers WHERE EXISTS (SELECT FROM accepted WHERE has_left)
    EXCEPT SELECT pgbeat.dead_consumers() WHERE EXISTS (SELECT FROM accepted WHERE has_left))
SELECT j.id, a.name, a.has_left
       AND NOT EXISTS (SELECT FROM living l WHERE l.id = a.consumer_id) AS is_gone
  FROM accepted a CROSS JOIN LATERAL (
       SELECT id, namespace, state, dispatched_at FROM pgbeat.unfinished_jobs
        WHERE id = a.job_id OFFSET 0) AS j
 WHERE j.namespace = :namespace AND j.state IN ('pending', 'scheduled')
   AND j.dispatched_at <= a.ended_at
   AND NOT EXISTS (SELECT FROM pgbeat.message_ends n
                    WHERE n.job_id = a.job_id AND n.id > a.id OFFSET 0)
   AND NOT EXISTS (SELECT FROM kombu_message m WHERE m.job_id = j.id OFFSET 0)
 ORDER BY is_gone DESC LIMIT :ends

-- Messages from before the app moved to this broker are still in the other one. OFFSET 0 makes
-- Postgres look suspects up by id.
-- name: unaccepted
WITH page AS (
    SELECT id, dispatched_at, elsewhere_at, created_at, options
      FROM pgbeat.unfinished_jobs
     WHERE namespace = :namespace AND state = :state
       AND (created_at, id) > (:at, CAST(:after AS uuid))
     ORDER BY created_at, id LIMIT :limit),
looked AS (
    SELECT id, dispatched_at, elsewhere_at, created_at, options, true AS in_page FROM page
     UNION ALL
    SELECT j.id, j.dispatched_at, j.elsewhere_at, j.created_at, j.options, false
      FROM unnest(CAST(:suspects AS uuid[])) AS suspect (id)
           CROSS JOIN LATERAL (
               SELECT * FROM pgbeat.unfinished_jobs WHERE id = suspect.id OFFSET 0) AS j
     WHERE j.state = :state AND j.id NOT IN (SELECT id FROM page))
SELECT id, created_at, in_page,
       jsonb_exists_any(options, '{expires,expiration}') AS may_expire,
       coalesce(dispatched_at < now() - interval '10 seconds', false)
       AND coalesce(elsewhere_at < dispatched_at, true)
       AND NOT EXISTS (SELECT FROM kombu_message m WHERE m.job_id = looked.id)
       AND NOT EXISTS (SELECT FROM pgbeat.message_ends e WHERE e.job_id = looked.id
                          AND e.ended_at >= looked.dispatched_at) AS is_gone
  FROM looked ORDER BY created_at, id
