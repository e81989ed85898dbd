-- Records how known executions go on or end, with what that does to their jobs. $1 and the rows
-- that it returns are as in `executions_begin.sql`, and so are the reasons for the plan's shape.
--
-- Invariants: recording again changes nothing. An execution never ends before it began, however much
-- the ways of two messages differ. One that was given up as lost but was alive records how it really
-- ended; its job has gone on, and stays as it is.
WITH r AS MATERIALIZED (
    SELECT *, now() - coalesce(ended, 0) * interval '1 second' AS ended_at
      FROM json_to_recordset(CAST($1 AS json)) AS d (
               id uuid, job_id uuid, state text, job_state text, ended float8,
               lost boolean, duration_ms float8, cpu_time_ms float8, memory_peak_mb float8,
               progress_done float8, progress_total float8, progress_message text, result text,
               error text, traceback text, metadata jsonb, checkpoint jsonb)),
jobs AS (
    UPDATE pgbeat.jobs j
       SET state = pgbeat.next_state(j, r.job_state),
           finished_at = CASE WHEN pgbeat.next_state(j, r.job_state)
                                   IN ('completed', 'failed', 'cancelled', 'skipped')
                                   AND r.state <> 'running'
                              THEN coalesce(
                                  e.started_at + r.duration_ms * interval '1 millisecond',
                                  r.ended_at) END,
           error = pgbeat.end_error(pgbeat.next_state(j, r.job_state), j.cancel_reason, r.error),
           retried_by = pgbeat.retry_id(j, r.job_state),
           checkpoint = coalesce(r.checkpoint, j.checkpoint)
      FROM (SELECT * FROM r OFFSET 0) AS r JOIN pgbeat.executions e
        ON e.id = r.id AND e.id = ANY (ARRAY(SELECT id FROM r))
     WHERE j.id = r.job_id AND j.id = ANY (ARRAY(SELECT job_id FROM r))
       AND CASE WHEN j.state = 'running' AND e.state = 'running' THEN true ELSE false END
       AND (r.state <> 'running' OR r.checkpoint IS NOT NULL)
       AND (r.job_state = 'completed' OR NOT EXISTS (
           SELECT FROM pgbeat.executions n
            WHERE n.job_id = r.job_id AND n.started_at > e.started_at))
    RETURNING j.id, j.namespace, j.state, j.lane, j.group_id, j.retried_by,
              j.dispatched_at IS NOT NULL AS is_dispatched),
written AS (
    UPDATE pgbeat.executions e
       SET state = r.state,
           finished_at = CASE WHEN r.state <> 'running' THEN coalesce(
               e.started_at + r.duration_ms * interval '1 millisecond', r.ended_at) END,
           recorded_at = CASE WHEN r.state <> 'running'
                              THEN coalesce(e.recorded_at, clock_timestamp()) END,
           lost = coalesce(r.lost, false) AND r.state IN ('failed', 'cancelled'),
           duration_ms = coalesce(r.duration_ms, e.duration_ms),
           cpu_time_ms = coalesce(r.cpu_time_ms, e.cpu_time_ms),
           memory_peak_mb = coalesce(r.memory_peak_mb, e.memory_peak_mb),
           progress_done = coalesce(r.progress_done, e.progress_done),
           progress_total = coalesce(r.progress_total, e.progress_total),
           progress_message = coalesce(r.progress_message, e.progress_message),
           result = coalesce(r.result, e.result),
           error = CASE WHEN r.state = 'running' THEN e.error
                   WHEN r.state = 'cancelled' THEN (
                       SELECT pgbeat.end_error(r.state, j.cancel_reason, r.error)
                         FROM pgbeat.jobs j WHERE j.id = e.job_id)
                   ELSE r.error END,
           traceback = coalesce(r.traceback, e.traceback),
           metadata = e.metadata || coalesce(r.metadata, '{}')
      FROM (SELECT * FROM r OFFSET 0) AS r
     WHERE e.id = r.id AND e.id = ANY (ARRAY(SELECT id FROM r))
       AND (e.state = 'running' OR (e.lost AND r.state <> 'running')))
SELECT * FROM jobs
 WHERE state <> 'running' AND (lane IS NOT NULL OR group_id IS NOT NULL
       OR retried_by IS NOT NULL OR state = 'cancelled')
