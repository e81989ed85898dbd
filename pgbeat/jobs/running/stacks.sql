-- Asks the process of the job's newest execution.
-- name: ask
INSERT INTO pgbeat.stacks (job_id, execution_id, reason)
SELECT job_id, id, 'asked' FROM pgbeat.running_executions WHERE job_id = :job
 ORDER BY number DESC LIMIT 1
ON CONFLICT (execution_id, reason) DO UPDATE SET asked_at = clock_timestamp()
RETURNING id, asked_at

-- name: columns
SELECT s.execution_id, e.number, s.reason, s.taken_at, s.memory_mb, s.stack
  FROM pgbeat.stacks s JOIN pgbeat.executions e ON e.job_id = s.job_id AND e.id = s.execution_id

-- name: answer
{columns} WHERE s.id = :id AND s.taken_at >= :asked_at

-- name: keep
INSERT INTO pgbeat.stacks (job_id, execution_id, reason, taken_at, memory_mb, stack)
VALUES (:job_id, :execution_id, :reason, clock_timestamp(), :memory_mb, :stack)
ON CONFLICT (execution_id, reason) DO UPDATE
   SET taken_at = excluded.taken_at, memory_mb = excluded.memory_mb, stack = excluded.stack

-- name: of_job
{columns} WHERE s.job_id = :job AND s.taken_at IS NOT NULL
 ORDER BY s.taken_at DESC LIMIT 100
