-- name: failed
SELECT date_trunc('minute', j.finished_at) AS at, j.task, {line} AS error, j.schedule,
       count(*) AS number, min(j.finished_at) AS first_at, max(j.finished_at) AS last_at,
       (array_agg(j.id ORDER BY j.finished_at DESC, j.id))[1] AS job_id
  FROM pgbeat.ended_jobs j
 WHERE j.finished_at >= :starts AND j.finished_at < :ends AND j.namespace = :namespace
   AND j.state = 'failed'
 GROUP BY 1, 2, 3, 4
 ORDER BY number DESC

-- name: write
INSERT INTO pgbeat.error_rollups (namespace, step, at, place, error, task, number, first_at,
       last_at, job_id, schedules)
SELECT :namespace, :step, d.at, d.place, d.error, d.task, d.number, d.first_at, d.last_at,
       d.job_id, d.schedules
  FROM json_to_recordset(CAST(:batch AS json)) AS d (
           at timestamptz, place smallint, error text, task text, number bigint,
           first_at timestamptz, last_at timestamptz, job_id uuid, schedules text[])
