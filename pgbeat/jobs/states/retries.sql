-- What a retry takes over from the old job, and what a kind of retries says itself.
-- name: insert
INSERT INTO pgbeat.unfinished_jobs AS j
       ({same}, id, retry_of, created_at, state, run_at, dispatched_at, attempt, priority,
        job_source, group_id, group_position, approved_by, approved_at, awaits_approval,
        must_end_by, late_at, missed_deadlines, next_deadline, is_blocked, unfinished_parents)
SELECT {same}, new_id, id, greatest(now(), created_at),
       CASE WHEN NOT is_approved THEN 'paused' ELSE new_state END, new_run_at,
       CASE WHEN lane IS NULL AND is_approved AND new_parents = 0 THEN now() END, new_attempt,
       new_priority, new_source, new_group, CASE WHEN new_group IS NOT NULL THEN group_position END,
       new_approved_by, new_approved_at, NOT is_approved, new_end_by, new_late_at, new_missed,
       CASE WHEN 'end' <> ALL (new_missed) THEN new_end_by END, new_parents > 0, new_parents
  FROM ({which}) AS old
ON CONFLICT DO NOTHING
RETURNING {columns}

-- name: automatic
SELECT *, retried_by AS new_id, 'scheduled' AS new_state,
       now() + least(retry_base * 2 ^ least(attempt - 1, 60), retry_cap) AS new_run_at,
       attempt + 1 AS new_attempt, priority AS new_priority, job_source AS new_source,
       group_id AS new_group, approved_by AS new_approved_by, approved_at AS new_approved_at,
       NOT requires_approval OR approved_by IS NOT NULL AS is_approved,
       must_end_by AS new_end_by, late_at AS new_late_at, missed_deadlines AS new_missed,
       0 AS new_parents
  FROM pgbeat.ended_jobs
 WHERE id = ANY (CAST(:ids AS uuid[])) AND retried_by IS NOT NULL

-- The retry joins the group only if that still runs, which the lock keeps it from ending meanwhile.
-- name: by_hand
SELECT old.*, gen_random_uuid() AS new_id, 'pending' AS new_state,
       CAST(NULL AS timestamptz) AS new_run_at, 1 AS new_attempt,
       coalesce(:priority, priority) AS new_priority, :job_source AS new_source,
       (SELECT g.id FROM pgbeat.groups g WHERE g.id = old.group_id AND g.state = 'running'
           FOR SHARE) AS new_group,
       CAST(NULL AS text) AS new_approved_by, CAST(NULL AS timestamptz) AS new_approved_at,
       NOT requires_approval AS is_approved, CAST(NULL AS timestamptz) AS new_end_by,
       CAST(NULL AS timestamptz) AS new_late_at, CAST('{}' AS text[]) AS new_missed,
       cardinality(CAST(:parents AS uuid[])) AS new_parents
  FROM pgbeat.ended_jobs old
 WHERE old.id = :id AND {is_retriable}

-- `retried_by` names the first retry.
-- name: insert_by_hand
WITH made AS ({insert}),
edges AS (
    INSERT INTO pgbeat.dependencies (job_id, parent_id, needs)
    SELECT made.id, p.id, p.needs
      FROM made, unnest(CAST(:parents AS uuid[]), CAST(:needs AS text[])) AS p (id, needs)),
linked AS (
    UPDATE pgbeat.ended_jobs old SET retried_by = made.id
      FROM made WHERE old.id = :id AND old.retried_by IS NULL)
SELECT * FROM made

-- name: lock
SELECT id FROM pgbeat.ended_jobs
 WHERE id = ANY (ARRAY(SELECT pgbeat.retry_chain(CAST(:id AS uuid))))
 ORDER BY created_at, id LIMIT 1 FOR UPDATE

-- Whether the group whose callback the job is, or one before it in a sequence goes on.
-- name: waits
SELECT EXISTS (SELECT FROM pgbeat.groups g
                WHERE g.id = j.callback_of AND g.finished_at IS NULL)
       OR EXISTS (SELECT FROM pgbeat.groups g JOIN pgbeat.unfinished_jobs m ON m.group_id = g.id
                   WHERE g.id = j.group_id AND g.mode = 'sequential'
                     AND m.group_position < j.group_position)
  FROM pgbeat.ended_jobs j WHERE j.id = :id

-- All attempts of the jobs on which jobs, or others of their chains, depend.
-- name: parents
SELECT DISTINCT old.id AS job_id, parent.id, d.needs
  FROM unnest(CAST(:ids AS uuid[])) AS old (id)
       CROSS JOIN LATERAL pgbeat.retry_chain(old.id) AS own (id)
       JOIN pgbeat.dependencies d ON d.job_id = own.id
       CROSS JOIN LATERAL pgbeat.retry_chain(d.parent_id) AS parent (id)

-- name: unfinished_parents
SELECT DISTINCT ON (p.id) p.id, p.needs
  FROM ({parents}) AS p JOIN pgbeat.unfinished_jobs j ON j.id = p.id

-- name: unfinished
SELECT j.id FROM pgbeat.unfinished_jobs j
 WHERE j.id = ANY (ARRAY(SELECT pgbeat.retry_chain(CAST(:id AS uuid)))) ORDER BY j.created_at, j.id

-- name: last
SELECT {columns} FROM pgbeat.attempts_from(CAST(:id AS uuid)) AS c
       CROSS JOIN LATERAL (SELECT * FROM pgbeat.jobs WHERE id = c.id LIMIT 1) AS j
 ORDER BY c.number DESC LIMIT 1
