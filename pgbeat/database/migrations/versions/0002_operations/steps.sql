-- Durable steps: what a job has done, how long it sleeps, which event it waits for. The rows belong to a chain
-- of retries: `root_id` is its first job, and `job_id` the one of it that ran last. There is no foreign key, as
-- jobs are in partitions; rows go when both jobs are gone.

-- What happened, once for each key. The first one stays: whoever reports it may do so twice.
CREATE TABLE pgbeat.events (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    namespace  text NOT NULL,
    key        text NOT NULL,
    value      jsonb NOT NULL,
    emitted_by text NOT NULL,
    emitted_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT events_once UNIQUE (namespace, key),
    CONSTRAINT events_key CHECK (key ~ '^[^[:cntrl:]]{1,200}$')
);

CREATE TABLE pgbeat.steps (
    id               bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,  -- in the order of records
    root_id          uuid NOT NULL,
    job_id           uuid NOT NULL,
    namespace        text NOT NULL,
    kind             text NOT NULL,
    name             text NOT NULL,              -- of a wait, the event's key
    n                integer NOT NULL,           -- among those of its name in one run
    value            bytea,                      -- by the task's serializer
    content_type     text,
    content_encoding text,
    event            jsonb,                      -- its value; NULL, of a wait that is over: it timed out
    began_at         timestamptz NOT NULL,
    until            timestamptz,                -- a sleep ends, a wait times out; NULL: never
    finished_at      timestamptz,                -- NULL: it sleeps or waits
    CONSTRAINT steps_one UNIQUE (root_id, kind, name, n),
    CONSTRAINT steps_kind CHECK (kind IN ('step', 'sleep', 'wait')),
    CONSTRAINT steps_returned CHECK (kind <> 'step' OR finished_at IS NOT NULL)
);
CREATE INDEX steps_of_job ON pgbeat.steps (job_id);
CREATE INDEX steps_waiting ON pgbeat.steps (namespace, name) WHERE kind = 'wait' AND finished_at IS NULL;

-- Takes the steps of a job's chain over for the job, which runs, and returns the chain's first job and its
-- namespace. That one may be gone: the steps know it then.
CREATE FUNCTION pgbeat.take_steps(job uuid, OUT root uuid, OUT own_namespace text)
LANGUAGE plpgsql AS $$
DECLARE
    known uuid;
    above uuid;
BEGIN
    root := job;
    SELECT j.namespace, j.retry_of INTO own_namespace, above FROM pgbeat.unfinished_jobs j WHERE j.id = job;
    IF NOT FOUND THEN  -- it was given up, but its process is alive
        SELECT j.namespace, j.retry_of INTO own_namespace, above FROM pgbeat.jobs j WHERE j.id = job LIMIT 1;
    END IF;
    FOR look IN 1..1000 LOOP
        known := (SELECT s.root_id FROM pgbeat.steps s WHERE s.job_id = root LIMIT 1);
        EXIT WHEN known IS NOT NULL OR above IS NULL;
        root := above;
        above := (SELECT j.retry_of FROM pgbeat.jobs j WHERE j.id = root LIMIT 1);
    END LOOP;
    root := coalesce(known, root);
    IF root <> job THEN
        UPDATE pgbeat.steps s SET job_id = job WHERE s.root_id = root AND s.job_id <> job;
    END IF;
END
$$;

CREATE FUNCTION pgbeat.event_lock(namespace text, key text) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
    SELECT hashtextextended('pgbeat.event ' || namespace || ' ' || key, 0)
$$;

-- Begins a sleep or a wait, or looks whether it is over. Whoever emits the event has the key's lock until
-- it commits, and whoever begins to wait shares it: one of the two sees the other's row.
CREATE FUNCTION pgbeat.suspend(
    root uuid, job uuid, own_namespace text, own_kind text, own_name text, own_n integer, seconds float8)
RETURNS TABLE (id bigint, since timestamptz, until timestamptz, is_over boolean, has_event boolean,
               value text, seconds_left float8)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    own pgbeat.steps;
    got jsonb;
BEGIN
    PERFORM set_config('lock_timeout', '2s', true);
    IF own_kind = 'wait' THEN
        PERFORM pg_advisory_xact_lock_shared(pgbeat.event_lock(own_namespace, own_name));
    END IF;
    INSERT INTO pgbeat.steps (root_id, job_id, namespace, kind, name, n, began_at, until)
    VALUES (root, job, own_namespace, own_kind, own_name, own_n, clock_timestamp(),
            clock_timestamp() + seconds * interval '1 second')
    ON CONFLICT DO NOTHING;
    SELECT s.* INTO own FROM pgbeat.steps s
     WHERE s.root_id = root AND s.kind = own_kind AND s.name = own_name AND s.n = own_n FOR UPDATE;
    IF own.finished_at IS NULL THEN
        got := (SELECT e.value FROM pgbeat.events e
                 WHERE own_kind = 'wait' AND e.namespace = own_namespace AND e.key = own_name);
        IF got IS NOT NULL OR own.until <= clock_timestamp() THEN
            UPDATE pgbeat.steps s SET event = got, finished_at = clock_timestamp()
             WHERE s.id = own.id RETURNING s.* INTO own;
        END IF;
    END IF;
    RETURN QUERY SELECT own.id, own.began_at, own.until, own.finished_at IS NOT NULL,
        own.event IS NOT NULL, own.event::text,
        extract(epoch FROM own.until - clock_timestamp())::float8;
END
$$;

-- Stores an event, and makes the jobs due that wait for it: when the caller's transaction commits. Returns
-- false if the key has an event, which stays. A role that may not write events, but make jobs, emits by
-- `emit_as_owner`.
--
-- A job whose wait is written, but not yet its snooze, is locked here, or sees when it snoozes that its
-- wait is over (`wake_if_over`).
CREATE FUNCTION pgbeat.emit(
    key text, value jsonb DEFAULT 'null', namespace text DEFAULT 'default',
    emitted_by text DEFAULT 'user:' || session_user
) RETURNS boolean
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    waits bigint[];
    woken uuid[];
BEGIN
    IF NOT has_table_privilege('pgbeat.events'::regclass, 'INSERT') THEN
        RETURN pgbeat.emit_as_owner(key, value, namespace, emitted_by);
    END IF;
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE EXCEPTION 'an event can''t be emitted in a transaction that is %: it sees no job that has '
                'begun to wait since its snapshot', current_setting('transaction_isolation')
            USING ERRCODE = 'invalid_transaction_state', SCHEMA = 'pgbeat', TABLE = 'events';
    END IF;
    PERFORM pg_advisory_xact_lock(pgbeat.event_lock(namespace, key));
    value := coalesce(value, 'null');
    INSERT INTO pgbeat.events (namespace, key, value, emitted_by)
    VALUES (namespace, key, value, emitted_by) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    WITH ended AS (
        UPDATE pgbeat.steps s SET event = value, finished_at = clock_timestamp()
         WHERE s.kind = 'wait' AND s.finished_at IS NULL AND s.namespace = emit.namespace AND s.name = key
        RETURNING s.id, s.job_id, s.root_id)
    SELECT array_agg(DISTINCT w.id), array_agg(DISTINCT coalesce(c.id, w.job_id)) INTO waits, woken
      FROM ended w LEFT JOIN LATERAL (SELECT pgbeat.retry_chain(w.root_id) AS id
                                       WHERE w.root_id <> w.job_id) AS c ON true;
    PERFORM FROM pgbeat.unfinished_jobs j WHERE j.id = ANY (woken) ORDER BY j.id FOR NO KEY UPDATE;
    UPDATE pgbeat.unfinished_jobs j SET run_at = now()
     WHERE j.id = ANY (woken) AND j.dispatched_at IS NULL
       AND CASE WHEN j.state IN ('scheduled', 'paused')
                THEN (j.message #>> '{waits_for,step}')::bigint = ANY (waits) END;
    IF FOUND THEN
        PERFORM pg_notify('pgbeat_schedules', 'jobs');
    END IF;
    RETURN true;
END
$$;

CREATE FUNCTION pgbeat.emit_as_owner(key text, value jsonb, namespace text, emitted_by text)
RETURNS boolean
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT pgbeat.emit($1, $2, $3, $4)
$$;
REVOKE EXECUTE ON FUNCTION pgbeat.emit_as_owner(text, jsonb, text, text) FROM PUBLIC;

-- A job that begins to wait is due at once if its event was emitted before this was written. Another query,
-- in a volatile function, sees what is committed by now.
CREATE FUNCTION pgbeat.wake_if_over() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM pgbeat.steps s
                WHERE s.id = (NEW.message #>> '{waits_for,step}')::bigint AND s.finished_at IS NOT NULL)
    THEN
        NEW.run_at := now();
    END IF;
    RETURN NEW;
END
$$;

CREATE TRIGGER wake_if_over BEFORE UPDATE OF state ON pgbeat.unfinished_jobs FOR EACH ROW
    WHEN (NEW.state = 'scheduled' AND NEW.dispatched_at IS NULL AND NEW.message ? 'waits_for')
    EXECUTE FUNCTION pgbeat.wake_if_over();
