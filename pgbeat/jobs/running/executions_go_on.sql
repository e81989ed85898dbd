-- Records how known executions continue or end, with what that does to their jobs. $1, the rows that it
-- returns and the reasons for its shape are as in `executions_begin.sql`.
--
-- Invariants: recording again changes nothing. An execution never ends before it began, however much
-- the ways of two messages differ. One that was given up as lost but was alive records how it really
-- ended (`late_ends`); its job has gone on, and stays as it is, unless the execution completed it.
WITH r AS MATERIALIZED (
    SELECT *, statement_timestamp() - coalesce(ended, 0) * interval '1 second' AS ended_at,
           job_state IN ('completed', 'failed', 'cancelled', 'skipped') AS ends_job
      FROM json_to_recordset(CAST($1 AS json)) AS d (
               id uuid, job_id uuid, state text, job_state text, ended float8,
               lost boolean, duration_ms float8, cpu_time_ms float8, memory_peak_mb float8,
               progress_done float8, progress_total float8, progress_message text, result text,
               error text, traceback text, metadata jsonb, log json, checkpoint jsonb,
               runs_in float8, message jsonb)),
went_on AS (
    UPDATE pgbeat.running_executions e
       SET progress_done = coalesce(r.progress_done, e.progress_done),
           progress_total = coalesce(r.progress_total, e.progress_total),
           progress_message = coalesce(r.progress_message, e.progress_message),
           metadata = e.metadata || coalesce(r.metadata, '{}'), log = coalesce(r.log, e.log)
      FROM (SELECT * FROM r OFFSET 0) AS r
     WHERE e.id = r.id AND e.id = ANY (ARRAY(SELECT id FROM r WHERE state = 'running'))
    RETURNING e.id, e.job_id, e.started_at, r.state, r.job_state, r.ends_job, NULL::timestamptz
              AS finished_at, r.error, r.checkpoint, r.ended_at, r.runs_in, r.message),
gone AS (
    DELETE FROM pgbeat.running_executions e USING (SELECT * FROM r OFFSET 0) AS r
     WHERE e.id = r.id AND e.id = ANY (ARRAY(SELECT id FROM r WHERE state <> 'running'))
    RETURNING e.id, e.job_id, e.schedule_id, e.number, r.state,
              coalesce(r.lost, false) AND r.state IN ('failed', 'cancelled') AS lost,
              e.retry_attempt, e.worker, e.worker_id, e.pid, e.acks_late, e.started_at,
              coalesce(e.started_at + r.duration_ms * interval '1 millisecond', r.ended_at)
                  AS finished_at,
              r.duration_ms, r.cpu_time_ms, r.memory_peak_mb,
              coalesce(r.progress_done, e.progress_done) AS progress_done,
              coalesce(r.progress_total, e.progress_total) AS progress_total,
              coalesce(r.progress_message, e.progress_message) AS progress_message,
              r.result, r.error, r.traceback, e.metadata || coalesce(r.metadata, '{}') AS metadata,
              coalesce(r.log, e.log) AS log,
              r.job_state, r.ends_job, r.checkpoint, r.ended_at, r.runs_in, r.message),
known AS (
    SELECT id, job_id, started_at, state, job_state, ends_job, finished_at, error, checkpoint,
           ended_at, runs_in, message
      FROM went_on
    UNION ALL
    SELECT id, job_id, started_at, state, job_state, ends_job, finished_at, error, checkpoint,
           ended_at, runs_in, message
      FROM gone),
moved AS (
    DELETE FROM pgbeat.unfinished_jobs j USING (SELECT * FROM known OFFSET 0) AS r
     WHERE j.id = r.job_id AND j.id = ANY (ARRAY(SELECT job_id FROM gone))
       AND CASE WHEN j.state = 'running' THEN true ELSE false END AND r.state <> 'running'
       AND (r.ends_job OR r.job_state <> 'running' AND j.cancel_requested_at IS NOT NULL)
       AND (r.job_state = 'completed'
            OR j.executions <= 1 OR pgbeat.is_last_execution(j.id, r.id, r.started_at))
    RETURNING {kept}, j.started_at, greatest(r.finished_at, j.created_at) AS finished_at, j.worker,
              j.executions,
              pgbeat.next_state(j.cancel_requested_at, r.job_state) AS state,
              pgbeat.end_error(pgbeat.next_state(j.cancel_requested_at, r.job_state),
                               j.cancel_reason, r.error) AS error,
              pgbeat.retry_id(j.id, j.keeps_id, j.args, j.attempt, j.max_attempts,
                              j.cancel_requested_at, r.job_state) AS retried_by,
              coalesce(r.checkpoint, j.checkpoint) AS checkpoint, j.attempt),
ended AS (
    INSERT INTO pgbeat.ended_jobs ({ended_job}) SELECT {ended_job} FROM moved),
jobs AS (
    UPDATE pgbeat.unfinished_jobs j
       SET state = CASE WHEN {is_unsent} THEN 'scheduled' ELSE r.job_state END,
           error = r.error, checkpoint = coalesce(r.checkpoint, j.checkpoint),
           run_at = CASE WHEN {is_unsent} THEN now()
                         ELSE r.ended_at + r.runs_in * interval '1 second' END,
           dispatched_at = CASE WHEN {is_sent} THEN j.dispatched_at END,
           message = coalesce(r.message, j.message)
      FROM (SELECT * FROM known OFFSET 0) AS r
     WHERE j.id = r.job_id AND j.id = ANY (ARRAY(SELECT job_id FROM known WHERE NOT ends_job))
       AND CASE WHEN j.state = 'running' THEN true ELSE false END
       AND (r.state <> 'running' AND (r.job_state = 'running' OR j.cancel_requested_at IS NULL)
            OR r.checkpoint IS NOT NULL)
       AND (r.job_state = 'completed'
            OR j.executions <= 1 OR pgbeat.is_last_execution(j.id, r.id, r.started_at))
    RETURNING j.id, j.namespace, j.state, j.lane, j.group_id, j.retried_by, j.dispatched_at),
over AS (
    INSERT INTO pgbeat.ended_executions ({ended_execution})
    SELECT g.id, g.job_id, g.schedule_id, g.number, g.state, g.lost, g.retry_attempt, g.worker,
           g.worker_id, g.pid, g.acks_late, g.started_at, g.finished_at, g.duration_ms,
           g.cpu_time_ms, g.memory_peak_mb, g.progress_done, g.progress_total,
           g.progress_message, g.result,
           CASE WHEN g.state = 'cancelled' THEN pgbeat.cancelled_error(g.job_id, g.error)
                ELSE g.error END,
           g.traceback, g.metadata, g.log, clock_timestamp()
      FROM gone g),
late AS (
    SELECT e.* FROM (
        SELECT json_agg(r) AS records FROM r
         WHERE state <> 'running' AND id NOT IN (SELECT id FROM gone)
           AND (SELECT count(*) FROM known) < (SELECT count(*) FROM r)) AS l
           CROSS JOIN LATERAL pgbeat.late_ends(l.records) AS e
     WHERE l.records IS NOT NULL)
SELECT {result} FROM moved WHERE {is_awaited} OR state = 'cancelled'
UNION ALL
SELECT {result} FROM jobs WHERE state <> 'running' AND {is_awaited}
UNION ALL
SELECT *, true FROM late
UNION ALL
SELECT job_id, NULL, NULL, NULL, NULL, NULL, NULL, NULL FROM r
 WHERE job_state = 'completed' AND job_id NOT IN (SELECT id FROM moved)
   AND job_id NOT IN (SELECT id FROM late)
