-- Records executions that are new to the database, with what they do to their jobs. $1 is a JSON
-- array of `ExecutionRecord`, each job once. Returns the ended jobs that something waits for: a
-- lane, a group, the job that retries; and cancelled ones, whose retry by Celery may be on its way.
--
-- Invariants: recording again changes nothing. Of a job, the execution that began last decides,
-- unless an earlier one completed. A delivery that comes while another execution seems to run means
-- that the other's worker is gone, unless it asked for this retry, and is about to record that. What
-- a worker's main process has recorded for a process (such executions have no pid) is final.
--
-- The plan may have been made when the tables were almost empty: rows are found through arrays of
-- ids, or LATERAL, so that no table can be read whole; and CASE keeps conditions on states from
-- choosing an index.
WITH r AS MATERIALIZED (
    SELECT *, now() - coalesce(began, 0) * interval '1 second' AS began_at,
           CASE WHEN state <> 'running' THEN now() - coalesce(ended, 0) * interval '1 second' END
               AS ended_at
      FROM json_to_recordset(CAST($1 AS json)) AS d (
               id uuid, job_id uuid, state text, job_state text, worker text,
               worker_id integer, pid integer, acks_late boolean, retry_attempt integer,
               number integer, began float8, ended float8, lost boolean, duration_ms float8,
               cpu_time_ms float8, memory_peak_mb float8, progress_done float8,
               progress_total float8, progress_message text, result text, error text,
               traceback text, metadata jsonb, checkpoint jsonb, makes_job boolean, namespace text,
               task text, args jsonb, kwargs jsonb, queue text, created_by text)),
made AS (
    INSERT INTO pgbeat.jobs AS j
           (id, namespace, task, args, kwargs, queue, state, job_source, created_by,
            is_system_job, dispatched_at, created_at, started_at, finished_at, worker, error,
            checkpoint)
    SELECT job_id, coalesce(namespace, 'default'), task, args, kwargs, queue, job_state,
           'system', coalesce(created_by, 'celery'), true, began_at, began_at, began_at,
           CASE WHEN job_state NOT IN ('running', 'scheduled', 'pending') THEN ended_at END,
           worker, error, checkpoint
      FROM r WHERE makes_job
    ON CONFLICT (id) DO NOTHING),
gone AS (
    UPDATE pgbeat.executions e
       SET state = 'failed', lost = true, finished_at = now(), recorded_at = clock_timestamp(),
           error = 'lost: the message was delivered again'
     WHERE e.id = ANY (ARRAY(
               SELECT n.id FROM r CROSS JOIN LATERAL (
                   SELECT o.id FROM pgbeat.executions o
                    WHERE o.job_id = r.job_id AND o.id <> r.id
                      AND CASE WHEN o.state = 'running' AND o.started_at <= r.began_at
                               THEN true ELSE false END
                      AND o.retry_attempt >= coalesce(r.retry_attempt, 0)
                    LIMIT 1000) AS n))
       AND CASE WHEN e.state = 'running' THEN true ELSE false END
    RETURNING e.id),
counted AS (
    INSERT INTO pgbeat.counters AS c (namespace, metric, label, kind, value)
    SELECT '', 'stale_claims_released', '', '', count(*) FROM gone HAVING count(*) > 0
    ON CONFLICT (namespace, metric, label, kind)
    DO UPDATE SET value = c.value + excluded.value),
began AS (
    UPDATE pgbeat.jobs j
       SET started_at = coalesce(j.started_at, r.began_at), worker = r.worker, run_at = NULL,
           state = pgbeat.next_state(j, r.job_state),
           finished_at = CASE WHEN pgbeat.next_state(j, r.job_state)
                                   IN ('completed', 'failed', 'cancelled', 'skipped')
                              THEN r.ended_at END,
           error = pgbeat.end_error(pgbeat.next_state(j, r.job_state), j.cancel_reason, r.error),
           retried_by = pgbeat.retry_id(j, r.job_state),
           checkpoint = coalesce(r.checkpoint, j.checkpoint)
      FROM (SELECT * FROM r OFFSET 0) AS r
     WHERE j.id = r.job_id AND j.id = ANY (ARRAY(SELECT job_id FROM r))
       AND CASE WHEN j.state IN ('pending', 'scheduled', 'running') THEN true ELSE false END
       AND (r.job_state = 'completed' OR NOT EXISTS (
           SELECT FROM pgbeat.executions n WHERE n.job_id = r.job_id
              AND CASE WHEN n.id = r.id THEN n.state <> 'running'
                  ELSE n.started_at > r.began_at END))
    RETURNING j.id, j.namespace, j.state, j.lane, j.group_id, j.retried_by,
              j.dispatched_at IS NOT NULL AS is_dispatched),
written AS (
    INSERT INTO pgbeat.executions
           (id, job_id, schedule_id, number, state, lost, retry_attempt, worker, worker_id,
            pid, acks_late, started_at, finished_at, duration_ms, cpu_time_ms, memory_peak_mb,
            progress_done, progress_total, progress_message, result, error, traceback,
            metadata, recorded_at)
    SELECT r.id, r.job_id, j.schedule_id,
           coalesce(r.number, 1 + coalesce((SELECT max(n.number) FROM pgbeat.executions n
                                             WHERE n.job_id = r.job_id), 0)),
           r.state, coalesce(r.lost, false), coalesce(r.retry_attempt, 0),
           coalesce(r.worker, ''), r.worker_id, r.pid, coalesce(r.acks_late, false),
           r.began_at, r.ended_at, r.duration_ms, r.cpu_time_ms, r.memory_peak_mb,
           r.progress_done, r.progress_total, r.progress_message, r.result,
           pgbeat.end_error(r.state, j.cancel_reason, r.error), r.traceback,
           coalesce(r.metadata, '{}'),
           CASE WHEN r.state <> 'running' THEN clock_timestamp() END
      FROM r LEFT JOIN (
               SELECT o.id, o.schedule_id, o.state, o.cancel_reason FROM pgbeat.jobs o
                WHERE o.id = ANY (ARRAY(SELECT job_id FROM r)) ORDER BY o.id
               OFFSET 0) AS j ON j.id = r.job_id
     WHERE (j.id IS NOT NULL OR r.makes_job)
       AND NOT (r.state = 'running' AND j.state IN ('failed', 'cancelled') AND EXISTS (
           SELECT FROM pgbeat.executions n
            WHERE n.job_id = r.job_id AND n.worker_id = r.worker_id AND n.pid IS NULL))
    ON CONFLICT (id) DO NOTHING)
SELECT * FROM began
 WHERE state <> 'running' AND (lane IS NOT NULL OR group_id IS NOT NULL
       OR retried_by IS NOT NULL OR state = 'cancelled')
