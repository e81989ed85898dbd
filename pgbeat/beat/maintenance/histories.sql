-- The rows of a period, by the history's table: a role that may use that has no privileges on the
-- partitions that were added later.
-- name: period
(SELECT * FROM pgbeat.{history}
         WHERE {period_moment} >= :starts_at AND {period_moment} < :ends_at)

-- Those that are among the newest of their schedule.
-- name: newest
SELECT p.id FROM (
        SELECT s.id, coalesce(n.retention_count,
                              (SELECT max(retention_count) FROM pgbeat.namespaces), 0) AS count
          FROM pgbeat.schedules s LEFT JOIN pgbeat.namespaces n ON n.name = s.namespace
         WHERE EXISTS (SELECT FROM {period} p WHERE p.schedule_id = s.id)) AS s
  LEFT JOIN LATERAL (SELECT h.{moment} FROM pgbeat.{table} h WHERE h.schedule_id = s.id
                      ORDER BY h.{moment} DESC OFFSET greatest(s.count - 1, 0) LIMIT 1) AS last
         ON true
  JOIN {period} p ON p.schedule_id = s.id AND s.count > 0
   AND p.{moment} >= coalesce(last.{moment}, '-infinity')

-- Members of groups that run.
-- name: of_groups
SELECT p.id FROM {period} p JOIN pgbeat.groups g ON g.id = p.group_id
 WHERE g.finished_at IS NULL

-- Executions of jobs that are still there: kept ones, and those that ended later, or not at all.
-- name: of_jobs
SELECT p.id FROM {period} p
 WHERE p.job_id = ANY (ARRAY(
           SELECT id FROM pgbeat.unfinished_jobs WHERE started_at IS NOT NULL
           UNION ALL
           SELECT id FROM pgbeat.ended_jobs
            WHERE finished_at >= :starts_at AND created_at < :ends_at))

-- A tick may have been decided long after its time.
-- name: late
SELECT p.id FROM {period} p WHERE p.decided_at >= :before
-- name: size
SELECT count(*) FROM (
    SELECT FROM pgbeat.{history}
     WHERE {moment} >= CAST(:starts AS timestamptz) AND {moment} < :ends LIMIT :most) AS r
