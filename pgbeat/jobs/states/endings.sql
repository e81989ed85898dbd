-- name: end
WITH mine AS (
    SELECT id FROM pgbeat.unfinished_jobs
     WHERE id = ANY (CAST(:ids AS uuid[]))
       AND {is_known}
       FOR UPDATE SKIP LOCKED),
moved AS (
    DELETE FROM pgbeat.unfinished_jobs j USING mine WHERE j.id = mine.id
    RETURNING {moved}, coalesce(:error, j.error) AS error,
              j.message,
              CASE WHEN NOT :is_final THEN pgbeat.retry_id(
                  j.id, j.keeps_id, j.args, j.attempt, j.max_attempts, j.cancel_requested_at,
                  CAST(:to AS text)) END AS retried_by),
ended AS (
    INSERT INTO pgbeat.ended_jobs
           ({kept}, state, finished_at, error, awaits_approval, retried_by)
    SELECT {kept}, :to, greatest(now(), created_at), error, false, retried_by
      FROM moved)
SELECT id, namespace, :to, lane, group_id, retried_by, dispatched_at IS NOT NULL, task, error,
       options, message
  FROM moved

-- name: request
UPDATE pgbeat.unfinished_jobs
   SET cancel_requested_at = now(), cancel_requested_by = :by, cancel_reason = :reason
 WHERE id = ANY (CAST(:ids AS uuid[])) AND {is_running}
RETURNING id
-- name: ended_among
SELECT CAST(i.id AS text) FROM unnest(CAST(:ids AS uuid[])) AS i (id)
 WHERE NOT EXISTS (SELECT FROM pgbeat.unfinished_jobs j WHERE j.id = i.id)
-- name: undecided
WITH locked AS MATERIALIZED (
    SELECT id, task, cancel_reason, options, message, cancel_requested_at
      FROM pgbeat.unfinished_jobs WHERE id = ANY (CAST(:ids AS uuid[]))
     ORDER BY id FOR NO KEY UPDATE)
SELECT id, task, cancel_reason, options, message FROM locked
 WHERE cancel_requested_at IS NOT NULL
