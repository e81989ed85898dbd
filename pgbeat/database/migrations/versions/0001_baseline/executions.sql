-- What the statements that record executions (`pgbeat/jobs/running/executions_*.sql`) ask and do in
-- rare cases. They are functions so that the statements themselves plan and open no partition of
-- history.

-- Whether a job has no execution that began after this one, except lost ones, and this one has not
-- ended. Only the newest are looked at, since a job that snoozes may have had very many, each begun
-- after the last.
CREATE FUNCTION pgbeat.is_last_execution(job uuid, execution uuid, began timestamptz)
RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN NOT EXISTS (
        SELECT FROM (
            SELECT e.id, e.state, e.lost, e.started_at FROM pgbeat.executions e
             WHERE e.job_id = job ORDER BY e.number DESC LIMIT 20) AS n
         WHERE CASE WHEN n.id = execution THEN n.state <> 'running'
                    ELSE n.started_at > began AND NOT n.lost END);
END
$$;

CREATE FUNCTION pgbeat.has_ended(job uuid) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN EXISTS (SELECT FROM pgbeat.ended_jobs j WHERE j.id = job);
END
$$;

-- The error of a cancelled execution.
CREATE FUNCTION pgbeat.cancelled_error(job uuid, error text) RETURNS text
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN pgbeat.end_error('cancelled',
        (SELECT j.cancel_reason FROM pgbeat.jobs j WHERE j.id = job), error);
END
$$;

-- Records executions that don't decide about their job: it has ended or is paused, or an execution
-- that began later has been recorded. Returns how many. The lock keeps a worker's processes, of
-- which one records what another was recording when it died, from writing an execution twice.
CREATE FUNCTION pgbeat.late_executions(records json) RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE
    r      record;
    j      record;
    number integer;
    count  integer := 0;
BEGIN
    PERFORM pg_advisory_xact_lock(1885823611, w.id)
       FROM (SELECT DISTINCT coalesce(worker_id, 0) AS id
               FROM json_to_recordset(records) AS d (worker_id integer) ORDER BY 1) AS w;
    FOR r IN SELECT * FROM json_to_recordset(records) AS d (
            id uuid, job_id uuid, state text, worker text, worker_id integer, pid integer,
            acks_late boolean, retry_attempt integer, began_at timestamptz, ended_at timestamptz,
            lost boolean, duration_ms float8, cpu_time_ms float8, memory_peak_mb float8,
            progress_done float8, progress_total float8, progress_message text, result text,
            error text, traceback text, metadata jsonb, log json) ORDER BY job_id LOOP
        SELECT o.schedule_id, o.state, o.cancel_reason INTO j FROM pgbeat.jobs o
         WHERE o.id = r.job_id;
        CONTINUE WHEN NOT FOUND
            OR EXISTS (SELECT FROM pgbeat.executions n WHERE n.job_id = r.job_id AND n.id = r.id)
            OR r.state = 'running' AND j.state IN ('failed', 'cancelled') AND EXISTS (
                SELECT FROM pgbeat.executions n
                 WHERE n.job_id = r.job_id AND n.worker_id = r.worker_id AND n.pid IS NULL);
        SELECT 1 + coalesce(max(n.number), 0) INTO number FROM pgbeat.executions n
         WHERE n.job_id = r.job_id;
        UPDATE pgbeat.unfinished_jobs o SET executions = greatest(executions, number)
         WHERE o.id = r.job_id;
        INSERT INTO pgbeat.executions
               (id, job_id, schedule_id, number, state, lost, retry_attempt, worker, worker_id, pid,
                acks_late, started_at, finished_at, recorded_at, duration_ms, cpu_time_ms,
                memory_peak_mb, progress_done, progress_total, progress_message, result, error,
                traceback, metadata, log)
        VALUES (r.id, r.job_id, j.schedule_id, number, r.state, coalesce(r.lost, false),
                coalesce(r.retry_attempt, 0), coalesce(r.worker, ''), r.worker_id, r.pid,
                coalesce(r.acks_late, false), r.began_at, r.ended_at,
                CASE WHEN r.state <> 'running' THEN clock_timestamp() END, r.duration_ms,
                r.cpu_time_ms, r.memory_peak_mb, r.progress_done, r.progress_total,
                r.progress_message, r.result, pgbeat.end_error(r.state, j.cancel_reason, r.error),
                r.traceback, coalesce(r.metadata, '{}'), r.log);
        count := count + 1;
    END LOOP;
    RETURN count;
END
$$;

-- Records how executions really ended that were given up as lost. One that completed completes its
-- job, if that has not ended: what runs it again may hold a message that is no more. One that failed
-- fails its job if nothing runs it again: its own worker was the last to accept a message of it, and
-- there is no other one. Returns these jobs.
CREATE FUNCTION pgbeat.late_ends(records json)
RETURNS TABLE (id uuid, namespace text, state text, lane text, group_id uuid, retried_by uuid,
               is_dispatched boolean)
LANGUAGE plpgsql ROWS 1 AS $$
#variable_conflict use_column
DECLARE
    r      record;
    worker integer;
    job    pgbeat.unfinished_jobs;
BEGIN
    FOR r IN SELECT * FROM json_to_recordset(records) AS d (
            id uuid, job_id uuid, state text, job_state text, ended_at timestamptz, lost boolean, checkpoint jsonb,
            duration_ms float8, cpu_time_ms float8, memory_peak_mb float8, progress_done float8,
            progress_total float8, progress_message text, result text, error text, traceback text,
            metadata jsonb, log json) ORDER BY job_id LOOP
        UPDATE pgbeat.ended_executions e
           SET state = r.state, lost = coalesce(r.lost, false) AND r.state IN ('failed', 'cancelled'),
               finished_at = coalesce(
                   e.started_at + r.duration_ms * interval '1 millisecond', r.ended_at),
               duration_ms = r.duration_ms, cpu_time_ms = r.cpu_time_ms,
               memory_peak_mb = r.memory_peak_mb,
               progress_done = coalesce(r.progress_done, e.progress_done),
               progress_total = coalesce(r.progress_total, e.progress_total),
               progress_message = coalesce(r.progress_message, e.progress_message),
               result = r.result, traceback = r.traceback,
               error = CASE WHEN r.state = 'cancelled'
                            THEN pgbeat.cancelled_error(r.job_id, r.error)
                            ELSE r.error END,
               metadata = e.metadata || coalesce(r.metadata, '{}'), log = coalesce(r.log, e.log)
         WHERE e.job_id = r.job_id AND e.id = r.id AND e.lost
        RETURNING e.worker_id INTO worker;
        IF r.job_state = 'failed' THEN
            CONTINUE WHEN worker IS DISTINCT FROM (
                SELECT n.worker_id FROM pgbeat.message_ends n
                 WHERE n.job_id = r.job_id ORDER BY n.id DESC LIMIT 1);
            CONTINUE WHEN worker IS NULL
                OR EXISTS (SELECT FROM kombu_message m WHERE m.job_id = r.job_id)
                OR EXISTS (SELECT FROM pgbeat.running_executions n WHERE n.job_id = r.job_id);
        ELSIF r.state <> 'completed' THEN
            CONTINUE;
        END IF;
        DELETE FROM pgbeat.unfinished_jobs j WHERE j.id = r.job_id AND j.state <> 'paused'
        RETURNING j.* INTO job;
        CONTINUE WHEN NOT FOUND;
        job.retried_by := pgbeat.retry_id(job.id, job.keeps_id, job.args, job.attempt,
            job.max_attempts, job.cancel_requested_at, r.job_state);
        job.state := CASE r.state WHEN 'completed' THEN r.state
                     ELSE pgbeat.next_state(job.cancel_requested_at, r.job_state) END;
        job.finished_at := greatest(r.ended_at, job.created_at);
        job.checkpoint := coalesce(r.checkpoint, job.checkpoint);
        job.error := pgbeat.end_error(job.state, job.cancel_reason, r.error);
        job.run_at := NULL;
        job.message := NULL;
        INSERT INTO pgbeat.ended_jobs SELECT job.*;
        RETURN QUERY SELECT job.id, job.namespace, job.state, job.lane, job.group_id,
                            job.retried_by, job.dispatched_at IS NOT NULL;
    END LOOP;
END
$$;
