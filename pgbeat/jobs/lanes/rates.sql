-- name: keys
CASE WHEN CAST(:key AS text) IS NULL THEN ARRAY[NULL]
     WHEN :key = 'task' THEN ARRAY[j.task]
     WHEN :key = 'created_by' THEN ARRAY[j.created_by]
     WHEN :key = 'tag' THEN CASE WHEN j.tags = '{}' THEN ARRAY[NULL] ELSE j.tags END
     ELSE ARRAY[j.kwargs ->> substr(:key, length('kwargs.') + 1)] END

-- Since when a rate counts.
-- name: since
statement_timestamp() - CAST(:period AS interval)
-- name: of_lane
j.namespace = :namespace AND j.lane = :lane
           AND (j.finished_at IS NULL OR j.finished_at > {since})

-- The slots `j` that the lane has given within the period. A job that snoozes gets one each time,
-- and its row knows only the last: the others count from when it began.
-- name: given
FROM (SELECT j.dispatched_at, j.id, j.task, j.created_by, j.tags, j.kwargs, j.resources
        FROM pgbeat.jobs j WHERE {of_lane} AND j.dispatched_at > {since}
      UNION ALL
      SELECT e.started_at, j.id, j.task, j.created_by, j.tags, j.kwargs, j.resources
        FROM pgbeat.ended_executions e JOIN pgbeat.jobs j ON j.id = e.job_id
       WHERE e.state = 'snoozed' AND e.started_at > {since} AND e.finished_at > {since}
         AND {of_lane}) AS j

-- name: by_key
{given} CROSS JOIN LATERAL unnest({keys}) AS k (key)
-- name: spent
SELECT NULL, count(*) FROM (
    SELECT {given} ORDER BY j.dispatched_at DESC LIMIT :rate) AS spent
-- name: spent_by_key
SELECT k.key, count(*) {by_key} GROUP BY k.key
-- As `Work.of` counts what is no amount. In JSONB, what lies between two numbers is one.
-- name: cost
CASE WHEN j.resources -> :unit >= '0' AND j.resources -> :unit < '1e12'
     THEN CAST(j.resources ->> :unit AS numeric) ELSE 1 END
-- name: spent_by_cost
SELECT k.key, sum({cost}) {by_key} GROUP BY k.key

-- When the period no longer includes the job that was dispatched so long ago, another may go.
-- (Seconds are subtracted, not times: SQL may have written one that is infinite.)
-- name: again
SELECT extract(epoch FROM j.dispatched_at + CAST(:period AS interval))
       - extract(epoch FROM clock_timestamp())
  {given} ORDER BY j.dispatched_at DESC OFFSET :rate - 1 LIMIT 1
-- name: again_by_key
SELECT extract(epoch FROM min(d.nth) + CAST(:period AS interval))
       - extract(epoch FROM clock_timestamp())
  FROM (SELECT (array_agg(j.dispatched_at ORDER BY j.dispatched_at DESC))[:rate] AS nth
        {by_key} WHERE coalesce(k.key, '') = ANY (CAST(:keys AS text[]))
         GROUP BY k.key) AS d

-- When so much of a key's cost has left the period that the denied job fits: its newest jobs, summed
-- up, take the rest until the one that must leave.
-- name: again_by_cost
SELECT extract(epoch FROM min(f.leaves) + CAST(:period AS interval))
       - extract(epoch FROM clock_timestamp()) FROM (
    SELECT max(t.dispatched_at) AS leaves FROM (
        SELECT coalesce(k.key, '') AS key, j.dispatched_at,
               sum({cost}) OVER (
                   PARTITION BY k.key ORDER BY j.dispatched_at DESC, j.id) AS total
        {by_key}) AS t
           JOIN unnest(CAST(:keys AS text[]), CAST(:costs AS numeric[])) AS d (key, cost)
           USING (key)
     WHERE t.total > greatest(CAST(:rate AS integer) - d.cost, 0)
     GROUP BY key) AS f
