-- name: record
INSERT INTO pgbeat.ticks
       (schedule_id, schedule, trigger, due_at, decided_at, outcome, reason, error, job_id,
        missed, note, more_job_ids)
SELECT d.schedule_id, d.schedule, d.trigger, d.due_at, clock_timestamp(), d.outcome, d.reason,
       d.error, d.job_id, d.missed, d.note, d.more_job_ids
  FROM json_to_recordset(CAST(:batch AS json)) AS d (
           schedule_id bigint, schedule text, trigger text, due_at timestamptz, outcome text,
           reason text, error text, job_id uuid, missed integer, note text,
           more_job_ids uuid[])
ON CONFLICT ON CONSTRAINT ticks_one_decision DO NOTHING
RETURNING schedule_id

-- `r` is the last retry of the job `j`. LIMIT 1 makes Postgres look jobs up by their ids, and expect
-- one of each instead of one in every partition.
-- name: history
SELECT t.id, t.schedule, t.trigger, t.due_at, t.decided_at, t.outcome, t.reason, t.error,
       t.job_id, t.missed, t.note, coalesce(r.state, j.state),
       CASE WHEN r.state IS NULL THEN j.error WHEN r.state <> 'completed' THEN r.error END,
       coalesce(r.attempt, j.attempt), coalesce(r.max_attempts, j.max_attempts),
       coalesce(r.run_at, j.run_at), j.lane,
       CASE WHEN r.state IS NULL THEN j.dispatched_at ELSE r.dispatched_at END, j.run_key,
       j.task, CASE WHEN r.state IS NULL THEN j.started_at ELSE r.started_at END,
       CASE WHEN r.state IS NULL THEN j.finished_at ELSE r.finished_at END, t.more_job_ids
  FROM pgbeat.ticks t
  LEFT JOIN LATERAL (SELECT * FROM pgbeat.jobs WHERE id = t.job_id LIMIT 1) AS j ON true
  LEFT JOIN LATERAL (
           SELECT n.state, c.error, n.attempt, n.max_attempts, n.run_at, n.dispatched_at,
                  n.started_at, n.finished_at
             FROM pgbeat.attempts_from(j.id) AS c CROSS JOIN LATERAL (
                  SELECT * FROM pgbeat.jobs WHERE id = c.id LIMIT 1) AS n
            WHERE j.retried_by IS NOT NULL
            ORDER BY c.number DESC LIMIT 1) AS r ON true
 WHERE t.schedule_id = :schedule_id AND t.due_at <= :due_at
   AND (t.due_at, t.id) < (:due_at, :id)
 ORDER BY t.due_at DESC, t.id DESC LIMIT :limit

-- name: outcomes
SELECT i.id, j.run_key, coalesce(r.state, j.state),
       CASE WHEN r.state IS NULL THEN j.error WHEN r.state <> 'completed' THEN r.error END,
       j.task, CASE WHEN r.state IS NULL THEN j.started_at ELSE r.started_at END,
       CASE WHEN r.state IS NULL THEN j.finished_at ELSE r.finished_at END
  FROM unnest(CAST(:ids AS uuid[])) AS i (id)
  LEFT JOIN LATERAL (SELECT * FROM pgbeat.jobs WHERE id = i.id LIMIT 1) AS j ON true
  LEFT JOIN LATERAL (
           SELECT n.state, c.error, n.started_at, n.finished_at
             FROM pgbeat.attempts_from(j.id) AS c CROSS JOIN LATERAL (
                  SELECT * FROM pgbeat.jobs WHERE id = c.id LIMIT 1) AS n
            WHERE j.retried_by IS NOT NULL
            ORDER BY c.number DESC LIMIT 1) AS r ON true
