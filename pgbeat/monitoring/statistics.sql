-- `r` has state, lost, started_at, finished_at and duration_ms of executions. If these are not all,
-- there is one more than are counted. `next` has at most one row, with the time `at`.
-- name: statistics
SELECT count(*), count(*) FILTER (WHERE state = 'running'),
       count(*) FILTER (WHERE state = 'completed'), count(*) FILTER (WHERE state = 'failed'),
       count(*) FILTER (WHERE state = 'cancelled'), count(*) FILTER (WHERE state = 'skipped'),
       count(*) FILTER (WHERE lost), avg(ms),
       percentile_cont(0.95) WITHIN GROUP (ORDER BY ms),
       (array_agg(started_at ORDER BY started_at DESC))[1],
       (array_agg(state ORDER BY started_at DESC))[1],
       (SELECT at FROM next), (SELECT count(*) <= :newest FROM r)
  FROM (SELECT *, CASE WHEN state = 'completed' THEN coalesce(duration_ms,
                   extract(epoch FROM finished_at - started_at) * 1000) END AS ms
          FROM r ORDER BY started_at DESC LIMIT :newest) AS counted

-- The newest of each state, so that a long line of waiting jobs is not read. The time leaves out the
-- partitions of before the job; the hour is for clocks of workers.
-- name: of_all
WITH newest AS MATERIALIZED (
    SELECT j.id, j.created_at
      FROM unnest(ARRAY['running', 'completed', 'failed', 'cancelled', 'skipped'])
           AS s (state) CROSS JOIN LATERAL
           pgbeat.newest_jobs(:namespace, s.state, :newest + 1) AS j
     ORDER BY j.created_at DESC, j.id DESC LIMIT :newest + 1)
SELECT e.state, e.lost, e.started_at, e.finished_at, e.duration_ms
  FROM newest n CROSS JOIN LATERAL (
       SELECT * FROM pgbeat.running_executions WHERE job_id = n.id
        UNION ALL
       SELECT * FROM pgbeat.ended_executions
        WHERE job_id = n.id AND finished_at >= n.created_at - interval '1 hour'
        LIMIT :newest + 1) AS e
 ORDER BY e.started_at DESC LIMIT :newest + 1
