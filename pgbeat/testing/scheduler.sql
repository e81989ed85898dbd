-- What a job that nothing holds any more sleeps or waits for. The job may be one of a chain of retries.
-- name: suspended
SELECT s.name FROM pgbeat.steps s JOIN pgbeat.unfinished_jobs j
    ON j.state = 'scheduled' AND j.dispatched_at IS NULL AND (j.message #>> '{waits_for,step}')::bigint = s.id
 WHERE CAST(:job AS uuid) IN (s.root_id, s.job_id) AND s.finished_at IS NULL

-- Ends that: a wait without an event has timed out.
-- name: wake
WITH ended AS (
    UPDATE pgbeat.steps s SET finished_at = clock_timestamp(), until = least(s.until, clock_timestamp())
      FROM pgbeat.unfinished_jobs j
     WHERE CAST(:job AS uuid) IN (s.root_id, s.job_id) AND s.finished_at IS NULL
       AND j.state = 'scheduled' AND j.dispatched_at IS NULL
       AND (j.message #>> '{waits_for,step}')::bigint = s.id
    RETURNING s.name, j.id),
woken AS (
    UPDATE pgbeat.unfinished_jobs j SET run_at = now() FROM ended WHERE j.id = ended.id)
SELECT name FROM ended
