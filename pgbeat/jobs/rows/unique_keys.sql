-- Transactions that make jobs with the same key must wait for each other.
-- name: id
hashtextextended(CAST(:namespace AS text) || '/' || task || '/' || key, 1050)
-- name: distinct
FROM (SELECT DISTINCT task, key
        FROM unnest(CAST(:tasks AS text[]), CAST(:keys AS text[])) AS k (task, key)
       ORDER BY task, key) AS k
-- name: lock
SELECT pgbeat.lock_key(:namespace, task, key) {distinct}
-- name: try_lock
SELECT task, key, pg_try_advisory_xact_lock({id}) {distinct}

-- name: find_as_owner
SELECT task, key, id, state
  FROM pgbeat.find_keys_as_owner(:namespace, CAST(:tasks AS text[]), CAST(:keys AS text[]),
                                 CAST(:seconds AS float8[]))

-- The task is an expression, so that jobs are found by their keys, which few have.
-- name: find
SELECT k.task, k.key, j.id, j.state
  FROM unnest(CAST(:tasks AS text[]), CAST(:keys AS text[]), CAST(:seconds AS float8[]))
           AS k (task, key, seconds)
       CROSS JOIN LATERAL (
           SELECT id, state, created_at FROM pgbeat.unfinished_jobs
            WHERE namespace = :namespace AND unique_key = k.key AND task || '' = k.task
           UNION ALL (
           SELECT id, state, created_at FROM pgbeat.ended_jobs
            WHERE namespace = :namespace AND unique_key = k.key AND task || '' = k.task
              AND k.seconds > 0
              AND created_at > now() - k.seconds * interval '1 second'
              AND finished_at > now() - CAST(:longest AS float8) * interval '1 second'
            ORDER BY created_at DESC LIMIT 1)
           ORDER BY created_at DESC LIMIT 1) AS j
