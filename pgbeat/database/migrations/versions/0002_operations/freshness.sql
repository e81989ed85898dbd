-- A schedule is stale if none of its jobs has completed within `fresh_within`, until one does. Jobs
-- that complete write nothing for it: the leading beat looks for the newest at `stale_at`, and moves
-- that on. Only the first that completes while the schedule is stale writes (job_ends.sql).
ALTER TABLE pgbeat.schedules
    ADD COLUMN fresh_within interval,
    ADD COLUMN stale_at timestamptz,         -- when beat looks (again), while it is in service
    ADD COLUMN stale_since timestamptz,
    ADD CONSTRAINT schedules_fresh_within CHECK (
        fresh_within > '0' AND fresh_within <= '36500 days'),
    ADD CONSTRAINT schedules_stale CHECK (
        (stale_at IS NULL AND stale_since IS NULL OR fresh_within IS NOT NULL)
        AND stale_at BETWEEN '0001-01-02 00:00+00' AND '9999-12-30 00:00+00'
        AND stale_since BETWEEN '0001-01-02 00:00+00' AND '9999-12-30 00:00+00');

CREATE INDEX schedules_stale_at ON pgbeat.schedules (namespace, stale_at)
    WHERE stale_at IS NOT NULL;
CREATE INDEX schedules_stale ON pgbeat.schedules (namespace, stale_since)
    WHERE stale_since IS NOT NULL;

-- Beat looks at once after each of these changes; under a new limit, the schedule is judged anew.
CREATE FUNCTION pgbeat.check_fresh_within() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    IF NOT (NEW.fresh_within > '0' AND NEW.fresh_within <= '36500 days') THEN
        PERFORM pgbeat.refuse_schedule(NEW.name, 'fresh_within', 'out_of_range', format(
            'fresh_within is %s; it must be longer than nothing, and 36500 days or less',
            NEW.fresh_within));
    END IF;
    NEW.stale_at := CASE WHEN NEW.fresh_within IS NOT NULL AND NEW.enabled AND NEW.paused_at IS NULL
                         THEN clock_timestamp() END;
    IF TG_OP = 'UPDATE' AND NEW.fresh_within IS DISTINCT FROM OLD.fresh_within THEN
        NEW.stale_since := NULL;
    END IF;
    RETURN NEW;
END
$$;

CREATE TRIGGER check_fresh_within
    BEFORE INSERT OR UPDATE OF fresh_within, enabled, paused_at, starts_at ON pgbeat.schedules
    FOR EACH ROW WHEN (NEW.fresh_within IS NOT NULL OR NEW.stale_at IS NOT NULL
        OR NEW.stale_since IS NOT NULL)
    EXECUTE FUNCTION pgbeat.check_fresh_within();

CREATE FUNCTION pgbeat.last_completed_at(schedule_id bigint) RETURNS timestamptz
LANGUAGE sql STABLE AS $$
    SELECT j.finished_at FROM pgbeat.ended_jobs j
     WHERE j.state = 'completed' AND j.schedule_id = last_completed_at.schedule_id
       AND j.retried_by IS NULL
     ORDER BY j.finished_at DESC LIMIT 1
$$;

-- That it is no longer stale is told as the end of an incident (incidents.sql).
CREATE FUNCTION pgbeat.record_stale_event() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgbeat.record_event(NEW.namespace, 'schedule.stale', jsonb_build_object(
        'id', NEW.id, 'name', NEW.name, 'task', NEW.task, 'owner', NEW.owner, 'labels', NEW.labels,
        'fresh_within', extract(epoch FROM NEW.fresh_within)::float8,
        'stale_since', NEW.stale_since,
        'last_completed_at', pgbeat.last_completed_at(NEW.id)));
    RETURN NULL;
END
$$;

CREATE TRIGGER record_stale_event AFTER UPDATE OF stale_since
    ON pgbeat.schedules FOR EACH ROW
    WHEN (OLD.stale_since IS NULL AND NEW.stale_since IS NOT NULL)
    EXECUTE FUNCTION pgbeat.record_stale_event();

ALTER TABLE pgbeat.webhooks
    DROP CONSTRAINT webhooks_events,
    ADD CONSTRAINT webhooks_events CHECK (events <@ ARRAY[
        'job.run.completed', 'job.run.failed', 'job.run.skipped', 'job.failed', 'job.late',
        'job.recovered', 'group.ended', 'schedule.disabled', 'schedule.paused', 'schedule.stale',
        'schedule.recovered', 'tick.failed', 'tick.skipped']);
