-- name: waits
j.message ? 'batch' AND CASE WHEN j.state = 'pending' THEN j.dispatched_at IS NULL AND NOT j.is_blocked
                             ELSE false END
-- name: to_start
WITH due AS (
    SELECT id FROM pgbeat.unfinished_jobs
     WHERE id = ANY (ARRAY(SELECT id FROM pgbeat.batches_to_start(:namespace)
                            WHERE due_at <= now() ORDER BY due_at LIMIT :limit))
       AND CASE WHEN state = 'pending' THEN dispatched_at IS NULL ELSE false END
       FOR UPDATE SKIP LOCKED)
UPDATE pgbeat.unfinished_jobs j SET dispatched_at = now() FROM due WHERE j.id = due.id
RETURNING {columns}

-- The first in line of those that wait with the same key, as `batches_to_start` has the line. What
-- another run takes at this moment is locked.
-- name: take
SELECT {columns}
  FROM pgbeat.unfinished_jobs own JOIN pgbeat.unfinished_jobs j
       ON j.namespace = own.namespace AND j.task = own.task
      AND j.queue IS NOT DISTINCT FROM own.queue
      AND j.message #>> '{batch,key}' = own.message #>> '{batch,key}'
 WHERE own.id = CAST(:id AS uuid) AND j.id <> own.id
   AND {waits}
 ORDER BY j.priority DESC, coalesce(j.run_at, j.created_at), j.id
 LIMIT :limit FOR UPDATE OF j SKIP LOCKED

-- name: own
SELECT {columns} FROM pgbeat.unfinished_jobs j WHERE id = CAST(:id AS uuid) AND message ? 'batch'
   FOR NO KEY UPDATE

-- name: unsent
SELECT id FROM pgbeat.unfinished_jobs
 WHERE id = ANY (CAST(:ids AS uuid[])) AND dispatched_at IS NULL AND message ? 'batch'

-- name: waiting
SELECT count(*), min(coalesce(j.run_at, j.created_at)) + :after * interval '1 second'
  FROM pgbeat.unfinished_jobs j
 WHERE j.namespace = :namespace AND j.task = :task AND j.queue IS NOT DISTINCT FROM :queue
   AND j.message #>> '{batch,key}' = :key
   AND {waits}
