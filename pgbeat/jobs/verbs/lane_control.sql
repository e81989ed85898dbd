-- Jobs that will come into the line count too.
-- name: uses
SELECT (SELECT count(*) FROM pgbeat.unfinished_jobs
         WHERE namespace = :namespace AND lane = :lane AND dispatched_at IS NULL
           AND state IN ('pending', 'scheduled', 'paused')),
       (SELECT count(*) FROM pgbeat.reservations
         WHERE namespace = :namespace AND lane = :lane),
       ARRAY(SELECT name FROM pgbeat.schedules
              WHERE namespace = :namespace AND job_policy ->> 'lane' = :lane ORDER BY name),
       ARRAY(SELECT name FROM pgbeat.templates
              WHERE namespace = :namespace AND job_policy ->> 'lane' = :lane ORDER BY name)
