-- Records how executions really ended that were given up as lost. One that completed completes its
-- job, if that has not ended: what runs it again may hold a message that is no more. One that failed
-- fails its job if nothing runs it again: its own worker was the last to accept a message of it, and
-- there is no other one. One that another task replaces ends no job. Returns these jobs.
CREATE OR REPLACE FUNCTION pgbeat.late_ends(records json)
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
        ELSIF r.job_state <> 'completed' THEN
            CONTINUE;
        END IF;
        DELETE FROM pgbeat.unfinished_jobs j WHERE j.id = r.job_id AND j.state <> 'paused'
        RETURNING j.* INTO job;
        CONTINUE WHEN NOT FOUND;
        job.retried_by := pgbeat.retry_id(job.id, job.keeps_id, job.args, job.attempt,
            job.max_attempts, job.cancel_requested_at, r.job_state);
        job.state := pgbeat.next_state(job.cancel_requested_at, r.job_state);
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
