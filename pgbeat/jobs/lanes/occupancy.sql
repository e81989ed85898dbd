-- name: holders
SELECT CAST(id AS text), task, state, worker, dispatched_at, started_at, false
  FROM pgbeat.unfinished_jobs j WHERE namespace = :namespace AND lane = :lane AND {has_slot}
 UNION ALL
SELECT 'direct/' || id, task, 'running', created_by, started_at, started_at, true
  FROM pgbeat.reservations
 WHERE namespace = :namespace AND lane = :lane AND started_at IS NOT NULL
 ORDER BY 5, 1 LIMIT :limit
