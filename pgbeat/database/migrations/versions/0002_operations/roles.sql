-- What roles with few rights need (`pgbeat grant`): functions that run as the schema's owner.
--
-- The functions `…_as_owner` are for roles that make jobs and have no rights on the tables. PUBLIC may
-- not call them. Each calls the function that it is named after, which finds then that it may write.
-- They see no schema but pgbeat and pg_catalog: others may be the caller's.

CREATE FUNCTION pgbeat.write_job_as_owner(
    fields json, taken_for interval, is_awaited boolean, may_exist boolean,
    OUT id uuid, OUT made_at timestamptz, OUT place numeric
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    SELECT w.id, w.made_at, w.place INTO id, made_at, place
      FROM pgbeat.write_job(fields, taken_for, is_awaited => write_job_as_owner.is_awaited,
                            may_exist => write_job_as_owner.may_exist) AS w;
END
$$;

-- Refuses jobs that have ended: they would look like the end of another one with their id.
CREATE FUNCTION pgbeat.write_jobs_as_owner(batch json) RETURNS SETOF pgbeat.jobs
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF EXISTS (SELECT FROM json_populate_recordset(pgbeat.new_job(), batch) AS d
                WHERE d.state NOT IN ('pending', 'scheduled', 'paused')) THEN
        RAISE EXCEPTION 'a new job is pending, scheduled or paused'
            USING ERRCODE = 'insufficient_privilege';
    END IF;
    RETURN QUERY SELECT w.* FROM pgbeat.write_jobs(batch) AS w;
END
$$;

CREATE FUNCTION pgbeat.submit_as_owner(
    task text, args jsonb, kwargs jsonb, namespace text, queue text, options jsonb,
    run_at timestamptz, lane text, priority integer, tags text[], resources jsonb,
    max_attempts integer, retry_base interval, retry_cap interval, unique_key text,
    unique_for interval, requires_approval boolean, description text, labels jsonb,
    metadata jsonb, created_by text, depends_on uuid[], depends_on_outcome text
) RETURNS uuid
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT pgbeat.submit(
        $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18,
        $19, $20, $21, $22, $23)
$$;

-- The jobs with these keys, as `unique_keys.sql` finds them.
CREATE FUNCTION pgbeat.find_keys_as_owner(
    own_namespace text, tasks text[], keys text[], seconds double precision[])
RETURNS TABLE (task text, key text, id uuid, state text)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT k.task, k.key, j.id, j.state
      FROM unnest(tasks, keys, seconds) AS k (task, key, seconds)
           CROSS JOIN LATERAL (
               SELECT u.id, u.state, u.created_at FROM pgbeat.unfinished_jobs u
                WHERE u.namespace = own_namespace AND u.unique_key = k.key
                  AND u.task || '' = k.task
               UNION ALL (
               SELECT e.id, e.state, e.created_at FROM pgbeat.ended_jobs e
                WHERE e.namespace = own_namespace AND e.unique_key = k.key
                  AND e.task || '' = k.task AND k.seconds > 0
                  AND e.created_at > now() - k.seconds * interval '1 second'
                  AND e.finished_at > now() - k.seconds * interval '1 second'
                ORDER BY e.created_at DESC LIMIT 1)
               ORDER BY created_at DESC LIMIT 1) AS j;
END
$$;

-- The jobs with these ids: whoever knows a job's id may read it.
CREATE FUNCTION pgbeat.find_jobs_as_owner(ids uuid[]) RETURNS SETOF pgbeat.jobs
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT j.* FROM pgbeat.jobs j WHERE j.id = ANY (ids)
$$;

-- Writes what jobs depend on that the same transaction has made. If a parent has ended, the leading
-- beat finds out.
CREATE FUNCTION pgbeat.write_dependencies_as_owner(job uuid, parents uuid[], own_needs text)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM pgbeat.unfinished_jobs j
                    WHERE j.id = job AND j.created_at = now() AND j.dispatched_at IS NULL) THEN
        RAISE EXCEPTION 'job % is not one that this transaction has made', job
            USING ERRCODE = 'insufficient_privilege';
    END IF;
    INSERT INTO pgbeat.dependencies (job_id, parent_id, needs)
    SELECT job, p.id, own_needs FROM unnest(parents) AS p (id);
END
$$;

-- Writes a group that has no jobs yet.
CREATE FUNCTION pgbeat.write_group_as_owner(fields json) RETURNS SETOF pgbeat.groups
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    INSERT INTO pgbeat.groups (id, namespace, name, mode, on_failure, job_source, created_by,
                               callback_id, callback_outcome)
    SELECT g.id, g.namespace, g.name, g.mode, g.on_failure, g.job_source, g.created_by,
           g.callback_id, g.callback_outcome
      FROM json_populate_record(NULL::pgbeat.groups, fields) AS g
    RETURNING *
$$;

DO $$
DECLARE
    function regprocedure;
BEGIN
    FOR function IN SELECT p.oid FROM pg_proc p
         WHERE p.pronamespace = 'pgbeat'::regnamespace AND p.proname LIKE '%\_as\_owner' LOOP
        EXECUTE format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', function);
    END LOOP;
END
$$;

-- Locks a unique key as `lock_key` does, but waits for nobody. Returns whether it is locked; NULL for no key.
CREATE FUNCTION pgbeat.try_lock_key(namespace text, task text, key text) RETURNS boolean
LANGUAGE sql AS $$
    SELECT pg_try_advisory_xact_lock(hashtextextended(namespace || '/' || task || '/' || key, 1050))
$$;

-- As before, and for roles without rights on the table: then the job is written by its owner, but
-- its message with the caller's own rights, since the caller's search path leads to the broker's tables.
-- Beat is notified of a batch's member, too. One that is awaited waits for no transaction that takes its
-- key: the key counts as taken.
CREATE OR REPLACE FUNCTION pgbeat.write_job(
    fields json, taken_for interval DEFAULT NULL, payload text DEFAULT NULL,
    message_queue text DEFAULT NULL, message_priority smallint DEFAULT NULL,
    is_awaited boolean DEFAULT false, may_exist boolean DEFAULT false,
    OUT id uuid, OUT made_at timestamptz, OUT place numeric
)
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    job    pgbeat.unfinished_jobs;
    target record;
BEGIN
    IF NOT has_table_privilege('pgbeat.unfinished_jobs'::regclass, 'INSERT') THEN
        IF payload IS NOT NULL THEN
            SELECT q.id, q.max_priority, q.message_ttl INTO target
              FROM kombu_queue q WHERE q.name = message_queue;
            IF NOT FOUND THEN
                RETURN;
            END IF;
        END IF;
        SELECT w.id, w.made_at, w.place INTO id, made_at, place
          FROM pgbeat.write_job_as_owner(fields, taken_for, is_awaited, may_exist) AS w;
        IF made_at IS NOT NULL AND payload IS NOT NULL THEN
            INSERT INTO kombu_message (payload, priority, expires_at, queue_id, job_id)
            VALUES (payload, least(message_priority, coalesce(target.max_priority, 9)),
                    now() + target.message_ttl * interval '1 ms', target.id, id);
        END IF;
        RETURN;
    END IF;
    job := json_populate_record(pgbeat.new_job(), fields);
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
    IF is_awaited AND NOT pgbeat.try_lock_key(job.namespace, job.task, job.unique_key) THEN
        job.unique_key := NULL;  -- another transaction is taking it
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
    ELSIF job.dispatched_at IS NULL AND (job.state = 'scheduled' OR job.message ? 'batch') THEN
        PERFORM pg_notify('pgbeat_schedules', 'jobs');
    END IF;
END
$$;

CREATE OR REPLACE FUNCTION pgbeat.write_jobs(batch json) RETURNS SETOF pgbeat.jobs
LANGUAGE plpgsql AS $$
BEGIN
    IF NOT has_table_privilege('pgbeat.jobs'::regclass, 'INSERT') THEN
        RETURN QUERY SELECT w.* FROM pgbeat.write_jobs_as_owner(batch) AS w;
        RETURN;
    END IF;
    RETURN QUERY
        INSERT INTO pgbeat.jobs AS j
        SELECT d.* FROM json_populate_recordset(pgbeat.new_job(), batch) AS d
        ON CONFLICT DO NOTHING
        RETURNING j.*;
END
$$;

CREATE OR REPLACE FUNCTION pgbeat.submit(
    task text, args jsonb DEFAULT '[]', kwargs jsonb DEFAULT '{}', namespace text DEFAULT 'default',
    queue text DEFAULT NULL, options jsonb DEFAULT '{}', run_at timestamptz DEFAULT NULL,
    lane text DEFAULT NULL, priority integer DEFAULT 0, tags text[] DEFAULT '{}',
    resources jsonb DEFAULT '{}', max_attempts integer DEFAULT 1,
    retry_base interval DEFAULT '1 minute', retry_cap interval DEFAULT NULL,
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
    IF NOT has_table_privilege('pgbeat.unfinished_jobs'::regclass, 'INSERT') THEN
        RETURN pgbeat.submit_as_owner(
            task, args, kwargs, namespace, queue, options, run_at, lane, priority, tags,
            resources, max_attempts, retry_base, retry_cap, unique_key, unique_for,
            requires_approval, description, labels, metadata, created_by, depends_on,
            depends_on_outcome);
    END IF;
    retry_cap := coalesce(retry_cap, greatest(interval '1 hour', retry_base));
    PERFORM pgbeat.refuse_job(p.field, p.code, p.problem) FROM (VALUES
        ('task', 'malformed', 'task must be the name of one',
            task IS NULL OR task !~ '^[^[:cntrl:]]{1,255}$' OR btrim(task) <> task),
        ('args', 'malformed', 'args must be a JSON array',
            jsonb_typeof(args) IS DISTINCT FROM 'array'),
        ('kwargs', 'malformed', 'kwargs must be a JSON object',
            jsonb_typeof(kwargs) IS DISTINCT FROM 'object'),
        ('options', 'malformed', 'options must be a JSON object',
            jsonb_typeof(options) IS DISTINCT FROM 'object'),
        ('run_at', 'out_of_range', 'run_at is out of the years 1 to 9999',
            run_at > '9999-12-30 00:00+00'),
        ('namespace', 'malformed', 'namespace has characters that no namespace has',
            namespace IS NULL OR namespace !~ '^[A-Za-z0-9_.-]{1,63}$'),
        ('priority', 'out_of_range', 'priority must be 0 to 255',
            priority IS NULL OR priority NOT BETWEEN 0 AND 255),
        ('max_attempts', 'out_of_range', 'max_attempts must be 1 to 1000',
            max_attempts IS NULL OR max_attempts NOT BETWEEN 1 AND 1000),
        ('unique_key', 'malformed', 'unique_key must have 1 to 200 characters',
            unique_key !~ '\S' OR length(unique_key) > 200),
        ('unique_key', 'reserved', 'unique_key must not begin with content:',
            starts_with(unique_key, 'content:')),
        ('resources', 'malformed', 'resources must be a JSON object of amounts such as {"gpu": 1}',
            CASE WHEN jsonb_typeof(resources) = 'object' THEN EXISTS (
                     SELECT FROM jsonb_each(resources) AS r
                      WHERE (r.key ~ '\S' AND length(r.key) <= 200
                             AND r.value > '0' AND r.value < '1e12') IS NOT TRUE)
                 ELSE true END),
        ('unique_key', 'required', 'unique_for needs a unique_key',
            unique_for IS NOT NULL AND unique_key IS NULL),
        ('unique_for', 'out_of_range', 'unique_for must be 0 to 36500 days',
            unique_for NOT BETWEEN '0' AND '36500 days'),
        ('retry_base', 'out_of_range', 'retry_base must be 0 to 36500 days',
            (retry_base BETWEEN '0' AND '36500 days') IS NOT TRUE),
        ('retry_cap', 'out_of_range', 'retry_cap must be retry_base to 36500 days',
            retry_cap NOT BETWEEN retry_base AND '36500 days'),
        ('tags', 'malformed', 'tags must be a list of names of 1 to 200 characters',
            tags IS NULL OR array_ndims(tags) > 1 OR EXISTS (
                SELECT FROM unnest(tags) AS t (name)
                 WHERE (t.name ~ '\S' AND length(t.name) <= 200) IS NOT TRUE)),
        ('requires_approval', 'malformed', 'requires_approval must be true or false',
            requires_approval IS NULL),
        ('labels', 'malformed', 'labels must be a JSON object of texts', labels IS NULL),
        ('metadata', 'malformed', 'metadata must be a JSON object', metadata IS NULL),
        ('created_by', 'malformed', 'created_by must be a name', created_by IS NULL),
        ('depends_on', 'out_of_range', 'a job depends on at most 10,000 others',
            cardinality(depends_on) > 10000),
        ('depends_on_outcome', 'unknown', 'depends_on_outcome must be completed or finished',
            depends_on_outcome IS NULL OR depends_on_outcome NOT IN ('completed', 'finished'))
        ) AS p (field, code, problem, applies) WHERE p.applies;
    PERFORM pgbeat.refuse_job(d.field, 'malformed', d.field || ' is nested more than 100 deep')
       FROM (VALUES ('args', args), ('kwargs', kwargs), ('options', options), ('metadata', metadata)
            ) AS d (field, value) WHERE d.value @? '$.**{100}';
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
            'lane', lane, 'priority', priority, 'tags', ARRAY(
                SELECT t.name FROM unnest(tags) WITH ORDINALITY AS t (name, n)
                 GROUP BY t.name ORDER BY min(t.n)), 'resources', resources,
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

-- Deletes the oldest entries of the audit, of those after `last_id`, for a role that may delete history,
-- but not change the audit: nothing of the last day. Returns how many it looked at and deleted, and the
-- place of the last.
CREATE FUNCTION pgbeat.prune_audit(
    own_namespace text, last_id bigint, seconds double precision, most integer,
    OUT scanned bigint, OUT deleted bigint, OUT dependents bigint, OUT last bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pgbeat.require_delete('ended_jobs');
    WITH old AS MATERIALIZED (
        SELECT o.id FROM (
            SELECT a.id, a.at FROM pgbeat.audit a
             WHERE a.id > last_id AND a.namespace = own_namespace ORDER BY a.id LIMIT most) AS o
         WHERE o.at < now() - greatest(seconds, 86400) * interval '1 second'),
    gone AS (DELETE FROM pgbeat.audit WHERE id IN (SELECT id FROM old) RETURNING id)
    SELECT count(*), (SELECT count(*) FROM gone), 0, max(id)
      INTO scanned, deleted, dependents, last FROM old;
END
$$;
