-- A job waits from when it may run until it first begins.
-- name: ended
SELECT date_trunc('minute', finished_at) AS at, task, lane, queue, state,
       CASE WHEN started_at IS NOT NULL THEN width_bucket(extract(epoch FROM
            started_at - greatest(created_at, run_at, approved_at))::float8,
            CAST(:bounds AS float8[])) END AS waiting,
       CASE WHEN started_at IS NOT NULL THEN width_bucket(extract(epoch FROM
            finished_at - started_at)::float8, CAST(:bounds AS float8[])) END AS running,
       count(*) AS number
  FROM pgbeat.ended_jobs
 WHERE finished_at >= :starts AND finished_at < :ends AND namespace = :namespace
 GROUP BY 1, 2, 3, 4, 5, 6, 7

-- name: rows
SELECT :namespace, :step, d.kind, d.name, d.at, d.completed, d.failed, d.cancelled, d.skipped,
       d.waiting, d.running, d.depth
  FROM json_to_recordset(CAST(:batch AS json)) AS d (
           kind text, name text, at timestamptz, completed bigint, failed bigint,
           cancelled bigint, skipped bigint, waiting integer[], running integer[],
           depth bigint)
 ORDER BY d.kind, d.name, d.at

-- name: columns
namespace, step, kind, name, at, completed, failed, cancelled, skipped, waiting, running, depth

-- The counts of ends and the depth of a minute are written at different times.
-- name: write
INSERT INTO pgbeat.rollups AS r ({columns}) {rows}
ON CONFLICT (namespace, kind, name, step, at) DO UPDATE
   SET completed = excluded.completed, failed = excluded.failed,
       cancelled = excluded.cancelled, skipped = excluded.skipped,
       waiting = excluded.waiting, running = excluded.running,
       depth = greatest(r.depth, excluded.depth)

-- name: write_depths
INSERT INTO pgbeat.rollups AS r ({columns}) {rows}
ON CONFLICT (namespace, kind, name, step, at) DO UPDATE
   SET depth = greatest(r.depth, excluded.depth)

-- What is added up is kept until then.
-- name: prune
WITH settled AS MATERIALIZED (
    SELECT date_trunc('hour', settled_until, 'UTC') AS hour,
           date_trunc('day', settled_until, 'UTC') AS day
      FROM pgbeat.rollup_progress WHERE namespace = :namespace),
errors AS (
    DELETE FROM pgbeat.error_rollups
     WHERE namespace = :namespace
       AND (step = 60 AND at < least(now() - CAST(:minutes AS interval),
                                     (SELECT hour FROM settled))
            OR step = 3600 AND at < least(now() - CAST(:error_hours AS interval),
                                          (SELECT day FROM settled))
            OR step = 86400 AND at < now() - CAST(:hours AS interval))),
untracked AS (
    DELETE FROM pgbeat.untracked_tasks
     WHERE namespace = :namespace AND at < now() - CAST(:untracked_hours AS interval))
DELETE FROM pgbeat.rollups
 WHERE namespace = :namespace
   AND (step = 60 AND at < least(now() - CAST(:minutes AS interval),
                                 (SELECT hour FROM settled))
        OR step = 3600 AND at < now() - CAST(:hours AS interval))
