-- Deadlines of jobs. The leading beat marks unfinished jobs that missed one; a job that ends is
-- marked as it ends, since it may have started or ended late after the beat's last look. Marking
-- moves `next_deadline` on in the same write, so each deadline is missed once at most.

-- The deadlines that had passed at a moment, unmet.
CREATE FUNCTION pgbeat.passed_deadlines(
    must_start_by timestamptz, must_end_by timestamptz, started_at timestamptz,
    finished_at timestamptz, at timestamptz) RETURNS text[]
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN must_start_by <= at AND coalesce(started_at, 'infinity') > must_start_by
                THEN ARRAY['start'] ELSE '{}' END
        || CASE WHEN must_end_by <= at AND coalesce(finished_at, 'infinity') > must_end_by
                THEN ARRAY['end'] ELSE '{}' END
$$;

-- Appends those that are not known yet.
CREATE FUNCTION pgbeat.add_missed(known text[], passed text[]) RETURNS text[]
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT known || ARRAY(SELECT p FROM unnest(passed) AS p WHERE p <> ALL (known))
$$;

CREATE FUNCTION pgbeat.record_late_event(j pgbeat.jobs, known text[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    deadline text;
BEGIN
    FOREACH deadline IN ARRAY j.missed_deadlines LOOP
        IF deadline <> ALL (known) THEN
            PERFORM pgbeat.record_event(j.namespace, 'job.late',
                pgbeat.job_facts(j) || jsonb_build_object(
                    'deadline', deadline, 'must_start_by', j.must_start_by,
                    'must_end_by', j.must_end_by, 'state', j.state, 'started_at', j.started_at,
                    'finished_at', j.finished_at, 'worker', j.worker));
        END IF;
    END LOOP;
END
$$;

CREATE FUNCTION pgbeat.job_became_late() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgbeat.record_late_event(NEW, OLD.missed_deadlines);
    RETURN NULL;
END
$$;

CREATE TRIGGER job_became_late AFTER UPDATE OF missed_deadlines ON pgbeat.unfinished_jobs
    FOR EACH ROW WHEN (OLD.missed_deadlines <> NEW.missed_deadlines)
    EXECUTE FUNCTION pgbeat.job_became_late();

CREATE FUNCTION pgbeat.job_ended_late() RETURNS trigger
LANGUAGE plpgsql AS $$
DECLARE
    known  CONSTANT text[] := NEW.missed_deadlines;
    passed CONSTANT text[] := pgbeat.passed_deadlines(
        NEW.must_start_by, NEW.must_end_by, NEW.started_at, NEW.finished_at, NEW.finished_at);
BEGIN
    NEW.next_deadline := NULL;
    NEW.missed_deadlines := pgbeat.add_missed(known, passed);
    IF NEW.missed_deadlines <> known THEN
        NEW.late_at := coalesce(NEW.late_at, clock_timestamp());
        PERFORM pgbeat.record_late_event(NEW, known);
    END IF;
    RETURN NEW;
END
$$;

CREATE TRIGGER job_ended_late BEFORE INSERT ON pgbeat.ended_jobs FOR EACH ROW
    WHEN (NEW.next_deadline IS NOT NULL) EXECUTE FUNCTION pgbeat.job_ended_late();
