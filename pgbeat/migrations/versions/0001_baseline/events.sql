-- The events that webhooks are sent. Fields have the names that the API has for the same.

-- Writes an event's deliveries. The webhook is locked: one that is deleted at this moment must not
-- fail the change.
CREATE FUNCTION pgbeat.tell(namespace text, event text, data jsonb) RETURNS void
LANGUAGE sql AS $$
    INSERT INTO pgbeat.deliveries (webhook_id, event, payload)
    SELECT w.id, tell.event, jsonb_build_object('type', tell.event, 'timestamp', to_char(
               clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
               'data', tell.data)
      FROM pgbeat.webhooks w
     WHERE w.enabled AND w.namespace = tell.namespace AND tell.event = ANY (w.events)
       FOR KEY SHARE OF w
$$;

CREATE FUNCTION pgbeat.job_facts(j pgbeat.jobs) RETURNS jsonb
LANGUAGE sql STABLE AS $$
    SELECT jsonb_build_object(
        'id', j.id, 'task', j.task, 'schedule', j.schedule, 'due_at', j.due_at,
        'run_key', j.run_key, 'template', j.template, 'queue', j.queue, 'lane', j.lane,
        'priority', j.priority, 'tags', to_jsonb(j.tags), 'group_id', j.group_id,
        'unique_key', j.unique_key, 'attempt', j.attempt, 'max_attempts', j.max_attempts,
        'retry_of', j.retry_of, 'job_source', j.job_source, 'created_by', j.created_by,
        'is_system_job', j.is_system_job, 'created_at', j.created_at, 'labels', j.labels)
$$;

CREATE FUNCTION pgbeat.tell_execution() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM pgbeat.webhooks WHERE enabled) THEN
        PERFORM pgbeat.tell(j.namespace, 'job.run.' || NEW.state, jsonb_build_object(
            'id', NEW.id, 'job_id', NEW.job_id, 'execution_number', NEW.number,
            'status', NEW.state, 'lost', NEW.lost, 'started_at', NEW.started_at,
            'completed_at', NEW.finished_at, 'duration_ms', round(NEW.duration_ms::numeric),
            'cpu_time_ms', round(NEW.cpu_time_ms::numeric), 'memory_peak_mb', NEW.memory_peak_mb,
            'retry_attempt', NEW.retry_attempt, 'worker', NEW.worker, 'result', NEW.result,
            'error_message', NEW.error, 'artifacts', coalesce(NEW.metadata -> 'artifacts', '[]'),
            'metadata', NEW.metadata - 'artifacts', 'job', pgbeat.job_facts(j)))
           FROM pgbeat.jobs j WHERE j.id = NEW.job_id AND j.task <> 'pgbeat.deliver';
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER tell_new_execution AFTER INSERT ON pgbeat.executions FOR EACH ROW
    WHEN (NEW.state IN ('completed', 'failed', 'skipped'))
    EXECUTE FUNCTION pgbeat.tell_execution();
CREATE TRIGGER tell_execution AFTER UPDATE OF state ON pgbeat.executions FOR EACH ROW
    WHEN (NEW.state IN ('completed', 'failed', 'skipped') AND OLD.state <> NEW.state)
    EXECUTE FUNCTION pgbeat.tell_execution();

-- A job that failed for good. (Not a delivery: its event would be delivered, and so on for ever.)
CREATE FUNCTION pgbeat.tell_job() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgbeat.tell(NEW.namespace, 'job.failed',
        pgbeat.job_facts(NEW) || jsonb_build_object(
            'status', NEW.state, 'started_at', NEW.started_at, 'completed_at', NEW.finished_at,
            'worker', NEW.worker, 'error', NEW.error));
    RETURN NULL;
END
$$;

CREATE TRIGGER tell_job AFTER UPDATE OF state ON pgbeat.jobs FOR EACH ROW
    WHEN (NEW.state = 'failed' AND OLD.state <> 'failed' AND NEW.retried_by IS NULL
        AND NEW.task <> 'pgbeat.deliver')
    EXECUTE FUNCTION pgbeat.tell_job();
-- A task that was published without a job may be recorded when it has failed.
CREATE TRIGGER tell_new_job AFTER INSERT ON pgbeat.jobs FOR EACH ROW
    WHEN (NEW.state = 'failed' AND NEW.task <> 'pgbeat.deliver')
    EXECUTE FUNCTION pgbeat.tell_job();

CREATE FUNCTION pgbeat.tell_schedule() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgbeat.tell(NEW.namespace, 'schedule.disabled', jsonb_build_object(
        'id', NEW.id, 'name', NEW.name, 'task', NEW.task, 'owner', NEW.owner,
        'disabled_reason', NEW.disabled_reason, 'retry_count', NEW.retry_count,
        'last_failure', NEW.last_failure, 'last_error', NEW.last_error));
    RETURN NULL;
END
$$;

CREATE TRIGGER tell_schedule AFTER UPDATE OF enabled ON pgbeat.schedules FOR EACH ROW
    WHEN (OLD.enabled AND NOT NEW.enabled
        AND NEW.completed_at IS NULL)
    EXECUTE FUNCTION pgbeat.tell_schedule();

CREATE FUNCTION pgbeat.tell_pause() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgbeat.tell(NEW.namespace, 'schedule.paused', jsonb_build_object(
        'id', NEW.id, 'name', NEW.name, 'task', NEW.task, 'owner', NEW.owner,
        'labels', NEW.labels, 'paused_at', NEW.paused_at, 'paused_reason', NEW.paused_reason,
        'pause_after_failures', NEW.pause_after_failures,
        'last_job_id', j.id, 'last_job_state', j.state, 'last_job_error', j.error))
       FROM (VALUES (1)) AS one LEFT JOIN LATERAL (
            (SELECT id, state, error, finished_at FROM pgbeat.jobs
              WHERE state = 'failed' AND schedule_id = NEW.id AND retried_by IS NULL
              ORDER BY finished_at DESC LIMIT 1)
            UNION ALL
            (SELECT id, state, error, finished_at FROM pgbeat.jobs
              WHERE state = 'completed' AND schedule_id = NEW.id AND retried_by IS NULL
              ORDER BY finished_at DESC LIMIT 1)
            ORDER BY finished_at DESC LIMIT 1) AS j ON true;
    RETURN NULL;
END
$$;

CREATE TRIGGER tell_pause AFTER UPDATE OF paused_at ON pgbeat.schedules FOR EACH ROW
    WHEN (OLD.paused_at IS NULL AND NEW.paused_at IS NOT NULL)
    EXECUTE FUNCTION pgbeat.tell_pause();

CREATE FUNCTION pgbeat.tell_tick() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgbeat.tell(s.namespace, 'tick.failed', jsonb_build_object(
        'schedule_name', NEW.schedule, 'task', s.task, 'run_time', NEW.due_at,
        'decided_at', NEW.decided_at, 'outcome', NEW.outcome, 'trigger', NEW.trigger,
        'error', NEW.error))
       FROM pgbeat.schedules s WHERE s.id = NEW.schedule_id;
    RETURN NULL;
END
$$;

CREATE TRIGGER tell_tick AFTER INSERT ON pgbeat.ticks FOR EACH ROW
    WHEN (NEW.outcome = 'failed') EXECUTE FUNCTION pgbeat.tell_tick();

-- Skips may come every few seconds: of each schedule's, one an hour is sent, with their number
-- since the one before. A transaction that finds another about to write the event leaves it to
-- that one: none waits.
CREATE TABLE pgbeat.skip_notices (
    schedule_id bigint PRIMARY KEY,
    told_at     timestamptz NOT NULL,
    untold      bigint NOT NULL DEFAULT 0             -- skips since then
);

CREATE FUNCTION pgbeat.tell_skip() RETURNS trigger
LANGUAGE plpgsql AS $$
DECLARE
    schedule record;
    before   record;
BEGIN
    SELECT s.namespace, s.task INTO schedule FROM pgbeat.schedules s
     WHERE s.id = NEW.schedule_id AND EXISTS (
           SELECT FROM pgbeat.webhooks w
            WHERE w.enabled AND w.namespace = s.namespace AND 'tick.skipped' = ANY (w.events));
    IF NOT FOUND OR NOT pg_try_advisory_xact_lock(
        hashtextextended('pgbeat.skip_notices', NEW.schedule_id))
    THEN
        RETURN NULL;
    END IF;
    SELECT n.told_at, n.untold INTO before FROM pgbeat.skip_notices n
     WHERE n.schedule_id = NEW.schedule_id;
    IF before.told_at > clock_timestamp() - interval '1 hour' THEN
        UPDATE pgbeat.skip_notices SET untold = untold + 1 WHERE schedule_id = NEW.schedule_id;
        RETURN NULL;
    END IF;
    INSERT INTO pgbeat.skip_notices (schedule_id, told_at)
    VALUES (NEW.schedule_id, clock_timestamp())
    ON CONFLICT (schedule_id) DO UPDATE SET told_at = excluded.told_at, untold = 0;
    PERFORM pgbeat.tell(schedule.namespace, 'tick.skipped', jsonb_build_object(
        'schedule_name', NEW.schedule, 'task', schedule.task, 'run_time', NEW.due_at,
        'decided_at', NEW.decided_at, 'outcome', NEW.outcome, 'trigger', NEW.trigger,
        'reason', NEW.reason,
        'skips', 1 + coalesce(before.untold, 0), 'since', before.told_at));
    RETURN NULL;
END
$$;

CREATE TRIGGER tell_skip AFTER INSERT ON pgbeat.ticks FOR EACH ROW
    WHEN (NEW.outcome = 'skipped') EXECUTE FUNCTION pgbeat.tell_skip();

CREATE FUNCTION pgbeat.forget_skips() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM pgbeat.skip_notices n USING gone WHERE n.schedule_id = gone.id;
    RETURN NULL;
END
$$;

CREATE TRIGGER forget_skips AFTER DELETE ON pgbeat.schedules
    REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION pgbeat.forget_skips();
