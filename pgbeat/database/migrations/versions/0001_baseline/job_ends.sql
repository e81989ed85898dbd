-- What follows the end of a schedule's job, in the transaction that ends it. A retry goes on where
-- the job ended: only the last attempt counts.

-- How the jobs of a tick came out together, once the last has ended; NULL before, and for those
-- that ended with the last. A job that is tried again has not ended. Two that end at the same time
-- come one after the other, so that the second sees the first; of those that one statement ended,
-- the one with the highest id counts.
CREATE FUNCTION pgbeat.joint_outcome(job pgbeat.jobs) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    outcome text;
BEGIN
    PERFORM FROM pgbeat.schedules WHERE id = job.schedule_id FOR NO KEY UPDATE;
    IF EXISTS (SELECT FROM pgbeat.jobs j JOIN pgbeat.jobs own ON own.id = job.id
                WHERE j.schedule_id = job.schedule_id AND j.due_at = job.due_at
                  AND j.trigger = job.trigger AND j.run_key IS NOT NULL AND j.id <> job.id
                  AND (j.state NOT IN ('completed', 'failed', 'cancelled', 'skipped')
                       OR j.xmin = own.xmin AND j.cmin = own.cmin AND j.retried_by IS NULL
                          AND j.id > job.id)) THEN
        RETURN NULL;
    END IF;
    SELECT CASE WHEN bool_or(j.state = 'failed') THEN 'failed'
                WHEN bool_or(j.state = 'cancelled') THEN 'cancelled'
                WHEN bool_or(j.state = 'completed') THEN 'completed' ELSE 'skipped' END
      INTO outcome
      FROM pgbeat.jobs j
     WHERE j.schedule_id = job.schedule_id AND j.due_at = job.due_at AND j.trigger = job.trigger
       AND j.run_key IS NOT NULL AND j.retried_by IS NULL;
    RETURN outcome;
END
$$;

-- Wakes the schedule that waits for the job. Those that come `after` its schedule are due once for
-- all jobs of a tick, when the last has ended, and so is its check-in. The updates are guarded: a
-- statement that finds no row would be announced all the same.
CREATE FUNCTION pgbeat.job_ended() RETURNS trigger
LANGUAGE plpgsql AS $$
DECLARE
    outcome       text := NEW.state;
    is_upstream   CONSTANT boolean := EXISTS (
        SELECT FROM pgbeat.schedules d JOIN pgbeat.schedules s
            ON d.namespace = s.namespace AND d.after = s.name
         WHERE s.id = NEW.schedule_id);
    has_check_ins CONSTANT boolean := EXISTS (
        SELECT FROM pgbeat.webhooks WHERE schedule_id = NEW.schedule_id);
BEGIN
    IF EXISTS (SELECT FROM pgbeat.schedules
                WHERE id = NEW.schedule_id AND waiting_for IS NOT NULL) THEN
        UPDATE pgbeat.schedules
           SET upstream_ended = upstream_ended + 1, next_run = clock_timestamp()
         WHERE id = NEW.schedule_id AND waiting_for IS NOT NULL;
    END IF;
    IF NEW.run_key IS NOT NULL AND (is_upstream OR has_check_ins) THEN
        outcome := pgbeat.joint_outcome(NEW);
        IF outcome IS NULL THEN
            RETURN NULL;
        END IF;
    END IF;
    IF has_check_ins THEN
        PERFORM pgbeat.check_in(NEW.schedule_id, NEW.trigger, NEW.due_at,
            CASE WHEN outcome IN ('completed', 'skipped') THEN 'ok' ELSE 'fail' END);
    END IF;
    IF is_upstream THEN
        UPDATE pgbeat.schedules d
           SET upstream_ended = d.upstream_ended + 1,
               next_run = coalesce(d.next_run, clock_timestamp())
          FROM pgbeat.schedules s
         WHERE s.id = NEW.schedule_id AND d.namespace = s.namespace AND d.after = s.name
           AND d.enabled AND d.paused_at IS NULL
           AND (outcome = d.after_outcome
                OR d.after_outcome = 'finished' AND outcome IN ('completed', 'failed'));
        INSERT INTO pgbeat.ticks (schedule_id, schedule, trigger, due_at, outcome, reason)
        SELECT d.id, d.name, 'after', clock_timestamp(), 'skipped',
               format(CASE WHEN NEW.run_key IS NULL THEN 'after %s: its job %s %s'
                          ELSE 'after %s: its jobs, the last of which was %s, %s' END,
                   s.name, NEW.id,
                   CASE outcome WHEN 'completed' THEN 'completed' WHEN 'failed' THEN 'failed'
                   ELSE CASE WHEN NEW.run_key IS NULL THEN 'was ' ELSE 'were ' END || outcome END)
          FROM pgbeat.schedules s JOIN pgbeat.schedules d
               ON d.namespace = s.namespace AND d.after = s.name
         WHERE s.id = NEW.schedule_id AND d.enabled AND d.paused_at IS NULL
           AND outcome <> d.after_outcome
           AND NOT (d.after_outcome = 'finished' AND outcome IN ('completed', 'failed'));
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER job_ended AFTER INSERT ON pgbeat.ended_jobs FOR EACH ROW
    WHEN (NEW.schedule_id IS NOT NULL AND NEW.retried_by IS NULL)
    EXECUTE FUNCTION pgbeat.job_ended();

-- Pauses a schedule whose jobs fail, in the transaction that ends the last of them. Two jobs that
-- end at the same time come one after the other: the second sees the first. Ending the job comes
-- first: where the row can't be written, the schedule goes on.
CREATE FUNCTION pgbeat.pause_failing() RETURNS trigger
LANGUAGE plpgsql AS $$
DECLARE
    most   integer;
    since  timestamptz;
    failed integer;
BEGIN
    IF NOT EXISTS (SELECT FROM pgbeat.schedules s
                    WHERE s.id = NEW.schedule_id AND s.pause_after_failures IS NOT NULL
                      AND s.enabled AND s.paused_at IS NULL) THEN
        RETURN NULL;
    END IF;
    SELECT s.pause_after_failures, s.failures_from INTO most, since
      FROM pgbeat.schedules s
     WHERE s.id = NEW.schedule_id AND s.pause_after_failures IS NOT NULL AND s.enabled
       AND s.paused_at IS NULL
       FOR NO KEY UPDATE OF s;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    SELECT greatest(since, max(j.finished_at)) INTO since FROM pgbeat.jobs j
     WHERE j.state = 'completed' AND j.schedule_id = NEW.schedule_id AND j.retried_by IS NULL;
    SELECT count(*) INTO failed FROM (
        SELECT FROM pgbeat.jobs j
         WHERE j.state = 'failed' AND j.schedule_id = NEW.schedule_id AND j.retried_by IS NULL
           AND j.finished_at > coalesce(since, '-infinity')
         LIMIT most) AS f;
    IF failed >= most THEN
        BEGIN
            UPDATE pgbeat.schedules
               SET paused_at = now(), paused_reason = left(format('%s in a row failed; last: %s',
                       CASE failed WHEN 1 THEN '1 job' ELSE failed || ' jobs' END,
                       coalesce(NEW.error, 'no error was recorded')), 2000)
             WHERE id = NEW.schedule_id;
        EXCEPTION WHEN check_violation THEN
            RAISE WARNING 'schedule % can''t be paused: %', NEW.schedule_id, SQLERRM;
        END;
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER pause_failing AFTER INSERT ON pgbeat.ended_jobs FOR EACH ROW
    WHEN (NEW.state = 'failed' AND NEW.retried_by IS NULL AND NEW.schedule_id IS NOT NULL)
    EXECUTE FUNCTION pgbeat.pause_failing();

-- Failures count from the last time that a person resumed or enabled the schedule.
CREATE FUNCTION pgbeat.reset_failure_count() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    NEW.failures_from := clock_timestamp();
    IF NEW.paused_at IS NULL THEN
        NEW.paused_reason := NULL;
    END IF;
    RETURN NEW;
END
$$;

CREATE TRIGGER reset_failure_count BEFORE UPDATE OF paused_at, enabled ON pgbeat.schedules
    FOR EACH ROW
    WHEN (OLD.paused_at IS NOT NULL AND NEW.paused_at IS NULL OR NEW.enabled AND NOT OLD.enabled)
    EXECUTE FUNCTION pgbeat.reset_failure_count();
