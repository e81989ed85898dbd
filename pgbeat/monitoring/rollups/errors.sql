-- name: range
WHERE r.namespace = :namespace
  AND (r.step = 86400 AND r.at >= :since AND r.at < :hours_from
       OR r.step = 3600 AND r.at >= :hours_from AND r.at < :minutes_from
       OR r.step = 60 AND r.at >= :minutes_from AND r.at < :until)
-- name: kinds
SELECT r.error, r.task, CAST(sum(r.number) AS bigint) AS number, min(r.first_at) AS first_at,
       max(r.last_at) AS last_at,
       (array_agg(r.job_id ORDER BY r.last_at DESC))[1] AS job_id,
       CAST(sum(sum(r.number)) OVER () AS bigint) AS total
  FROM pgbeat.error_rollups r {range}
   AND (CAST(:task AS text) IS NULL OR r.task IN (:task, ''))
 GROUP BY r.error, r.task ORDER BY 3 DESC, r.error, r.task LIMIT :most

-- name: of_kinds
json_to_recordset(CAST(:kinds AS json)) AS k (error text, task text)
-- name: counts
SELECT r.error, r.task,
       CAST(floor(extract(epoch FROM r.at - :since) / :seconds) AS integer) AS step,
       CAST(sum(r.number) AS bigint) AS number
  FROM pgbeat.error_rollups r {range}
   AND (r.error, r.task) IN (SELECT k.error, k.task FROM {of_kinds})
 GROUP BY 1, 2, 3

-- name: schedules
SELECT r.error, r.task, s.name, count(*) AS number
  FROM pgbeat.error_rollups r CROSS JOIN LATERAL unnest(r.schedules) AS s (name) {range}
   AND (r.error, r.task) IN (SELECT k.error, k.task FROM {of_kinds})
 GROUP BY 1, 2, 3 ORDER BY number DESC, s.name

-- One step into the index each.
-- name: beginnings
SELECT k.error, k.task, first.first_at
  FROM {of_kinds}
       CROSS JOIN LATERAL (
           SELECT r.first_at FROM pgbeat.error_rollups r
            WHERE r.namespace = :namespace AND r.task = k.task AND md5(r.error) = md5(k.error)
            ORDER BY r.last_at LIMIT 1) AS first

-- By the time of their creation: there is no index by the time of their end.
-- name: newest
WITH newest AS MATERIALIZED (
    SELECT id, task, schedule, created_at, finished_at, error FROM pgbeat.ended_jobs
     WHERE namespace = :namespace AND state = 'failed'
     ORDER BY created_at DESC, id DESC LIMIT :most)
SELECT r.has_more, j.id AS job_id, j.task, j.schedule, j.finished_at AS first_at,
       j.finished_at AS last_at, 1 AS number, {line} AS error
  FROM (SELECT count(*) >= :most AND min(created_at) >= :until FROM newest) AS r (has_more)
       LEFT JOIN newest j ON j.finished_at >= :until
              AND (CAST(:task AS text) IS NULL OR j.task = :task)
