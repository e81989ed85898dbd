-- name: newest
SELECT {columns}
  FROM unnest(CAST(:ids AS uuid[])) AS j (id) CROSS JOIN LATERAL ({newest}) AS e

-- One job after the other, the newest first: joined in any other way, all of history is read.
-- name: of_all
SELECT {columns}, j.task, j.args, j.kwargs, j.root_id, j.parent_id, j.has_ended
  FROM pgbeat.executions e CROSS JOIN LATERAL (
       SELECT *, finished_at IS NOT NULL AS has_ended FROM pgbeat.jobs
        WHERE id = e.job_id AND namespace = :namespace LIMIT 1) AS j
 ORDER BY e.started_at DESC LIMIT :limit
