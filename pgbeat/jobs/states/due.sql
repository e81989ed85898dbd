-- name: is_due
state = 'scheduled' AND dispatched_at IS NULL AND NOT is_blocked
       AND run_at <= now()
-- name: oldest
namespace = :namespace AND {is_due} ORDER BY run_at LIMIT :limit
-- name: given
id = ANY (CAST(:ids AS uuid[])) AND {is_due}
-- name: take
WITH due AS (SELECT id FROM pgbeat.unfinished_jobs WHERE {which} FOR UPDATE SKIP LOCKED)
UPDATE pgbeat.unfinished_jobs j SET state = 'pending',
       dispatched_at = CASE WHEN j.lane IS NULL AND NOT coalesce(j.message ? 'batch', false)
                            THEN now() END
  FROM due WHERE j.id = due.id
RETURNING {columns}

-- name: find
SELECT id FROM pgbeat.unfinished_jobs WHERE {oldest}
