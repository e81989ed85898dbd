-- The time by which check-ins tell the run of a job from others: its tick's. In a decision made again,
-- a job has the due time that failed, and the tick another.
CREATE FUNCTION pgbeat.run_due_at(job pgbeat.jobs) RETURNS timestamptz
LANGUAGE sql STABLE AS $$
    SELECT coalesce((
        SELECT t.due_at FROM pgbeat.ticks t
         WHERE job.trigger = 'retry' AND t.schedule_id = job.schedule_id AND t.due_at >= job.due_at
           AND t.trigger = 'retry' AND t.outcome = 'launched'
           AND (t.more_job_ids || t.job_id) && ARRAY(SELECT pgbeat.retry_chain(job.id))
         ORDER BY t.due_at LIMIT 1), job.due_at)
$$;

-- Wakes the schedule that waits for the job, and ends its staleness. Those that come `after` its
-- schedule are due once for all jobs of a tick, when the last has ended, and so is its check-in. The
-- updates are guarded: a statement that finds no row would be announced all the same.
--
-- The end of its own job wakes a schedule, but is none of those that it comes `after`. `due_at`, which
-- such a schedule doesn't need, tells that nobody else has set its `next_run`.
CREATE OR REPLACE FUNCTION pgbeat.job_ended() RETURNS trigger
LANGUAGE plpgsql AS $$
DECLARE
    outcome       text := NEW.state;
    waits         boolean;
    is_stale      boolean;
    followers     CONSTANT bigint[] := ARRAY(
        SELECT f.id FROM pgbeat.followers(NEW.schedule_id) AS f (id));
    has_check_ins CONSTANT boolean := EXISTS (
        SELECT FROM pgbeat.webhooks WHERE schedule_id = NEW.schedule_id);
BEGIN
    SELECT waiting_for IS NOT NULL, stale_since IS NOT NULL INTO waits, is_stale
      FROM pgbeat.schedules WHERE id = NEW.schedule_id;
    IF is_stale AND NEW.state = 'completed' THEN
        UPDATE pgbeat.schedules
           SET stale_since = NULL,
               stale_at = CASE WHEN stale_at IS NOT NULL THEN clock_timestamp() + fresh_within END
         WHERE id = NEW.schedule_id AND stale_since IS NOT NULL;
    END IF;
    IF waits THEN
        UPDATE pgbeat.schedules
           SET upstream_ended = upstream_ended + (after IS NULL)::integer,
               due_at = CASE WHEN after IS NULL THEN due_at ELSE clock_timestamp() END,
               next_run = clock_timestamp()
         WHERE id = NEW.schedule_id AND waiting_for IS NOT NULL;
    END IF;
    IF NEW.run_key IS NOT NULL AND (followers <> '{}' OR has_check_ins) THEN
        outcome := pgbeat.joint_outcome(NEW);
        IF outcome IS NULL THEN
            RETURN NULL;
        END IF;
    END IF;
    IF has_check_ins THEN
        PERFORM pgbeat.check_in(NEW.schedule_id, NEW.trigger, pgbeat.run_due_at(NEW),
            CASE WHEN outcome IN ('completed', 'skipped') THEN 'ok' ELSE 'fail' END);
    END IF;
    IF followers <> '{}' THEN
        -- In the order of ids, as other writers of many rows lock them.
        PERFORM FROM pgbeat.schedules WHERE id = ANY (followers) ORDER BY id FOR NO KEY UPDATE;
        UPDATE pgbeat.schedules d
           SET after_done = array_remove(d.after_done, s.name) || s.name,
               upstream_ended = d.upstream_ended + pgbeat.is_due_after(d, s.name)::integer,
               next_run = CASE WHEN pgbeat.is_due_after(d, s.name)
                               THEN coalesce(d.next_run, clock_timestamp()) ELSE d.next_run END
          FROM pgbeat.schedules s
         WHERE s.id = NEW.schedule_id AND d.id = ANY (followers)
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
          FROM pgbeat.schedules s JOIN pgbeat.schedules d ON d.id = ANY (followers)
         WHERE s.id = NEW.schedule_id AND d.enabled AND d.paused_at IS NULL
           AND outcome <> d.after_outcome
           AND NOT (d.after_outcome = 'finished' AND outcome IN ('completed', 'failed'));
    END IF;
    RETURN NULL;
END
$$;
