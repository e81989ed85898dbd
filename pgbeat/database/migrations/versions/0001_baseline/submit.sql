-- Submitting jobs: by programs in one round trip, and in plain SQL, by triggers and other languages.

-- Locks a unique key of a task until the transaction ends. If another transaction has it, waits five seconds at
-- most, or the session's lock_timeout: that one may be the caller's own, open in the same thread, which
-- would wait for itself for ever.
CREATE FUNCTION pgbeat.lock_key(namespace text, task text, key text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    number CONSTANT bigint := hashtextextended(
        lock_key.namespace || '/' || lock_key.task || '/' || lock_key.key, 1050);
    waits  CONSTANT text := current_setting('lock_timeout');
BEGIN
    IF pg_try_advisory_xact_lock(number) THEN
        RETURN;
    END IF;
    BEGIN
        IF waits = '0' THEN
            SET LOCAL lock_timeout = '5s';
        END IF;
        PERFORM pg_advisory_xact_lock(number);
        PERFORM set_config('lock_timeout', waits, true);
    EXCEPTION WHEN lock_not_available THEN
        RAISE EXCEPTION 'job: a transaction that is still open makes one with the unique key %',
                lock_key.key
            USING ERRCODE = 'unique_violation', SCHEMA = 'pgbeat', TABLE = 'jobs',
                COLUMN = 'unique_key';
    END;
END
$$;

-- Locks a unique key as `lock_key` does, and returns the job that has it: an unfinished one
-- or, with a length of time, one that was created within it. The query's snapshot is newer than the
-- lock: that is why these are two statements. (`pgbeat.jobs.rows.unique_keys` does the same for
-- many.)
CREATE FUNCTION pgbeat.take_key(
    namespace text, task text, key text, taken_for interval DEFAULT NULL
) RETURNS uuid
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgbeat.lock_key(take_key.namespace, take_key.task, take_key.key);
    -- The task is an expression, so that a job is found by its key, which few have, and not by its
    -- task, which many have.
    RETURN (
        SELECT j.id FROM (
            SELECT u.id, u.created_at FROM pgbeat.unfinished_jobs u
             WHERE u.namespace = take_key.namespace AND u.unique_key = take_key.key
               AND u.task || '' = take_key.task
            UNION ALL (
            SELECT e.id, e.created_at FROM pgbeat.ended_jobs e
             WHERE take_key.taken_for > interval '0'
               AND e.namespace = take_key.namespace AND e.unique_key = take_key.key
               AND e.task || '' = take_key.task
               AND e.created_at > now() - take_key.taken_for
               AND e.finished_at > now() - take_key.taken_for
             ORDER BY e.created_at DESC LIMIT 1)) AS j
         ORDER BY j.created_at DESC LIMIT 1);
END
$$;

-- Returns a job with nothing but the defaults of its columns, to be filled in.
CREATE FUNCTION pgbeat.new_job() RETURNS pgbeat.unfinished_jobs
LANGUAGE plpgsql STABLE AS $$
DECLARE
    job pgbeat.unfinished_jobs;
BEGIN
    job.namespace := 'default';
    job.labels := '{}';
    job.metadata := '{}';
    job.options := '{}';
    job.priority := 0;
    job.fair_key := '';
    job.tags := '{}';
    job.resources := '{}';
    job.is_blocked := false;
    job.unfinished_parents := 0;
    job.attempt := 1;
    job.max_attempts := 1;
    job.retry_base := '1 minute';
    job.retry_cap := '1 hour';
    job.keeps_id := false;
    job.requires_approval := false;
    job.awaits_approval := false;
    job.is_system_job := false;
    job.state := 'pending';
    job.created_at := now();
    job.missed_deadlines := '{}';
    job.executions := 0;
    RETURN job;
END
$$;

-- Writes a job and, if it has a `payload`, its message, which goes to `message_queue`. `fields` are the
-- columns that have other values than `new_job()`; `now` is the time of the transaction. If no message
-- is on its way (`dispatched_at`) to a job that waits for its time, beat is notified.
--
-- Returns `id`, or that of the job that has its unique key: then `made_at` is NULL. `id` is NULL, and
-- nothing was written, if there is no such lane or queue, or if the key was taken at this moment.
-- Nothing is written either if there is a job with its id, which is returned like one with its key. An
-- ended one is looked for only if the job `may_exist`, such as one that is written again since the
-- answer was lost, or `is_awaited`: then others know its id, and it is made without a key that is taken.
CREATE FUNCTION pgbeat.write_job(
    fields json, taken_for interval DEFAULT NULL, payload text DEFAULT NULL,
    message_queue text DEFAULT NULL, message_priority smallint DEFAULT NULL,
    is_awaited boolean DEFAULT false, may_exist boolean DEFAULT false,
    OUT id uuid, OUT made_at timestamptz, OUT place numeric
)
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    job    pgbeat.unfinished_jobs := json_populate_record(pgbeat.new_job(), fields);
    target record;
BEGIN
    IF is_awaited OR may_exist THEN
        IF EXISTS (SELECT FROM pgbeat.jobs j WHERE j.id = job.id) THEN
            id := job.id;
            RETURN;
        END IF;
    END IF;
    IF job.lane IS NOT NULL THEN  -- by itself: others need no rights on lanes
        IF NOT EXISTS (SELECT FROM pgbeat.lanes l
                        WHERE l.namespace = job.namespace AND l.name = job.lane)
        THEN
            RETURN;
        END IF;
    END IF;
    IF payload IS NOT NULL THEN
        SELECT q.id, q.max_priority, q.message_ttl INTO target
          FROM kombu_queue q WHERE q.name = message_queue;
        IF NOT FOUND THEN
            RETURN;
        END IF;
    END IF;
    IF job.unique_key IS NOT NULL THEN
        id := pgbeat.take_key(job.namespace, job.task, job.unique_key, taken_for);
        IF id IS NOT NULL AND is_awaited THEN
            job.unique_key := NULL;
        ELSIF id IS NOT NULL THEN
            RETURN;
        END IF;
    END IF;
    INSERT INTO pgbeat.unfinished_jobs AS j VALUES (job.*) ON CONFLICT DO NOTHING
    RETURNING j.id, j.created_at, j.position INTO id, made_at, place;
    IF NOT FOUND THEN
        id := (SELECT j.id FROM pgbeat.jobs j WHERE j.id = job.id);
        RETURN;
    ELSIF payload IS NOT NULL THEN
        INSERT INTO kombu_message (payload, priority, expires_at, queue_id, job_id)
        VALUES (payload, least(message_priority, coalesce(target.max_priority, 9)),
                now() + target.message_ttl * interval '1 ms', target.id, job.id);
    ELSIF job.state = 'scheduled' AND job.dispatched_at IS NULL THEN
        PERFORM pg_notify('pgbeat_schedules', 'jobs');
    END IF;
END
$$;

-- Writes jobs, a JSON array of objects as of `write_job`, and returns those that are new. Leaves out a job whose
-- id or unique key an unfinished one has. They may have ended already.
CREATE FUNCTION pgbeat.write_jobs(batch json) RETURNS SETOF pgbeat.jobs
LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY
        INSERT INTO pgbeat.jobs AS j
        SELECT d.* FROM json_populate_recordset(pgbeat.new_job(), batch) AS d
        ON CONFLICT DO NOTHING
        RETURNING j.*;
END
$$;

-- Says what is wrong with what was submitted; programs read the fields as of `refuse_schedule`.
CREATE FUNCTION pgbeat.refuse_job(field text, code text, problem text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'job: %', problem
        USING ERRCODE = 'check_violation', SCHEMA = 'pgbeat', TABLE = 'jobs', COLUMN = field,
            CONSTRAINT = code;
END
$$;

-- Submits a job of a task, and returns its id, or that of the job that has its unique key. The
-- leading beat makes its message after the commit: only the app knows the task's routes. It looks
-- at 1,000 dependencies every two seconds: until then, it may not know that the jobs on which one depends
-- had ended before.
CREATE FUNCTION pgbeat.submit(
    task text, args jsonb DEFAULT '[]', kwargs jsonb DEFAULT '{}', namespace text DEFAULT 'default',
    queue text DEFAULT NULL, options jsonb DEFAULT '{}', run_at timestamptz DEFAULT NULL,
    lane text DEFAULT NULL, priority integer DEFAULT 0, tags text[] DEFAULT '{}',
    resources jsonb DEFAULT '{}', max_attempts integer DEFAULT 1,
    retry_base interval DEFAULT '1 minute', retry_cap interval DEFAULT '1 hour',
    unique_key text DEFAULT NULL, unique_for interval DEFAULT NULL,
    requires_approval boolean DEFAULT false, description text DEFAULT NULL,
    labels jsonb DEFAULT '{}', metadata jsonb DEFAULT '{}',
    created_by text DEFAULT 'user:' || session_user, depends_on uuid[] DEFAULT '{}',
    depends_on_outcome text DEFAULT 'completed'
) RETURNS uuid
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    made    record;
    waits   CONSTANT boolean := coalesce(run_at > now(), false);
    -- What waits for nothing is due now.
    state   CONSTANT text := CASE WHEN requires_approval THEN 'paused'
                                  WHEN waits OR lane IS NULL THEN 'scheduled' ELSE 'pending' END;
BEGIN
    PERFORM pgbeat.refuse_job(p.field, p.code, p.problem) FROM (VALUES
        ('task', 'malformed', 'task must be the name of one',
            task IS NULL OR task !~ '^[^[:cntrl:]]{1,255}$' OR btrim(task) <> task),
        ('args', 'malformed', 'args must be a JSON array',
            jsonb_typeof(args) IS DISTINCT FROM 'array'),
        ('kwargs', 'malformed', 'kwargs must be a JSON object',
            jsonb_typeof(kwargs) IS DISTINCT FROM 'object'),
        ('options', 'malformed', 'options must be a JSON object',
            jsonb_typeof(options) IS DISTINCT FROM 'object'),
        ('namespace', 'malformed', 'namespace has characters that no namespace has',
            namespace IS NULL OR namespace !~ '^[A-Za-z0-9_.-]{1,63}$'),
        ('priority', 'out_of_range', 'priority must be 0 to 255',
            priority IS NULL OR priority NOT BETWEEN 0 AND 255),
        ('max_attempts', 'out_of_range', 'max_attempts must be 1 to 1000',
            max_attempts IS NULL OR max_attempts NOT BETWEEN 1 AND 1000),
        ('unique_key', 'malformed', 'unique_key must have 1 to 200 characters',
            btrim(unique_key) = '' OR length(unique_key) > 200),
        ('unique_key', 'reserved', 'unique_key must not begin with content:',
            starts_with(unique_key, 'content:')),
        ('unique_key', 'required', 'unique_for needs a unique_key',
            unique_for IS NOT NULL AND unique_key IS NULL),
        ('depends_on_outcome', 'unknown', 'depends_on_outcome must be completed or finished',
            depends_on_outcome IS NULL OR depends_on_outcome NOT IN ('completed', 'finished'))
        ) AS p (field, code, problem, applies) WHERE p.applies;
    IF lane IS NOT NULL THEN
        IF NOT EXISTS (SELECT FROM pgbeat.lanes l WHERE l.namespace = namespace AND l.name = lane)
        THEN
            PERFORM pgbeat.refuse_job('lane', 'unknown',
                format('there is no lane %L; `pgbeat lanes list` shows all lanes', lane));
        END IF;
    END IF;
    IF cardinality(depends_on) > 0 THEN
        PERFORM pgbeat.refuse_job('depends_on', 'unknown', format('there is no job %s', d.id))
           FROM unnest(depends_on) AS d (id)
          WHERE NOT EXISTS (SELECT FROM pgbeat.jobs j
                             WHERE j.id = d.id AND j.namespace = submit.namespace);
    END IF;
    -- Twice at most: the job that had the key may end meanwhile.
    FOR look IN 1..2 LOOP
        SELECT w.id, w.made_at INTO made FROM pgbeat.write_job(json_build_object(
            'id', gen_random_uuid(), 'namespace', namespace, 'task', task, 'args', args,
            'kwargs', kwargs, 'options', options, 'queue', queue, 'job_source', 'user_api',
            'created_by', created_by, 'state', state,
            'run_at', CASE WHEN waits THEN run_at WHEN state = 'scheduled' THEN now() END,
            'lane', lane, 'priority', priority, 'tags', tags, 'resources', resources,
            'max_attempts', max_attempts, 'retry_base', retry_base, 'retry_cap', retry_cap,
            'unique_key', unique_key, 'requires_approval', requires_approval,
            'awaits_approval', requires_approval, 'description', description, 'labels', labels,
            'metadata', metadata), unique_for) AS w;
        EXIT WHEN made.id IS NOT NULL;
    END LOOP;
    IF made.id IS NULL THEN
        RAISE EXCEPTION 'job: another one with the same unique key was made at this moment'
            USING ERRCODE = 'unique_violation', SCHEMA = 'pgbeat', TABLE = 'jobs',
                COLUMN = 'unique_key';
    ELSIF made.made_at IS NOT NULL AND cardinality(depends_on) > 0 THEN
        PERFORM pgbeat.depend_on(made.id, depends_on, depends_on_outcome);
    ELSIF made.made_at IS NOT NULL AND state = 'pending' THEN
        PERFORM pgbeat.announce_lane(namespace, lane);
    END IF;
    RETURN made.id;
END
$$;
