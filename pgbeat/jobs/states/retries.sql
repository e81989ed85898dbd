-- name: automatic
INSERT INTO pgbeat.unfinished_jobs AS j
       ({same}, id, retry_of, created_at, state, run_at, dispatched_at, attempt, priority,
        job_source, group_id, group_position, approved_by, approved_at, awaits_approval,
        must_end_by, late_at, missed_deadlines, next_deadline)
SELECT {same}, retried_by, id, greatest(now(), created_at),
       CASE WHEN is_approved THEN 'scheduled' ELSE 'paused' END,
       now() + least(retry_base * 2 ^ least(attempt - 1, 60), retry_cap),
       CASE WHEN lane IS NULL AND is_approved THEN now() END, attempt + 1, priority, job_source,
       group_id, group_position, approved_by, approved_at, NOT is_approved,
       must_end_by, late_at, missed_deadlines,
       CASE WHEN 'end' <> ALL (missed_deadlines) THEN must_end_by END
  FROM (SELECT *, NOT requires_approval OR approved_by IS NOT NULL AS is_approved
          FROM pgbeat.ended_jobs
         WHERE id = ANY (CAST(:ids AS uuid[])) AND retried_by IS NOT NULL) AS old
ON CONFLICT DO NOTHING
RETURNING {columns}

-- The retry joins the group only if that still runs, which the lock keeps it from ending meanwhile.
-- `retried_by` names the first retry.
-- name: by_hand
WITH made AS (
    INSERT INTO pgbeat.unfinished_jobs AS j
           ({same}, id, retry_of, created_at, state, dispatched_at, priority, job_source,
            group_id, group_position, awaits_approval)
    SELECT {same}, gen_random_uuid(), id, greatest(now(), created_at),
           CASE WHEN requires_approval THEN 'paused' ELSE 'pending' END,
           CASE WHEN lane IS NULL AND NOT requires_approval THEN now() END,
           coalesce(:priority, priority), :job_source,
           CASE WHEN is_open THEN group_id END, CASE WHEN is_open THEN group_position END,
           requires_approval
      FROM (SELECT old.*, EXISTS (SELECT FROM pgbeat.groups g
                                   WHERE g.id = old.group_id AND g.state = 'running'
                                     FOR SHARE) AS is_open
              FROM pgbeat.ended_jobs old
             WHERE old.id = :id
               AND {is_retriable}) AS old
    ON CONFLICT DO NOTHING
    RETURNING {columns}),
linked AS (
    UPDATE pgbeat.ended_jobs old SET retried_by = made.id
      FROM made WHERE old.id = :id AND old.retried_by IS NULL)
SELECT * FROM made

-- name: chain
SELECT {columns} FROM pgbeat.jobs j
 WHERE j.id IN (SELECT pgbeat.retry_chain(CAST(:id AS uuid)))
 ORDER BY j.created_at, j.id LIMIT 100
-- name: last
SELECT {columns} FROM pgbeat.attempts_from(CAST(:id AS uuid)) AS c
       CROSS JOIN LATERAL (SELECT * FROM pgbeat.jobs WHERE id = c.id LIMIT 1) AS j
 ORDER BY c.number DESC LIMIT 1
