-- The events that webhooks are sent. Fields have the names that the API has for the same.

-- Inserts an event's deliveries. Locks the webhook, so that deleting it at this moment does not fail
-- the change.
CREATE FUNCTION pgbeat.record_event(namespace text, event text, data jsonb) RETURNS void
LANGUAGE sql AS $$
    INSERT INTO pgbeat.deliveries (webhook_id, event, payload)
    SELECT w.id, record_event.event, jsonb_build_object(
               'type', record_event.event,
               'timestamp', to_char(
                   clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
               'data', record_event.data)
      FROM pgbeat.webhooks w
     WHERE w.enabled AND w.schedule_id IS NULL AND w.namespace = record_event.namespace
       AND record_event.event = ANY (w.events)
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

CREATE FUNCTION pgbeat.record_execution_event() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM pgbeat.webhooks WHERE enabled AND schedule_id IS NULL) THEN
        PERFORM pgbeat.record_event(j.namespace, 'job.run.' || NEW.state, jsonb_build_object(
            'id', NEW.id, 'job_id', NEW.job_id, 'number', NEW.number,
            'state', NEW.state, 'lost', NEW.lost, 'started_at', NEW.started_at,
            'finished_at', NEW.finished_at, 'duration_ms', round(NEW.duration_ms::numeric),
            'cpu_time_ms', round(NEW.cpu_time_ms::numeric), 'memory_peak_mb', NEW.memory_peak_mb,
            'retry_attempt', NEW.retry_attempt, 'worker', NEW.worker, 'result', NEW.result,
            'error', NEW.error, 'artifacts', coalesce(NEW.metadata -> 'artifacts', '[]'),
            'metadata', NEW.metadata - 'artifacts', 'job', pgbeat.job_facts(j)))
           FROM pgbeat.jobs j WHERE j.id = NEW.job_id AND j.task <> 'pgbeat.deliver';
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER record_execution_event AFTER INSERT ON pgbeat.ended_executions FOR EACH ROW
    WHEN (NEW.state IN ('completed', 'failed', 'skipped'))
    EXECUTE FUNCTION pgbeat.record_execution_event();
-- One that was given up as lost, but was alive, tells how it really ended.
CREATE TRIGGER record_late_execution_event AFTER UPDATE OF state ON pgbeat.ended_executions
    FOR EACH ROW WHEN (NEW.state IN ('completed', 'failed', 'skipped') AND OLD.state <> NEW.state)
    EXECUTE FUNCTION pgbeat.record_execution_event();

-- A job that failed for good. (Not a delivery: its event would be delivered, and so on for ever.)
CREATE FUNCTION pgbeat.record_job_event() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgbeat.record_event(NEW.namespace, 'job.failed',
        pgbeat.job_facts(NEW) || jsonb_build_object(
            'state', NEW.state, 'started_at', NEW.started_at, 'finished_at', NEW.finished_at,
            'worker', NEW.worker, 'error', NEW.error));
    RETURN NULL;
END
$$;

CREATE TRIGGER record_job_event AFTER INSERT ON pgbeat.ended_jobs FOR EACH ROW
    WHEN (NEW.state = 'failed' AND NEW.retried_by IS NULL AND NEW.task <> 'pgbeat.deliver')
    EXECUTE FUNCTION pgbeat.record_job_event();

-- A group ends with its last member; a member that is tried again has not ended.
CREATE FUNCTION pgbeat.record_group_event() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM pgbeat.webhooks WHERE enabled AND schedule_id IS NULL
                AND namespace = NEW.namespace AND 'group.ended' = ANY (events)) THEN
        PERFORM pgbeat.record_event(NEW.namespace, 'group.ended', jsonb_build_object(
            'id', NEW.id, 'name', NEW.name, 'mode', NEW.mode, 'on_failure', NEW.on_failure,
            'state', NEW.state, 'created_by', NEW.created_by, 'created_at', NEW.created_at,
            'finished_at', NEW.finished_at, 'cancelled_by', NEW.cancelled_by,
            'jobs', (SELECT coalesce(jsonb_object_agg(c.state, c.number), '{}') FROM (
                         SELECT j.state, count(*) AS number FROM pgbeat.ended_jobs j
                          WHERE j.group_id = NEW.id AND j.finished_at >= NEW.created_at
                            AND j.retried_by IS NULL
                          GROUP BY j.state) AS c)));
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER record_group_event AFTER UPDATE OF state ON pgbeat.groups FOR EACH ROW
    WHEN (OLD.state = 'running' AND NEW.state <> 'running')
    EXECUTE FUNCTION pgbeat.record_group_event();

CREATE FUNCTION pgbeat.record_schedule_event() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgbeat.record_event(NEW.namespace, 'schedule.disabled', jsonb_build_object(
        'id', NEW.id, 'name', NEW.name, 'task', NEW.task, 'owner', NEW.owner,
        'disabled_reason', NEW.disabled_reason, 'retry_count', NEW.retry_count,
        'last_failure', NEW.last_failure, 'last_error', NEW.last_error));
    RETURN NULL;
END
$$;

CREATE TRIGGER record_schedule_event AFTER UPDATE OF enabled ON pgbeat.schedules FOR EACH ROW
    WHEN (OLD.enabled AND NOT NEW.enabled
        AND NEW.completed_at IS NULL)
    EXECUTE FUNCTION pgbeat.record_schedule_event();

CREATE FUNCTION pgbeat.record_pause_event() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgbeat.record_event(NEW.namespace, 'schedule.paused', jsonb_build_object(
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

CREATE TRIGGER record_pause_event AFTER UPDATE OF paused_at ON pgbeat.schedules FOR EACH ROW
    WHEN (OLD.paused_at IS NULL AND NEW.paused_at IS NOT NULL)
    EXECUTE FUNCTION pgbeat.record_pause_event();

CREATE FUNCTION pgbeat.record_tick_event() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgbeat.record_event(s.namespace, 'tick.failed', jsonb_build_object(
        'schedule', NEW.schedule, 'task', s.task, 'due_at', NEW.due_at,
        'decided_at', NEW.decided_at, 'outcome', NEW.outcome, 'trigger', NEW.trigger,
        'error', NEW.error))
       FROM pgbeat.schedules s WHERE s.id = NEW.schedule_id;
    RETURN NULL;
END
$$;

CREATE TRIGGER record_tick_event AFTER INSERT ON pgbeat.ticks FOR EACH ROW
    WHEN (NEW.outcome = 'failed') EXECUTE FUNCTION pgbeat.record_tick_event();

-- A schedule may be skipped every few seconds, so at most one event an hour is sent of its skips,
-- with their number since the event before. If another transaction is about to record the event,
-- this one leaves it to that: neither waits.
CREATE TABLE pgbeat.skip_notices (
    schedule_id bigint PRIMARY KEY,
    sent_at     timestamptz NOT NULL,
    unsent      bigint NOT NULL DEFAULT 0             -- skips since then
);

CREATE FUNCTION pgbeat.record_skip_event() RETURNS trigger
LANGUAGE plpgsql AS $$
DECLARE
    schedule record;
    before   record;
BEGIN
    SELECT s.namespace, s.task INTO schedule FROM pgbeat.schedules s
     WHERE s.id = NEW.schedule_id AND EXISTS (
           SELECT FROM pgbeat.webhooks w
            WHERE w.enabled AND w.schedule_id IS NULL AND w.namespace = s.namespace
              AND 'tick.skipped' = ANY (w.events));
    IF NOT FOUND OR NOT pg_try_advisory_xact_lock(
        hashtextextended('pgbeat.skip_notices', NEW.schedule_id))
    THEN
        RETURN NULL;
    END IF;
    SELECT n.sent_at, n.unsent INTO before FROM pgbeat.skip_notices n
     WHERE n.schedule_id = NEW.schedule_id;
    IF before.sent_at > clock_timestamp() - interval '1 hour' THEN
        UPDATE pgbeat.skip_notices SET unsent = unsent + 1 WHERE schedule_id = NEW.schedule_id;
        RETURN NULL;
    END IF;
    INSERT INTO pgbeat.skip_notices (schedule_id, sent_at)
    VALUES (NEW.schedule_id, clock_timestamp())
    ON CONFLICT (schedule_id) DO UPDATE SET sent_at = excluded.sent_at, unsent = 0;
    PERFORM pgbeat.record_event(schedule.namespace, 'tick.skipped', jsonb_build_object(
        'schedule', NEW.schedule, 'task', schedule.task, 'due_at', NEW.due_at,
        'decided_at', NEW.decided_at, 'outcome', NEW.outcome, 'trigger', NEW.trigger,
        'reason', NEW.reason,
        'skips', 1 + coalesce(before.unsent, 0), 'since', before.sent_at));
    RETURN NULL;
END
$$;

CREATE TRIGGER record_skip_event AFTER INSERT ON pgbeat.ticks FOR EACH ROW
    WHEN (NEW.outcome = 'skipped') EXECUTE FUNCTION pgbeat.record_skip_event();

CREATE FUNCTION pgbeat.forget_schedules() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM pgbeat.skip_notices n USING gone WHERE n.schedule_id = gone.id;
    DELETE FROM pgbeat.webhooks w USING gone WHERE w.schedule_id = gone.id;
    RETURN NULL;
END
$$;

CREATE TRIGGER forget_schedules AFTER DELETE ON pgbeat.schedules
    REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION pgbeat.forget_schedules();
