-- A separate statement, after the lock, to see what earlier holders of the lock have written.
-- name: members
SELECT (SELECT id FROM pgbeat.ended_jobs
         WHERE group_id = :id AND finished_at >= :since AND state = 'failed'
           AND retried_by IS NULL LIMIT 1) AS failed,
       (SELECT id FROM pgbeat.ended_jobs
         WHERE group_id = :id AND finished_at >= :since AND state = 'cancelled'
           AND retried_by IS NULL
         LIMIT 1) AS cancelled,
       EXISTS (SELECT FROM pgbeat.unfinished_jobs WHERE group_id = :id) AS unfinished,
       EXISTS (SELECT FROM pgbeat.unfinished_jobs
                WHERE group_id = :id AND NOT is_blocked) AS moving

-- Only the first waiting member, not the one after it if the first is locked.
-- name: unblock
WITH first AS MATERIALIZED (
    SELECT id FROM pgbeat.unfinished_jobs
     WHERE group_id = :id AND state IN ('pending', 'scheduled', 'paused') AND is_blocked
     ORDER BY group_position, id LIMIT 1),
mine AS (
    SELECT id FROM pgbeat.unfinished_jobs
     WHERE id IN (SELECT id FROM first) AND state IN ('pending', 'scheduled', 'paused')
       AND is_blocked FOR UPDATE SKIP LOCKED)
UPDATE pgbeat.unfinished_jobs j SET {unblocked}
  FROM mine WHERE j.id = mine.id
RETURNING {columns}

-- name: call_back
UPDATE pgbeat.unfinished_jobs j SET {unblocked}
 WHERE id = :id AND is_blocked RETURNING {columns}

-- Subqueries instead of EXISTS, which Postgres may answer by reading all jobs.
-- name: stuck
SELECT g.id FROM pgbeat.groups g CROSS JOIN LATERAL (
       SELECT (SELECT true FROM pgbeat.unfinished_jobs
                WHERE group_id = g.id AND NOT is_blocked
                LIMIT 1) AS moves,
              (SELECT true FROM pgbeat.unfinished_jobs
                WHERE group_id = g.id AND state IN ('pending', 'scheduled', 'paused')
                LIMIT 1) AS waits,
              g.cancelled_at IS NOT NULL OR g.on_failure <> 'continue' AND (
                  SELECT true FROM pgbeat.ended_jobs
                   WHERE group_id = g.id AND finished_at >= g.created_at
                     AND retried_by IS NULL
                     AND (state = 'failed' OR state = 'cancelled' AND g.mode = 'sequential')
                   LIMIT 1) AS ends) AS found
 WHERE g.namespace = :namespace AND g.finished_at IS NULL
   AND (found.moves IS NULL OR found.waits AND found.ends)
 ORDER BY g.created_at, g.id LIMIT :limit
