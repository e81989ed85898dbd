-- Returns the jobs that need a lock which another transaction holds. Locks the rest for as long as
-- the statement takes.
-- name: locked
WITH mine AS MATERIALIZED (
    SELECT id, schedule_id, group_id
      FROM pgbeat.unfinished_jobs WHERE id = ANY (CAST(:ids AS uuid[]))),
touched AS MATERIALIZED (
    SELECT m.id AS job_id, m.schedule_id AS id FROM mine m WHERE m.schedule_id IS NOT NULL
     UNION
    SELECT m.id, d.id FROM mine m JOIN pgbeat.schedules s ON s.id = m.schedule_id
           JOIN pgbeat.schedules d ON d.namespace = s.namespace AND d.after IS NOT NULL
                AND s.name = ANY (string_to_array(d.after, E'\n'))),
free_jobs AS MATERIALIZED (
    SELECT id FROM pgbeat.unfinished_jobs WHERE id = ANY (CAST(:ids AS uuid[]))
       FOR NO KEY UPDATE SKIP LOCKED),
free_schedules AS MATERIALIZED (
    SELECT id FROM pgbeat.schedules WHERE id = ANY (ARRAY(SELECT id FROM touched))
       FOR NO KEY UPDATE SKIP LOCKED),
free_groups AS MATERIALIZED (
    SELECT id FROM pgbeat.groups WHERE id = ANY (ARRAY(SELECT group_id FROM mine))
       FOR UPDATE SKIP LOCKED),
dependents AS MATERIALIZED (
    SELECT d.parent_id, d.job_id FROM mine m JOIN pgbeat.dependencies d ON d.parent_id = m.id
     WHERE d.outcome IS NULL),
free_dependents AS MATERIALIZED (
    SELECT id FROM pgbeat.unfinished_jobs
     WHERE id = ANY (ARRAY(SELECT job_id FROM dependents)) FOR NO KEY UPDATE SKIP LOCKED)
SELECT m.id FROM mine m
 WHERE NOT EXISTS (SELECT FROM free_jobs f WHERE f.id = m.id)
    OR EXISTS (SELECT FROM touched t
                WHERE t.job_id = m.id AND t.id NOT IN (SELECT id FROM free_schedules)
                  AND EXISTS (SELECT FROM pgbeat.schedules s WHERE s.id = t.id))
    OR m.group_id NOT IN (SELECT id FROM free_groups)
       AND EXISTS (SELECT FROM pgbeat.groups g WHERE g.id = m.group_id)
    OR EXISTS (SELECT FROM dependents d JOIN pgbeat.unfinished_jobs j ON j.id = d.job_id
                WHERE d.parent_id = m.id AND d.job_id NOT IN (SELECT id FROM free_dependents))

-- That jobs must end, or have missed their deadline, and that somebody asks for an execution's stack.
-- name: requests
SELECT j.id, w.reason
  FROM pgbeat.unfinished_jobs j CROSS JOIN LATERAL (VALUES
           ('cancel', j.cancel_requested_at IS NOT NULL),
           ('deadline', j.must_end_by <= now())) AS w (reason, is_wanted)
 WHERE j.id = ANY (CAST(:jobs AS uuid[])) AND w.is_wanted
{asked}

-- name: asked
UNION ALL
SELECT execution_id, 'asked' FROM pgbeat.stacks
 WHERE execution_id = ANY (CAST(:executions AS uuid[]))
   AND reason = 'asked' AND (taken_at IS NULL OR taken_at < asked_at)
