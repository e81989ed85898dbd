-- Records new executions, with what each does to its job. $1: a JSON array of `ExecutionRecord`, each
-- job once. Returns the ended jobs that something waits for: a lane, a group, the job that retries;
-- and cancelled ones, whose retry by Celery may be on its way. A row with nothing but an id is a job
-- that a completed execution does not end: it has ended before, or is paused.
--
-- Invariants: recording again changes nothing. Of a job, the execution that began last decides,
-- unless an earlier one completed. A delivery that comes while another execution seems to run means
-- that the other's worker is gone, unless it asked for this retry, and is about to record that. What
-- a worker's main process has recorded for a process (such executions have no pid) is final.
--
-- A job never ends before it was made, though the clock was set back: its group looks from there on.
-- Times count back from the statement, not from its transaction, which may have waited for a lock: so
-- an execution that began after another was recorded is the later one.
--
-- A job that goes back to its queue has no message there if another execution snoozed meanwhile: it is
-- sent again at once.
--
-- A job that this ends moves, and only what is unfinished is looked at; `late_executions` records
-- the few that belong to a job that has ended, or don't decide about it. The caller has locked jobs
-- that go back to `scheduled` or `pending`: whether those end depends on a request to cancel them.
--
-- The plan may have been made when the tables were almost empty: rows are found through arrays of
-- ids, or LATERAL, so that no table can be read whole; and CASE keeps conditions on states from
-- choosing an index. Parts in braces are in `executions.py`.
WITH r AS MATERIALIZED (
    SELECT *, statement_timestamp() - coalesce(began, 0) * interval '1 second' AS began_at,
           CASE WHEN state <> 'running'
                THEN statement_timestamp() - coalesce(ended, 0) * interval '1 second' END
               AS ended_at,
           job_state IN ('completed', 'failed', 'cancelled', 'skipped') AS ends_job,
           coalesce(is_repeated, false) AS may_be_known
      FROM json_to_recordset(CAST($1 AS json)) AS d (
               id uuid, job_id uuid, state text, job_state text, worker text,
               worker_id integer, pid integer, acks_late boolean, retry_attempt integer,
               began float8, ended float8, lost boolean, duration_ms float8,
               cpu_time_ms float8, memory_peak_mb float8, progress_done float8,
               progress_total float8, progress_message text, result text, error text,
               traceback text, metadata jsonb, log json, checkpoint jsonb, runs_in float8,
               message jsonb, is_repeated boolean,
               job jsonb)),
gone AS (
    DELETE FROM pgbeat.running_executions e
     WHERE e.id = ANY (ARRAY(
               SELECT n.id FROM r CROSS JOIN LATERAL (
                   SELECT o.id FROM pgbeat.running_executions o
                    WHERE o.job_id = r.job_id AND o.id <> r.id AND o.started_at <= r.began_at
                      AND o.retry_attempt >= coalesce(r.retry_attempt, 0)
                    LIMIT 1000) AS n))
    RETURNING e.*),
lost AS (
    INSERT INTO pgbeat.ended_executions
           (id, job_id, schedule_id, number, state, lost, retry_attempt, worker, worker_id, pid,
            acks_late, started_at, finished_at, recorded_at, progress_done, progress_total,
            progress_message, error, metadata, log)
    SELECT id, job_id, schedule_id, number, 'failed', true, retry_attempt, worker, worker_id, pid,
           acks_late, started_at, now(), clock_timestamp(), progress_done, progress_total,
           progress_message, 'lost: the message was delivered again', metadata, log FROM gone),
counted AS (
    INSERT INTO pgbeat.counters AS c (namespace, metric, label, kind, value)
    SELECT '', 'stale_claims_released', '', '', count(*) FROM gone HAVING count(*) > 0
    ON CONFLICT (namespace, metric, label, kind)
    DO UPDATE SET value = c.value + excluded.value),
moved AS (
    DELETE FROM pgbeat.unfinished_jobs j USING (SELECT * FROM r OFFSET 0) AS r
     WHERE j.id = r.job_id AND j.id = ANY (ARRAY(SELECT job_id FROM r))
       AND CASE WHEN j.state <> 'paused' THEN true ELSE false END
       AND (r.ends_job OR r.job_state <> 'running' AND j.cancel_requested_at IS NOT NULL)
       AND (j.executions = 0 OR r.job_state = 'completed'
            OR pgbeat.is_last_execution(j.id, r.id, r.began_at))
    RETURNING {kept}, {record},
              coalesce(j.started_at, r.began_at) AS started_at,
              greatest(r.ended_at, j.created_at) AS finished_at,
              r.worker, pgbeat.next_state(j.cancel_requested_at, r.job_state) AS state,
              pgbeat.end_error(pgbeat.next_state(j.cancel_requested_at, r.job_state),
                               j.cancel_reason, r.error) AS error,
              pgbeat.retry_id(j.id, j.keeps_id, j.args, j.attempt, j.max_attempts,
                              j.cancel_requested_at, r.job_state) AS retried_by,
              coalesce(r.checkpoint, j.checkpoint) AS checkpoint, j.executions + 1 AS executions,
              {attempt} AS attempt),
ended AS (
    INSERT INTO pgbeat.ended_jobs ({ended_job}) SELECT {ended_job} FROM moved),
began AS (
    UPDATE pgbeat.unfinished_jobs j
       SET started_at = coalesce(j.started_at, r.began_at), worker = r.worker,
           run_at = CASE WHEN {is_unsent} THEN now()
                         ELSE r.ended_at + r.runs_in * interval '1 second' END,
           dispatched_at = CASE WHEN {is_sent} THEN j.dispatched_at END,
           message = coalesce(r.message, j.message),
           state = CASE WHEN {is_unsent} THEN 'scheduled' ELSE r.job_state END,
           error = r.error, attempt = {attempt}, executions = j.executions + 1,
           checkpoint = coalesce(r.checkpoint, j.checkpoint)
      FROM (SELECT * FROM r OFFSET 0) AS r
     WHERE j.id = r.job_id AND j.id = ANY (ARRAY(SELECT job_id FROM r WHERE NOT ends_job))
       AND CASE WHEN j.state <> 'paused' THEN true ELSE false END
       AND (r.job_state = 'running' OR j.cancel_requested_at IS NULL)
       AND NOT (r.may_be_known AND EXISTS (
           SELECT FROM pgbeat.running_executions n WHERE n.id = r.id))
       AND (j.executions = 0 OR r.job_state = 'completed'
            OR pgbeat.is_last_execution(j.id, r.id, r.began_at))
    RETURNING j.id, j.namespace, j.state, j.lane, j.group_id, j.retried_by, j.schedule_id,
              j.dispatched_at, j.cancel_reason, j.executions, {record}),
fresh AS MATERIALIZED (
    SELECT * FROM r
     WHERE job IS NOT NULL
       AND NOT EXISTS (SELECT FROM pgbeat.unfinished_jobs u WHERE u.id = r.job_id)
       AND NOT (may_be_known AND pgbeat.has_ended(job_id))),
made AS (
    SELECT (SELECT count(*) FROM pgbeat.write_jobs(f.jobs)) AS number FROM (
        SELECT json_agg(job || jsonb_build_object(
                   'id', job_id, 'state', job_state, 'created_at', began_at,
                   'dispatched_at', began_at, 'elsewhere_at', began_at, 'started_at', began_at,
                   'finished_at', CASE WHEN ends_job THEN ended_at END, 'worker', worker,
                   'error', error, 'checkpoint', checkpoint, 'executions', 1)) AS jobs
          FROM fresh) AS f
     WHERE f.jobs IS NOT NULL),
placed AS (
    SELECT {record_names}, schedule_id, cancel_reason, executions FROM moved
    UNION ALL
    SELECT {record_names}, schedule_id, cancel_reason, executions FROM began
    UNION ALL
    SELECT {record}, NULL, NULL, 1 FROM fresh AS r),
running AS (
    INSERT INTO pgbeat.running_executions
           (id, job_id, schedule_id, number, state, retry_attempt, worker, worker_id, pid, acks_late,
            started_at, progress_done, progress_total, progress_message, metadata, log)
    SELECT execution_id, job_id, schedule_id, executions, 'running', coalesce(retry_attempt, 0),
           coalesce(own_worker, ''), worker_id, pid, coalesce(acks_late, false), began_at,
           progress_done, progress_total, progress_message, coalesce(reported, '{}'), log
      FROM placed WHERE own_state = 'running'
    ON CONFLICT (id) DO NOTHING),
over AS (
    INSERT INTO pgbeat.ended_executions ({ended_execution})
    SELECT execution_id, job_id, schedule_id, executions, own_state, coalesce(lost, false),
           coalesce(retry_attempt, 0), coalesce(own_worker, ''), worker_id, pid,
           coalesce(acks_late, false), began_at, ended_at, duration_ms, cpu_time_ms,
           memory_peak_mb, progress_done, progress_total, progress_message, result,
           pgbeat.end_error(own_state, cancel_reason, own_error), traceback,
           coalesce(reported, '{}'), log, clock_timestamp()
      FROM placed WHERE own_state <> 'running'),
late AS (
    SELECT pgbeat.late_executions(l.records) AS number FROM (
        SELECT json_agg(r) AS records FROM r
         WHERE (SELECT count(*) FROM placed) < (SELECT count(*) FROM r)
           AND id NOT IN (SELECT execution_id FROM placed)) AS l
     WHERE l.records IS NOT NULL)
SELECT {result} FROM moved WHERE {is_awaited} OR state = 'cancelled'
UNION ALL
SELECT {result} FROM began WHERE state <> 'running' AND {is_awaited}
UNION ALL
SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
  FROM (SELECT number FROM made UNION ALL SELECT number FROM late) AS counts WHERE number < 0
UNION ALL
SELECT job_id, NULL, NULL, NULL, NULL, NULL, NULL, NULL FROM r
 WHERE job_state = 'completed' AND job_id NOT IN (SELECT id FROM moved)
   AND job_id NOT IN (SELECT job_id FROM fresh)
