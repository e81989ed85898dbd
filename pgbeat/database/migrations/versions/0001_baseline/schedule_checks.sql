-- Checks what a person may write into a schedule, and says in a sentence what is wrong with it.
-- BEFORE triggers run in the order of their names.

-- Programs read the fields of the error: COLUMN has the field at fault ("" for the whole), CONSTRAINT
-- a code for what is wrong, DATATYPE the name of the row.
CREATE FUNCTION pgbeat.refuse_schedule(name text, field text, code text, problem text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'schedule "%": %', coalesce(name, ''), problem
        USING ERRCODE = 'check_violation', SCHEMA = 'pgbeat', TABLE = 'schedules',
            COLUMN = field, CONSTRAINT = code, DATATYPE = coalesce(name, '');
END
$$;

-- Also keeps the row consistent: after a new timetable, re-enabling or resuming, the next time is
-- computed afresh (so it never floods), unless the same statement sets one; a next_run that a
-- person sets is the due time itself.
CREATE FUNCTION pgbeat.check_schedule() RETURNS trigger
LANGUAGE plpgsql AS $$
DECLARE
    problem text;
    field   text;  -- what is wrong, for programs
    code    text;
    fresh   CONSTANT boolean := TG_OP = 'INSERT';
    first   CONSTANT timestamptz := '0001-01-02 00:00+00';
    last    CONSTANT timestamptz := '9999-12-30 00:00+00';
    longest CONSTANT interval := '36500 days';
    chosen  CONSTANT text[] := array_remove(ARRAY[
        CASE WHEN NEW.cron IS NOT NULL THEN 'cron' END,
        CASE WHEN NEW.every IS NOT NULL THEN 'every' END,
        CASE WHEN NEW.once_at IS NOT NULL THEN 'once_at' END,
        CASE WHEN NEW.solar IS NOT NULL THEN 'solar' END,
        CASE WHEN NEW.rrule IS NOT NULL THEN 'rrule' END,
        CASE WHEN NEW.after IS NOT NULL THEN 'after' END], NULL);
    zones   text;
BEGIN
    IF NEW.launcher = 'GenericJobLauncher' THEN  -- an alias
        NEW.launcher := 'GenericLauncher';
    END IF;
    IF NEW.name IS NULL OR btrim(NEW.name) = '' THEN
        field := 'name'; code := 'required';
        problem := 'a schedule needs a name';
    ELSIF length(NEW.name) > 200 THEN
        field := 'name'; code := 'malformed';
        problem := format('a name has at most 200 characters, not %s', length(NEW.name));
    ELSIF NEW.source <> 'code' AND (NEW.name ~ '[[:cntrl:]/]' OR btrim(NEW.name) <> NEW.name) THEN
        field := 'name'; code := 'malformed';
        problem := 'a name has no slash, no control character and no space at its ends';
    ELSIF NEW.name IN ('.', '..') THEN
        field := 'name'; code := 'malformed';
        problem := format('a name is not %L, which browsers take out of an address', NEW.name);
    ELSIF NEW.namespace !~ '^[A-Za-z0-9_.-]{1,63}$' THEN
        field := 'namespace'; code := 'malformed';
        problem := format('namespace %L is not one; use up to 63 letters, digits, ''_'', ''.'' '
            'and ''-''', NEW.namespace);
    ELSIF cardinality(chosen) = 2 THEN
        field := chosen[2]; code := 'conflict';
        problem := format('it has both %s and %s; keep one', chosen[1], chosen[2]);
    ELSIF cardinality(chosen) > 2 THEN
        field := chosen[2]; code := 'conflict';
        problem := format('it has %s; keep one', array_to_string(chosen, ', '));
    ELSIF cardinality(chosen) = 0 AND NEW.source <> 'code' THEN
        field := ''; code := 'required';
        problem := 'it has no timetable; set cron (for example ''0 2 * * *'') or every (for '
            'example ''15 minutes''), or once_at, solar, rrule or after';
    ELSIF NEW.every <= interval '0' THEN
        field := 'every'; code := 'out_of_range';
        problem := format('every is %s; it must be longer than nothing', NEW.every);
    ELSIF NEW.every > longest THEN
        field := 'every'; code := 'out_of_range';
        problem := format('every is %s; it must be 36500 days or less', NEW.every);
    ELSIF extract(month FROM NEW.every) <> 0 OR extract(year FROM NEW.every) <> 0 THEN
        field := 'every'; code := 'out_of_range';
        problem := format('every is %s; months and years have no fixed length, use cron '
            '(for example ''0 0 1 * *'')', NEW.every);
    ELSIF NEW.launcher = 'GenericLauncher' AND coalesce(btrim(NEW.task), '') = '' THEN
        field := 'task'; code := 'required';
        problem := 'it has no task; set task to a registered task''s name '
            '(for example ''tasks.maintenance.backup'')';
    ELSIF NEW.launcher !~ '^[A-Za-z_][A-Za-z0-9_.:-]*$' THEN
        field := 'launcher'; code := 'malformed';
        problem := format('launcher %L is not a launcher''s name; use the name that it is '
            'registered by', NEW.launcher);
    ELSIF NEW.task ~ '[[:cntrl:]]' OR NEW.task ~ '^\s|\s$' OR length(NEW.task) > 255 THEN
        field := 'task'; code := 'malformed';
        problem := format('task %L is not a task''s name; use the name that it is registered by',
            left(NEW.task, 80));
    ELSIF NEW.queue !~ '\S' THEN
        field := 'queue'; code := 'required';
        problem := 'queue is empty; leave it NULL for the task''s own';
    ELSIF NEW.args IS NULL AND NEW.source <> 'code' THEN
        field := 'args'; code := 'required';
        problem := 'args is NULL; it must be a JSON array, for example ''[]''';
    ELSIF jsonb_typeof(NEW.args) <> 'array' THEN
        field := 'args'; code := 'malformed';
        problem := format('args is a JSON %s; it must be an array, for example ''[1, "two"]''',
            jsonb_typeof(NEW.args));
    ELSIF jsonb_typeof(NEW.kwargs) <> 'object' THEN
        field := 'kwargs'; code := 'malformed';
        problem := format('kwargs is a JSON %s; it must be an object, for example '
            '''{"area": "DK1"}''', jsonb_typeof(NEW.kwargs));
    ELSIF jsonb_typeof(NEW.options) <> 'object' THEN
        field := 'options'; code := 'malformed';
        problem := format('options is a JSON %s; it must be an object of publish options, '
            'for example ''{"priority": 3}''', jsonb_typeof(NEW.options));
    ELSIF NEW.max_retries < 0 THEN
        field := 'max_retries'; code := 'out_of_range';
        problem := format('max_retries is %s; it must be 0 or more', NEW.max_retries);
    ELSIF NEW.retry_base < interval '0' OR NEW.retry_cap < NEW.retry_base THEN
        field := 'retry_cap'; code := 'out_of_range';
        problem := 'retry_base must not be negative, and retry_cap not below it';
    ELSIF NEW.retry_cap > longest THEN
        field := 'retry_cap'; code := 'out_of_range';
        problem := format('retry_cap is %s; it must be 36500 days or less', NEW.retry_cap);
    ELSIF NOT (NEW.retry_factor BETWEEN 1 AND 1000) THEN
        field := 'retry_factor'; code := 'out_of_range';
        problem := format('retry_factor is %s; it must be 1 to 1000', NEW.retry_factor);
    ELSIF NEW.probe_after <= interval '0' OR NEW.probe_after > longest THEN
        field := 'probe_after'; code := 'out_of_range';
        problem := format('probe_after is %s; it must be longer than nothing, and 36500 days or '
            'less', NEW.probe_after);
    ELSIF NEW.condition_sql !~ '\S' THEN
        field := 'condition_sql'; code := 'required';
        problem := 'condition_sql is empty; leave it NULL for no condition';
    ELSIF NOT (NEW.next_run BETWEEN first AND last) THEN
        field := 'next_run'; code := 'out_of_range';
        problem := format('next_run is %s; it must be a time of the years 1 to 9999, for example '
            'now(), or NULL to have it computed', NEW.next_run);
    ELSIF NOT (NEW.paused_at BETWEEN first AND last) THEN
        field := 'paused_at'; code := 'out_of_range';
        problem := format('paused_at is %s; set it to now() to pause the schedule, until it is '
            'NULL again', NEW.paused_at);
    ELSIF NOT (NEW.once_at BETWEEN first AND last AND NEW.starts_at BETWEEN first AND last
            AND NEW.ends_at BETWEEN first AND last) THEN
        field := 'once_at'; code := 'out_of_range';
        problem := 'once_at, starts_at and ends_at must be times of the years 1 to 9999';
    ELSIF NEW.ends_at < NEW.starts_at THEN
        field := 'ends_at'; code := 'out_of_range';
        problem := format('it ends (%s) before it starts (%s)', NEW.ends_at, NEW.starts_at);
    ELSIF NEW.max_runs < 1 THEN
        field := 'max_runs'; code := 'out_of_range';
        problem := format('max_runs is %s; it must be 1 or more', NEW.max_runs);
    ELSIF NOT (NEW.jitter BETWEEN interval '0' AND interval '366 days') THEN
        field := 'jitter'; code := 'out_of_range';
        problem := format('jitter is %s; it must be 0 to 366 days', NEW.jitter);
    ELSIF NEW.catch_up NOT IN ('latest', 'all', 'none') THEN
        field := 'catch_up'; code := 'unknown';
        problem := format('catch_up is %L; it must be latest, all or none', NEW.catch_up);
    ELSIF NOT (NEW.catch_up_limit BETWEEN 1 AND 10000) THEN
        field := 'catch_up_limit'; code := 'out_of_range';
        problem := format('catch_up_limit is %s; it must be 1 to 10000', NEW.catch_up_limit);
    ELSIF NOT (NEW.grace BETWEEN interval '0' AND longest) THEN
        field := 'grace'; code := 'out_of_range';
        problem := format('grace is %s; it must be 0 to 36500 days', NEW.grace);
    ELSIF NOT (NEW.min_interval BETWEEN interval '0' AND longest) THEN
        field := 'min_interval'; code := 'out_of_range';
        problem := format('min_interval is %s; it must be 0 to 36500 days', NEW.min_interval);
    ELSIF NEW.after_outcome NOT IN ('completed', 'failed', 'finished') THEN
        field := 'after_outcome'; code := 'unknown';
        problem := format('after_outcome is %L; it must be completed, failed or finished',
            NEW.after_outcome);
    ELSIF NEW.calendar IS NOT NULL AND NOT EXISTS (SELECT FROM pgbeat.calendars c
             WHERE c.namespace = NEW.namespace AND c.name = NEW.calendar) THEN
        field := 'calendar'; code := 'unknown';
        problem := format('there is no calendar %L; `pgbeat calendars list` shows all calendars',
            NEW.calendar);
    END IF;
    IF problem IS NULL AND NEW.cron IS NOT NULL AND (fresh OR NEW.cron IS DISTINCT FROM OLD.cron)
    THEN
        field := 'cron'; code := 'malformed';
        problem := pgbeat.cron_problem(NEW.cron);
        problem := format('cron %L: ', NEW.cron) || problem;
    END IF;
    IF problem IS NULL AND NEW.solar IS NOT NULL AND (fresh OR NEW.solar IS DISTINCT FROM OLD.solar)
    THEN
        field := 'solar'; code := 'malformed';
        problem := format('solar %L: ', NEW.solar) || pgbeat.solar_problem(NEW.solar);
    END IF;
    IF problem IS NULL AND NEW.rrule IS NOT NULL AND (fresh OR NEW.rrule IS DISTINCT FROM OLD.rrule)
    THEN
        field := 'rrule'; code := 'malformed';
        problem := format('rrule %L: ', NEW.rrule) || pgbeat.rrule_problem(NEW.rrule);
    END IF;
    IF problem IS NULL AND NEW.after IS NOT NULL AND (fresh OR (NEW.after, NEW.name, NEW.namespace)
        IS DISTINCT FROM (OLD.after, OLD.name, OLD.namespace))
    THEN
        -- Two that close a circle at the same time come one after the other.
        PERFORM pg_advisory_xact_lock(hashtextextended('pgbeat.after', 0));
        field := 'after'; code := 'circle';
        WITH RECURSIVE chain (name, next, path) AS (
            SELECT NEW.name, NEW.after, quote_ident(NEW.name) || ' after ' || quote_ident(NEW.after)
             UNION ALL
            SELECT s.name, s.after, chain.path || ' after ' || quote_ident(s.after)
              FROM chain JOIN pgbeat.schedules s ON s.name = chain.next
             WHERE s.namespace = NEW.namespace AND s.after IS NOT NULL
               AND (fresh OR s.id <> NEW.id)
               AND chain.next <> NEW.name)
        SELECT format('after goes in a circle: %s', path) INTO problem
          FROM chain WHERE next = NEW.name;
    END IF;
    IF problem IS NULL AND NEW.timezone IS NOT NULL AND NEW.source <> 'code'
        AND (fresh OR NEW.timezone IS DISTINCT FROM OLD.timezone)
    THEN
        -- AT TIME ZONE would take 'pdt' and 'Foo5' too. The list of names is read from files,
        -- so the session keeps those that it has looked up.
        zones := coalesce(current_setting('pgbeat.zones', true), '');
        IF NEW.timezone = ANY (string_to_array(zones, ',')) THEN
            NULL;
        ELSIF NEW.timezone !~ '^(posix|right|localtime)'
            AND EXISTS (SELECT FROM pg_timezone_names WHERE pg_timezone_names.name = NEW.timezone)
        THEN
            PERFORM set_config('pgbeat.zones', concat_ws(',', nullif(zones, ''), NEW.timezone),
                false);
        ELSE
            field := 'timezone'; code := 'unknown';
            problem := format('timezone %L is not known; use an IANA name, for example '
                '''Europe/Oslo'' or ''UTC''', NEW.timezone);
        END IF;
    END IF;
    IF problem IS NOT NULL THEN
        PERFORM pgbeat.refuse_schedule(NEW.name, field, code, problem);
    END IF;

    IF NOT fresh THEN
        NEW.updated_at := now();
        IF NEW.enabled AND NOT OLD.enabled THEN
            NEW.disabled_reason := NULL;
            NEW.completed_at := NULL;
            NEW.probe_at := NULL;
            IF NEW.retry_count = OLD.retry_count THEN
                NEW.retry_count := 0;
            END IF;
            IF NEW.run_count >= NEW.max_runs AND NEW.run_count = OLD.run_count THEN
                NEW.run_count := 0;
            END IF;
        END IF;
        IF NEW.next_run IS NOT DISTINCT FROM OLD.next_run AND (
            (NEW.cron, NEW.every, NEW.timezone, NEW.once_at, NEW.solar, NEW.rrule, NEW.after,
                NEW.starts_at, NEW.ends_at, NEW.jitter)
                IS DISTINCT FROM (OLD.cron, OLD.every, OLD.timezone, OLD.once_at, OLD.solar,
                OLD.rrule, OLD.after, OLD.starts_at, OLD.ends_at, OLD.jitter)
            OR (NEW.enabled AND NOT OLD.enabled)
            OR (NEW.paused_at IS NULL AND OLD.paused_at IS NOT NULL))
        THEN
            NEW.next_run := NULL;
        END IF;
        IF NEW.next_run IS DISTINCT FROM OLD.next_run AND NEW.upstream_ended = OLD.upstream_ended
            AND NEW.due_at IS NOT DISTINCT FROM OLD.due_at
        THEN
            NEW.due_at := NULL;
            NEW.waiting_for := NULL;
            NEW.upstream_ended := 0;
        END IF;
    ELSIF NEW.next_run IS NOT NULL AND NEW.due_at IS NULL THEN  -- no beat has set it
        NEW.out_of_turn := true;
    END IF;
    RETURN NEW;
END
$$;

CREATE TRIGGER check_schedule
    BEFORE INSERT OR UPDATE OF namespace, name, launcher, task, args, kwargs, options, queue,
        condition_sql, cron, every, once_at, solar, rrule, after, after_outcome, timezone,
        starts_at, ends_at, max_runs, jitter, calendar, catch_up, catch_up_limit, grace, overlap,
        min_interval, enabled, paused_at, max_retries, retry_base, retry_factor, retry_cap,
        probe_after, source
    ON pgbeat.schedules FOR EACH ROW EXECUTE FUNCTION pgbeat.check_schedule();

-- Apart from check_schedule: the leader sets next_run at every tick, to a valid time.
CREATE FUNCTION pgbeat.check_next_run() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    IF NOT (NEW.next_run BETWEEN '0001-01-02 00:00+00' AND '9999-12-30 00:00+00') THEN
        PERFORM pgbeat.refuse_schedule(NEW.name, 'next_run', 'out_of_range', format(
            'next_run is %s; it must be a time of the years 1 to 9999, for example now(), or NULL '
            'to have it computed', NEW.next_run));
    ELSIF NEW.upstream_ended = OLD.upstream_ended AND NEW.due_at IS NOT DISTINCT FROM OLD.due_at THEN
        NEW.due_at := NULL;
        NEW.waiting_for := NULL;
        NEW.upstream_ended := 0;
        NEW.out_of_turn := true;
    END IF;
    RETURN NEW;
END
$$;

CREATE TRIGGER check_next_run
    BEFORE UPDATE OF next_run ON pgbeat.schedules FOR EACH ROW
    WHEN (NEW.next_run IS DISTINCT FROM OLD.next_run
        AND (current_setting('pgbeat.leader', true) IS DISTINCT FROM 'on'
            OR NOT (NEW.next_run BETWEEN '0001-01-02 00:00+00' AND '9999-12-30 00:00+00')))
    EXECUTE FUNCTION pgbeat.check_next_run();

-- Takes the task from the template; before check_schedule, which demands a task.
CREATE FUNCTION pgbeat.check_job_policy() RETURNS trigger
LANGUAGE plpgsql AS $$
DECLARE
    problem text;
    field   text := 'job_policy';
    code    text := 'malformed';
    key     text;
BEGIN
    IF jsonb_typeof(NEW.job_policy) IS DISTINCT FROM 'object' THEN
        problem := format(
            'job_policy is a JSON %s; it must be an object, for example ''{"lane": "gpu"}''',
            coalesce(jsonb_typeof(NEW.job_policy), 'null'));
    ELSE
        SELECT k INTO key FROM jsonb_object_keys(NEW.job_policy) k
         WHERE k NOT IN ('template', 'lane', 'priority', 'max_attempts', 'retry_base', 'retry_cap',
            'tags', 'resources', 'unique', 'unique_key', 'unique_for', 'requires_approval',
            'must_start_within', 'must_end_within')
         LIMIT 1;
        IF key IS NOT NULL THEN
            field := 'job_policy.' || key; code := 'unknown_field';
            problem := format('job_policy has %L, and there is no such key; there are template, lane, '
                'priority, max_attempts, retry_base, retry_cap, tags, resources, unique, '
                'unique_key, unique_for, requires_approval, must_start_within, must_end_within', key);
        END IF;
    END IF;
    IF problem IS NULL AND NEW.task IS NULL AND NEW.job_policy ? 'template' THEN
        SELECT t.task INTO NEW.task FROM pgbeat.templates t
         WHERE t.namespace = NEW.namespace AND t.name = NEW.job_policy ->> 'template';
        IF NOT FOUND THEN
            field := 'job_policy.template'; code := 'unknown';
            problem := format('there is no template %L; `pgbeat templates list` shows all '
                'templates', NEW.job_policy ->> 'template');
        END IF;
    END IF;
    IF problem IS NOT NULL THEN
        PERFORM pgbeat.refuse_schedule(NEW.name, field, code, problem);
    END IF;
    RETURN NEW;
END
$$;

CREATE TRIGGER check_job_policy
    BEFORE INSERT OR UPDATE OF job_policy, task ON pgbeat.schedules FOR EACH ROW
    WHEN (NEW.job_policy <> '{}') EXECUTE FUNCTION pgbeat.check_job_policy();

CREATE FUNCTION pgbeat.check_overlap() RETURNS trigger
LANGUAGE plpgsql AS $$
DECLARE
    problem text;
    field   CONSTANT text := 'overlap';
    code    text := 'unknown';
BEGIN
    IF NEW.overlap NOT IN ('allow', 'skip', 'queue_one', 'buffer_all', 'cancel_previous') THEN
        problem := format('overlap is %L; it must be allow, skip, queue_one, buffer_all or '
            'cancel_previous', NEW.overlap);
    ELSIF NEW.overlap = 'buffer_all' AND NEW.after IS NOT NULL THEN
        code := 'conflict';
        problem := 'overlap buffer_all is for schedules with a timetable, and this one has after; '
            'use queue_one';
    END IF;
    IF problem IS NOT NULL THEN
        PERFORM pgbeat.refuse_schedule(NEW.name, field, code, problem);
    END IF;
    RETURN NEW;
END
$$;

CREATE TRIGGER check_overlap BEFORE INSERT OR UPDATE OF overlap, after ON pgbeat.schedules
    FOR EACH ROW EXECUTE FUNCTION pgbeat.check_overlap();

CREATE FUNCTION pgbeat.check_pause_after_failures() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgbeat.refuse_schedule(NEW.name, 'pause_after_failures', 'out_of_range', format(
        'pause_after_failures is %s; it must be 1 to 1000, or NULL for never',
        NEW.pause_after_failures));
    RETURN NEW;
END
$$;

CREATE TRIGGER check_pause_after_failures
    BEFORE INSERT OR UPDATE OF pause_after_failures ON pgbeat.schedules FOR EACH ROW
    WHEN (NEW.pause_after_failures NOT BETWEEN 1 AND 1000)
    EXECUTE FUNCTION pgbeat.check_pause_after_failures();

-- What people write on schedules and jobs to find them again; pgbeat itself goes by none of it.
CREATE FUNCTION pgbeat.details_problem(description text, labels jsonb, metadata jsonb)
RETURNS text
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    found_key  text;
    found_kind text;
BEGIN
    IF description !~ '\S' THEN
        RETURN 'description is empty; leave it NULL for none';
    ELSIF length(description) > 2000 THEN
        RETURN format('description has %s characters; it may have 2000', length(description));
    ELSIF jsonb_typeof(labels) <> 'object' THEN
        RETURN format('labels is a JSON %s; it must be an object of texts, for example '
            '''{"team": "billing"}''', jsonb_typeof(labels));
    ELSIF jsonb_typeof(metadata) <> 'object' THEN
        RETURN format('metadata is a JSON %s; it must be an object', jsonb_typeof(metadata));
    ELSIF length(metadata::text) > 16384 THEN
        RETURN format('metadata has %s characters as JSON; it may have 16384',
            length(metadata::text));
    ELSIF (SELECT count(*) FROM jsonb_object_keys(labels)) > 32 THEN
        RETURN 'there are more than 32 labels';
    END IF;
    SELECT l.key, jsonb_typeof(l.value) INTO found_key, found_kind FROM jsonb_each(labels) l
     WHERE l.key !~ '^[A-Za-z0-9]([A-Za-z0-9_./-]{0,61}[A-Za-z0-9])?$'
        OR jsonb_typeof(l.value) <> 'string' OR l.value #>> '{}' ~ '[[:cntrl:]]'
        OR length(l.value #>> '{}') > 200
     LIMIT 1;
    IF NOT FOUND THEN
        RETURN NULL;
    ELSIF found_key !~ '^[A-Za-z0-9]([A-Za-z0-9_./-]{0,61}[A-Za-z0-9])?$' THEN
        RETURN format('labels: %L is not a label''s name; use up to 63 letters, digits, ''_'', '
            '''.'', ''/'' and ''-'', with a letter or a digit at each end', left(found_key, 80));
    ELSIF found_kind <> 'string' THEN
        RETURN format('labels: the value of %L is a JSON %s; it must be text', found_key,
            found_kind);
    END IF;
    RETURN format('labels: the value of %L must have up to 200 characters, none of them a '
        'control character', found_key);
END
$$;

CREATE FUNCTION pgbeat.check_details() RETURNS trigger
LANGUAGE plpgsql AS $$
DECLARE
    problem CONSTANT text := pgbeat.details_problem(NEW.description, NEW.labels, NEW.metadata);
BEGIN
    IF problem IS NOT NULL THEN
        RAISE EXCEPTION '%: %',
            CASE TG_TABLE_NAME WHEN 'schedules'
                 THEN format('schedule "%s"', coalesce(to_jsonb(NEW) ->> 'name', ''))
                 ELSE 'job ' || NEW.id END, problem
            USING ERRCODE = 'check_violation', SCHEMA = 'pgbeat', TABLE = TG_TABLE_NAME,
                CONSTRAINT = 'malformed', DATATYPE = coalesce(to_jsonb(NEW) ->> 'name', ''),
                COLUMN = CASE
                    WHEN pgbeat.details_problem(NEW.description, '{}', '{}') IS NOT NULL
                    THEN 'description'
                    WHEN pgbeat.details_problem(NULL, NEW.labels, '{}') IS NOT NULL THEN 'labels'
                    ELSE 'metadata' END;
    END IF;
    RETURN NEW;
END
$$;

CREATE TRIGGER check_details BEFORE INSERT OR UPDATE OF description, labels, metadata
    ON pgbeat.schedules FOR EACH ROW
    WHEN (NEW.description IS NOT NULL OR NEW.labels <> '{}' OR NEW.metadata <> '{}')
    EXECUTE FUNCTION pgbeat.check_details();
CREATE TRIGGER check_details BEFORE INSERT OR UPDATE OF description, labels, metadata
    ON pgbeat.jobs FOR EACH ROW
    WHEN (NEW.description IS NOT NULL OR NEW.labels <> '{}' OR NEW.metadata <> '{}')
    EXECUTE FUNCTION pgbeat.check_details();
