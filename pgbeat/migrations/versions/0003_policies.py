"""Timetables of every kind, windows, calendars and policies; several apps in one database."""

from alembic import op

revision = "0003"
down_revision = "0002"

SCHEDULES = """
ALTER TABLE pgbeat.schedules
    ADD namespace      text NOT NULL DEFAULT 'default',
    ADD once_at        timestamptz,
    ADD solar          text,
    ADD rrule          text,
    ADD after          text,
    ADD after_outcome  text NOT NULL DEFAULT 'completed',
    ADD starts_at      timestamptz,
    ADD ends_at        timestamptz,
    ADD max_runs       integer,
    ADD run_count      bigint NOT NULL DEFAULT 0,
    ADD jitter         interval NOT NULL DEFAULT '0',
    ADD calendar       text,
    ADD catch_up       text NOT NULL DEFAULT 'latest',
    ADD catch_up_limit integer NOT NULL DEFAULT 100,
    ADD grace          interval,
    ADD overlap        text NOT NULL DEFAULT 'allow',
    ADD min_interval   interval,
    ADD retry_factor   double precision NOT NULL DEFAULT 2,
    ADD probe_after    interval,
    ADD probe_at       timestamptz,
    ADD due_at         timestamptz,     -- the timetable's time, where next_run is another
    ADD waiting_for    uuid,            -- the job that a due time waits for
    ADD ended          integer NOT NULL DEFAULT 0,  -- jobs of `after`, not decided on yet
    ADD file_definition jsonb,          -- what the file said that wrote it last
    DROP CONSTRAINT schedules_name_key,
    DROP CONSTRAINT schedules_one_timetable,
    DROP CONSTRAINT schedules_source,
    ADD CONSTRAINT schedules_name_key UNIQUE (namespace, name),
    ADD CONSTRAINT schedules_source CHECK (
        source IN ('sql', 'cli', 'api', 'file', 'code', 'import')),
    ADD CONSTRAINT schedules_namespace CHECK (namespace ~ '^[A-Za-z0-9_.-]{1,63}$'),
    ADD CONSTRAINT schedules_one_timetable CHECK (
        num_nonnulls(cron, every, once_at, solar, rrule, after) = 1
        OR (source = 'code' AND num_nonnulls(cron, every, once_at, solar, rrule, after) = 0)),
    ADD CONSTRAINT schedules_policies CHECK (
        after_outcome IN ('completed', 'failed', 'finished')
        AND catch_up IN ('latest', 'all', 'none')
        AND overlap IN ('allow', 'skip', 'queue_one', 'cancel_previous')),
    ADD CONSTRAINT schedules_limits CHECK (
        max_runs > 0 AND catch_up_limit BETWEEN 1 AND 10000 AND run_count >= 0
        AND jitter BETWEEN '0' AND '366 days' AND grace BETWEEN '0' AND '36500 days'
        AND min_interval BETWEEN '0' AND '36500 days'
        AND probe_after > '0' AND probe_after <= '36500 days'
        AND retry_factor BETWEEN 1 AND 1000),
    ADD CONSTRAINT schedules_other_times_of_calendar CHECK (
        once_at BETWEEN '0001-01-02 00:00+00' AND '9999-12-30 00:00+00'
        AND starts_at BETWEEN '0001-01-02 00:00+00' AND '9999-12-30 00:00+00'
        AND ends_at BETWEEN '0001-01-02 00:00+00' AND '9999-12-30 00:00+00'
        AND due_at BETWEEN '0001-01-02 00:00+00' AND '9999-12-30 00:00+00'
        AND probe_at BETWEEN '0001-01-02 00:00+00' AND '9999-12-30 00:00+00');

DROP INDEX pgbeat.schedules_due;
CREATE INDEX schedules_due ON pgbeat.schedules (namespace, next_run)
    WHERE enabled AND paused_at IS NULL;
CREATE INDEX schedules_probe ON pgbeat.schedules (namespace, probe_at)
    WHERE NOT enabled AND probe_at IS NOT NULL;
CREATE INDEX schedules_after ON pgbeat.schedules (namespace, after) WHERE after IS NOT NULL;
"""

NAMESPACES = """
-- The zone that the times of each app's schedules were computed in, where a row names none.
CREATE TABLE pgbeat.namespaces (
    name     text PRIMARY KEY,
    timezone text NOT NULL,
    CONSTRAINT namespaces_name CHECK (name ~ '^[A-Za-z0-9_.-]{1,63}$')
);
"""

TICKS = """
ALTER TABLE pgbeat.ticks
    ADD missed integer NOT NULL DEFAULT 0,  -- due times before this one that it accounts for
    ADD note   text,
    DROP CONSTRAINT ticks_one_decision,
    DROP CONSTRAINT ticks_trigger,
    ADD CONSTRAINT ticks_one_decision UNIQUE (schedule_id, due_at, trigger),
    ADD CONSTRAINT ticks_trigger CHECK (
        trigger IN ('timetable', 'retry', 'manual', 'after', 'backfill'));

CREATE INDEX jobs_unfinished ON pgbeat.jobs (schedule_id)
    WHERE state IN ('pending', 'scheduled', 'running', 'paused');
"""

CALENDARS = """
CREATE TABLE pgbeat.calendars (
    namespace  text NOT NULL DEFAULT 'default',
    name       text NOT NULL,
    definition jsonb NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (namespace, name),
    CONSTRAINT calendars_namespace CHECK (namespace ~ '^[A-Za-z0-9_.-]{1,63}$'),
    CONSTRAINT calendars_name_length CHECK (length(name) BETWEEN 1 AND 200),
    CONSTRAINT calendars_name_plain CHECK (name !~ '[[:cntrl:]/]' AND btrim(name) = name
        AND name NOT IN ('.', '..')),
    CONSTRAINT calendars_definition_object CHECK (jsonb_typeof(definition) = 'object')
);

-- What a schedule names is there, and stays as long as it is named. (namespace is never NULL, and
-- a calendar that is NULL is not looked for.)
ALTER TABLE pgbeat.schedules
    ADD CONSTRAINT schedules_calendar FOREIGN KEY (namespace, calendar)
        REFERENCES pgbeat.calendars (namespace, name);
CREATE INDEX schedules_calendar ON pgbeat.schedules (namespace, calendar)
    WHERE calendar IS NOT NULL;

CREATE FUNCTION pgbeat.touch_calendar() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    NEW.updated_at := now();
    RETURN NEW;
END
$$;

CREATE TRIGGER touch_calendar
    BEFORE UPDATE ON pgbeat.calendars FOR EACH ROW EXECUTE FUNCTION pgbeat.touch_calendar();

-- On the schedules' channel: what is due is looked at again.
CREATE TRIGGER announce_change
    AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE
    ON pgbeat.calendars FOR EACH STATEMENT EXECUTE FUNCTION pgbeat.announce_change();
"""

PROBLEMS = r"""
-- What is wrong with a cron expression, in a sentence; NULL when nothing is. It says what Python's
-- parse_cron says (pgbeat/timetables/cron_fields.py).
CREATE OR REPLACE FUNCTION pgbeat.cron_problem(expression text) RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
DECLARE
    example  CONSTANT text := 'a cron expression is "minute hour day month weekday", '
        'for example "*/15 * * * *" or "0 2 * * mon-fri"';
    labels   CONSTANT text[] := ARRAY['minute', 'hour', 'day of month', 'month', 'weekday',
        'second'];
    ranges   CONSTANT text[] := ARRAY['0-59', '0-23', '1-31', '1-12 or jan-dec',
        '0-7 or sun-sat', '0-59'];
    month    CONSTANT text := '(0*[1-9]|0*1[0-2]|jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)';
    weekday  CONSTANT text := '(0*[0-7]|sun|mon|tue|wed|thu|fri|sat)';
    numbers  CONSTANT text[] := ARRAY['0*[0-5]?[0-9]', '0*([0-9]|1[0-9]|2[0-3])',
        '0*([1-9]|[12][0-9]|3[01])', month, weekday, '0*[0-5]?[0-9]'];
    extras   CONSTANT text[] := ARRAY['', '', '|l', '', '|l0*[0-7]|' || weekday || '#[1-5]', ''];
    -- As in Python: what else may count as space differs between locales.
    spaces   CONSTANT text := E' \t\n\r\f\v';
    plain    CONSTANT text := lower(btrim(expression, spaces));
    fields   text[] := CASE WHEN plain = '' THEN '{}'
        ELSE regexp_split_to_array(plain, '[' || spaces || ']+') END;
    item     text;
    wrong    text;
    problem  text;
BEGIN
    IF plain ~ '^@(hourly|daily|midnight|weekly|monthly|yearly|annually)$' THEN
        RETURN NULL;
    ELSIF plain ~ '^@' THEN
        RETURN format('no such name; there are @hourly, @daily, @midnight, @weekly, @monthly, '
            '@yearly, @annually; %s', example);
    ELSIF cardinality(fields) NOT IN (5, 6) THEN
        RETURN format('it has %s fields, not 5 (or 6, with seconds last); %s', cardinality(fields),
            example);
    END IF;
    -- What is wrong with six is looked at again with the first one last: elsewhere seconds are
    -- first.
    FOR attempt IN 1..2 LOOP
        wrong := NULL;
        <<each_field>>
        FOR i IN 1..cardinality(fields) LOOP
            CONTINUE WHEN fields[i] = '*' OR (i IN (3, 5) AND fields[i] = '?');
            FOREACH item IN ARRAY string_to_array(fields[i], ',') LOOP
                IF item !~ ('^((\*|' || numbers[i] || '(-' || numbers[i] || ')?)(/0*[1-9][0-9]*)?'
                        || extras[i] || ')$') THEN
                    wrong := format('%s %L is not valid: numbers are %s, with lists, ranges and '
                        'steps', labels[i], item, ranges[i]);
                    EXIT each_field;
                END IF;
            END LOOP;
        END LOOP;
        IF wrong IS NULL AND fields[5] ~ '[#l]' AND EXISTS (
            SELECT FROM unnest(string_to_array(fields[5], ',')) AS i (item)
             WHERE i.item !~ '[#l]')
        THEN
            wrong := format('weekday %L mixes weeks of the month (mon#1, l5) with every week',
                fields[5]);
        END IF;
        IF attempt = 1 THEN
            problem := wrong;
            EXIT WHEN wrong IS NULL OR cardinality(fields) = 5;
            fields := fields[2:6] || fields[1];
        ELSIF wrong IS NULL THEN
            problem := problem
                || format('; seconds come last: %L', array_to_string(fields, ' '));
        END IF;
    END LOOP;
    RETURN problem || '; ' || example;
END
$$;

-- The same of a solar timetable; it says what Python's parse_solar says (timetables/solar.py).
CREATE FUNCTION pgbeat.solar_problem(solar text) RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
DECLARE
    example  CONSTANT text := 'a solar timetable is "event latitude longitude", '
        'for example "sunset 59.91 10.75"';
    events   CONSTANT text[] := ARRAY['dawn_astronomical', 'dawn_nautical', 'dawn_civil',
        'sunrise', 'solar_noon', 'sunset', 'dusk_civil', 'dusk_nautical', 'dusk_astronomical'];
    labels   CONSTANT text[] := ARRAY['', 'latitude', 'longitude'];
    limits   CONSTANT integer[] := ARRAY[0, 90, 180];
    spaces   CONSTANT text := E' \t\n\r\f\v';
    plain    CONSTANT text := lower(btrim(solar, spaces));
    parts    CONSTANT text[] := CASE WHEN plain = '' THEN '{}'
        ELSE regexp_split_to_array(plain, '[' || spaces || ']+') END;
BEGIN
    IF cardinality(parts) <> 3 THEN
        RETURN format('it has %s parts, not 3; %s', cardinality(parts), example);
    ELSIF parts[1] <> ALL (events) THEN
        RETURN format('event %L is not known; there are %s; %s', parts[1],
            array_to_string(events, ', '), example);
    END IF;
    FOR i IN 2..3 LOOP
        IF (CASE WHEN parts[i] ~ '^[+-]?[0-9]{1,3}(\.[0-9]{1,15})?$'
            THEN abs(parts[i]::numeric) > limits[i] ELSE true END)
        THEN
            RETURN format('%s %L is not a number of degrees from -%s to %s; %s', labels[i],
                parts[i], limits[i], limits[i], example);
        END IF;
    END LOOP;
    RETURN NULL;
END
$$;

-- The same of a recurrence rule's shape; what it says, parse_rrule says in the same words
-- (timetables/rrule_parts.py), and more.
CREATE FUNCTION pgbeat.rrule_problem(rrule text) RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
DECLARE
    example     CONSTANT text := 'an rrule is KEY=VALUE;… as in RFC 5545, '
        'for example "FREQ=WEEKLY;BYDAY=MO,FR;BYHOUR=9"';
    frequencies CONSTANT text[] := ARRAY['SECONDLY', 'MINUTELY', 'HOURLY', 'DAILY', 'WEEKLY',
        'MONTHLY', 'YEARLY'];
    spaces      CONSTANT text := E' \t\n\r\f\v';
    frequency   text;
    line        text;
    part        text;
BEGIN
    IF rrule ~* 'tzid' THEN
        RETURN format('it names a zone (TZID); the zone is the schedule''s timezone; %s', example);
    END IF;
    FOREACH line IN ARRAY regexp_split_to_array(btrim(rrule, spaces), '[' || spaces || ']+') LOOP
        CONTINUE WHEN line = '';
        line := regexp_replace(line, '^rrule:', '', 'i');
        line := regexp_replace(line, '^dtstart:', 'DTSTART=', 'i');
        FOREACH part IN ARRAY regexp_split_to_array(regexp_replace(line, ';$', ''), ';') LOOP
            IF part !~ '^[A-Za-z-]+=[A-Za-z0-9+,-]+$' THEN
                RETURN format('part %L is not KEY=VALUE; %s', part, example);
            ELSIF frequency IS NULL AND part ~* '^freq=' THEN
                frequency := upper(split_part(part, '=', 2));
            END IF;
        END LOOP;
    END LOOP;
    IF frequency IS NULL THEN
        RETURN format('it has no FREQ; %s', example);
    ELSIF frequency <> ALL (frequencies) THEN
        RETURN format('FREQ %L is not known; there are %s; %s', frequency,
            array_to_string(frequencies, ', '), example);
    END IF;
    RETURN NULL;
END
$$;
"""

# As in 0001, and: what the new columns may say; a person's next_run is the due time itself.
CHECK_SCHEDULE = r"""
CREATE OR REPLACE FUNCTION pgbeat.check_schedule() RETURNS trigger
LANGUAGE plpgsql AS $$
DECLARE
    problem text;
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
    way     text;
BEGIN
    IF NEW.name IS NULL OR btrim(NEW.name) = '' THEN
        problem := 'a schedule needs a name';
    ELSIF length(NEW.name) > 200 THEN
        problem := format('a name has at most 200 characters, not %s', length(NEW.name));
    ELSIF NEW.source <> 'code' AND (NEW.name ~ '[[:cntrl:]/]' OR btrim(NEW.name) <> NEW.name) THEN
        problem := 'a name has no slash, no control character and no space at its ends';
    ELSIF NEW.name IN ('.', '..') THEN
        problem := format('a name is not %L, which browsers take out of an address', NEW.name);
    ELSIF NEW.namespace !~ '^[A-Za-z0-9_.-]{1,63}$' THEN
        problem := format('namespace %L is not one; use up to 63 letters, digits, ''_'', ''.'' '
            'and ''-''', NEW.namespace);
    ELSIF cardinality(chosen) = 2 THEN
        problem := format('it has both %s and %s; keep one', chosen[1], chosen[2]);
    ELSIF cardinality(chosen) > 2 THEN
        problem := format('it has %s; keep one', array_to_string(chosen, ', '));
    ELSIF cardinality(chosen) = 0 AND NEW.source <> 'code' THEN
        problem := 'it has no timetable; set cron (for example ''0 2 * * *'') or every (for '
            'example ''15 minutes''), or once_at, solar, rrule or after';
    ELSIF NEW.every <= interval '0' THEN
        problem := format('every is %s; it must be longer than nothing', NEW.every);
    ELSIF NEW.every > longest THEN
        problem := format('every is %s; it must be 36500 days or less', NEW.every);
    ELSIF extract(month FROM NEW.every) <> 0 OR extract(year FROM NEW.every) <> 0 THEN
        problem := format('every is %s; months and years have no fixed length, use cron '
            '(for example ''0 0 1 * *'')', NEW.every);
    ELSIF NEW.launcher = 'GenericLauncher' AND coalesce(btrim(NEW.task), '') = '' THEN
        problem := 'it has no task; set task to a registered task''s name '
            '(for example ''tasks.maintenance.backup'')';
    ELSIF NEW.launcher !~ '^[A-Za-z_][A-Za-z0-9_.:-]*$' THEN
        problem := format('launcher %L is not a launcher''s name; use the name that it is '
            'registered by', NEW.launcher);
    ELSIF NEW.task ~ '[[:cntrl:]]' OR NEW.task ~ '^\s|\s$' OR length(NEW.task) > 255 THEN
        problem := format('task %L is not a task''s name; use the name that it is registered by',
            left(NEW.task, 80));
    ELSIF NEW.queue !~ '\S' THEN
        problem := 'queue is empty; leave it NULL for the task''s own';
    ELSIF NEW.args IS NULL AND NEW.source <> 'code' THEN
        problem := 'args is NULL; it must be a JSON array, for example ''[]''';
    ELSIF jsonb_typeof(NEW.args) <> 'array' THEN
        problem := format('args is a JSON %s; it must be an array, for example ''[1, "two"]''',
            jsonb_typeof(NEW.args));
    ELSIF jsonb_typeof(NEW.kwargs) <> 'object' THEN
        problem := format('kwargs is a JSON %s; it must be an object, for example '
            '''{"area": "DK1"}''', jsonb_typeof(NEW.kwargs));
    ELSIF jsonb_typeof(NEW.options) <> 'object' THEN
        problem := format('options is a JSON %s; it must be an object of publish options, '
            'for example ''{"priority": 3}''', jsonb_typeof(NEW.options));
    ELSIF NEW.max_retries < 0 THEN
        problem := format('max_retries is %s; it must be 0 or more', NEW.max_retries);
    ELSIF NEW.retry_base < interval '0' OR NEW.retry_cap < NEW.retry_base THEN
        problem := 'retry_base must not be negative, and retry_cap not below it';
    ELSIF NEW.retry_cap > longest THEN
        problem := format('retry_cap is %s; it must be 36500 days or less', NEW.retry_cap);
    ELSIF NOT (NEW.retry_factor BETWEEN 1 AND 1000) THEN
        problem := format('retry_factor is %s; it must be 1 to 1000', NEW.retry_factor);
    ELSIF NEW.probe_after <= interval '0' OR NEW.probe_after > longest THEN
        problem := format('probe_after is %s; it must be longer than nothing, and 36500 days or '
            'less', NEW.probe_after);
    ELSIF NEW.condition_sql !~ '\S' THEN
        problem := 'condition_sql is empty; leave it NULL for no condition';
    ELSIF NOT (NEW.next_run BETWEEN first AND last) THEN
        problem := format('next_run is %s; it must be a time of the years 1 to 9999, for example '
            'now(), or NULL to have it computed', NEW.next_run);
    ELSIF NOT (NEW.paused_at BETWEEN first AND last) THEN
        problem := format('paused_at is %s; set it to now() to pause the schedule, until it is '
            'NULL again', NEW.paused_at);
    ELSIF NOT (NEW.once_at BETWEEN first AND last AND NEW.starts_at BETWEEN first AND last
            AND NEW.ends_at BETWEEN first AND last) THEN
        problem := 'once_at, starts_at and ends_at must be times of the years 1 to 9999';
    ELSIF NEW.ends_at < NEW.starts_at THEN
        problem := format('it ends (%s) before it starts (%s)', NEW.ends_at, NEW.starts_at);
    ELSIF NEW.max_runs < 1 THEN
        problem := format('max_runs is %s; it must be 1 or more', NEW.max_runs);
    ELSIF NOT (NEW.jitter BETWEEN interval '0' AND interval '366 days') THEN
        problem := format('jitter is %s; it must be 0 to 366 days', NEW.jitter);
    ELSIF NEW.catch_up NOT IN ('latest', 'all', 'none') THEN
        problem := format('catch_up is %L; it must be latest, all or none', NEW.catch_up);
    ELSIF NOT (NEW.catch_up_limit BETWEEN 1 AND 10000) THEN
        problem := format('catch_up_limit is %s; it must be 1 to 10000', NEW.catch_up_limit);
    ELSIF NOT (NEW.grace BETWEEN interval '0' AND longest) THEN
        problem := format('grace is %s; it must be 0 to 36500 days', NEW.grace);
    ELSIF NEW.overlap NOT IN ('allow', 'skip', 'queue_one', 'cancel_previous') THEN
        problem := format('overlap is %L; it must be allow, skip, queue_one or cancel_previous',
            NEW.overlap);
    ELSIF NOT (NEW.min_interval BETWEEN interval '0' AND longest) THEN
        problem := format('min_interval is %s; it must be 0 to 36500 days', NEW.min_interval);
    ELSIF NEW.after_outcome NOT IN ('completed', 'failed', 'finished') THEN
        problem := format('after_outcome is %L; it must be completed, failed or finished',
            NEW.after_outcome);
    ELSIF NEW.calendar IS NOT NULL AND NOT EXISTS (SELECT FROM pgbeat.calendars c
             WHERE c.namespace = NEW.namespace AND c.name = NEW.calendar) THEN
        problem := format('there is no calendar %L; `pgbeat calendars list` shows those there are',
            NEW.calendar);
    END IF;
    IF problem IS NULL AND NEW.cron IS NOT NULL AND (fresh OR NEW.cron IS DISTINCT FROM OLD.cron)
    THEN
        problem := pgbeat.cron_problem(NEW.cron);
        problem := format('cron %L: ', NEW.cron) || problem;
    END IF;
    IF problem IS NULL AND NEW.solar IS NOT NULL AND (fresh OR NEW.solar IS DISTINCT FROM OLD.solar)
    THEN
        problem := format('solar %L: ', NEW.solar) || pgbeat.solar_problem(NEW.solar);
    END IF;
    IF problem IS NULL AND NEW.rrule IS NOT NULL AND (fresh OR NEW.rrule IS DISTINCT FROM OLD.rrule)
    THEN
        problem := format('rrule %L: ', NEW.rrule) || pgbeat.rrule_problem(NEW.rrule);
    END IF;
    IF problem IS NULL AND NEW.after IS NOT NULL AND (fresh OR (NEW.after, NEW.name, NEW.namespace)
        IS DISTINCT FROM (OLD.after, OLD.name, OLD.namespace))
    THEN
        -- Two that close a circle at the same time come one after the other.
        PERFORM pg_advisory_xact_lock(hashtextextended('pgbeat.after', 0));
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
            problem := format('timezone %L is not known; use an IANA name, for example '
                '''Europe/Oslo'' or ''UTC''', NEW.timezone);
        END IF;
    END IF;
    IF problem IS NOT NULL THEN
        RAISE EXCEPTION 'schedule "%": %', coalesce(NEW.name, ''), problem
            USING ERRCODE = 'check_violation', SCHEMA = 'pgbeat', TABLE = 'schedules';
    END IF;

    IF NOT fresh THEN
        NEW.updated_at := now();
        IF NEW.enabled AND NOT OLD.enabled THEN
            NEW.disabled_reason := NULL;
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
        IF NEW.next_run IS DISTINCT FROM OLD.next_run AND NEW.ended = OLD.ended
            AND NEW.due_at IS NOT DISTINCT FROM OLD.due_at
        THEN
            NEW.due_at := NULL;
            NEW.waiting_for := NULL;
            NEW.ended := 0;
        END IF;
    END IF;
    RETURN NEW;
END
$$;

DROP TRIGGER check_schedule ON pgbeat.schedules;
CREATE TRIGGER check_schedule
    BEFORE INSERT OR UPDATE OF namespace, name, launcher, task, args, kwargs, options, queue,
        condition_sql, cron, every, once_at, solar, rrule, after, after_outcome, timezone,
        starts_at, ends_at, max_runs, jitter, calendar, catch_up, catch_up_limit, grace, overlap,
        min_interval, enabled, paused_at, max_retries, retry_base, retry_factor, retry_cap,
        probe_after, source
    ON pgbeat.schedules FOR EACH ROW EXECUTE FUNCTION pgbeat.check_schedule();

-- Apart: the leader sets next_run at every tick, and knows what it does.
CREATE FUNCTION pgbeat.check_next_run() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    IF NOT (NEW.next_run BETWEEN '0001-01-02 00:00+00' AND '9999-12-30 00:00+00') THEN
        RAISE EXCEPTION 'schedule "%": next_run is %; it must be a time of the years 1 to 9999, '
            'for example now(), or NULL to have it computed', NEW.name, NEW.next_run
            USING ERRCODE = 'check_violation', SCHEMA = 'pgbeat', TABLE = 'schedules';
    ELSIF NEW.ended = OLD.ended AND NEW.due_at IS NOT DISTINCT FROM OLD.due_at THEN
        NEW.due_at := NULL;
        NEW.waiting_for := NULL;
        NEW.ended := 0;
    END IF;
    RETURN NEW;
END
$$;

DROP TRIGGER check_next_run ON pgbeat.schedules;
CREATE TRIGGER check_next_run
    BEFORE UPDATE OF next_run ON pgbeat.schedules FOR EACH ROW
    WHEN (NEW.next_run IS DISTINCT FROM OLD.next_run
        AND (current_setting('pgbeat.leader', true) IS DISTINCT FROM 'on'
            OR NOT (NEW.next_run BETWEEN '0001-01-02 00:00+00' AND '9999-12-30 00:00+00')))
    EXECUTE FUNCTION pgbeat.check_next_run();
"""

# Many conditions in one round trip. One that fails is told apart, and stops none of the others;
# when the statement's time is up, the one that runs is told, and those behind it were not asked.
CONDITIONS = r"""
CREATE FUNCTION pgbeat.ask(conditions text[])
RETURNS TABLE (first_row text, code text, problem text)
LANGUAGE plpgsql AS $$
DECLARE
    condition text;
    asked     refcursor;
    answer    record;
BEGIN
    FOREACH condition IN ARRAY conditions LOOP
        first_row := NULL;
        code := NULL;
        problem := NULL;
        BEGIN
            asked := NULL;
            OPEN asked NO SCROLL FOR EXECUTE condition;
            FETCH asked INTO answer;
            IF FOUND THEN
                first_row := row_to_json(answer)::text;
            END IF;
            CLOSE asked;
        EXCEPTION
            WHEN query_canceled THEN
                code := '57014';
                problem := SQLERRM;
                RETURN NEXT;
                RETURN;
            WHEN OTHERS THEN
                GET STACKED DIAGNOSTICS code = RETURNED_SQLSTATE, problem = MESSAGE_TEXT;
        END;
        RETURN NEXT;
    END LOOP;
END
$$;
"""

# Who waits for a job hears of its end in the transaction that ends it. The updates are guarded: a
# statement that finds no row would be announced all the same.
JOB_ENDED = r"""
CREATE FUNCTION pgbeat.job_ended() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM pgbeat.schedules
                WHERE id = NEW.schedule_id AND waiting_for IS NOT NULL) THEN
        UPDATE pgbeat.schedules SET ended = ended + 1, next_run = clock_timestamp()
         WHERE id = NEW.schedule_id AND waiting_for IS NOT NULL;
    END IF;
    IF EXISTS (SELECT FROM pgbeat.schedules d JOIN pgbeat.schedules s
                ON d.namespace = s.namespace AND d.after = s.name
                WHERE s.id = NEW.schedule_id) THEN
        UPDATE pgbeat.schedules d
           SET ended = d.ended + 1, next_run = coalesce(d.next_run, clock_timestamp())
          FROM pgbeat.schedules s
         WHERE s.id = NEW.schedule_id AND d.namespace = s.namespace AND d.after = s.name
           AND d.enabled AND d.paused_at IS NULL
           AND (NEW.state = d.after_outcome
                OR d.after_outcome = 'finished' AND NEW.state IN ('completed', 'failed'));
        INSERT INTO pgbeat.ticks (schedule_id, schedule, trigger, due_at, outcome, reason)
        SELECT d.id, d.name, 'after', clock_timestamp(), 'skipped',
               format('after %s: its job %s %s', s.name, NEW.id,
                   CASE NEW.state WHEN 'completed' THEN 'completed' WHEN 'failed' THEN 'failed'
                   ELSE 'was ' || NEW.state END)
          FROM pgbeat.schedules s JOIN pgbeat.schedules d
               ON d.namespace = s.namespace AND d.after = s.name
         WHERE s.id = NEW.schedule_id AND d.enabled AND d.paused_at IS NULL
           AND NEW.state <> d.after_outcome
           AND NOT (d.after_outcome = 'finished' AND NEW.state IN ('completed', 'failed'));
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER job_ended AFTER UPDATE OF state ON pgbeat.jobs FOR EACH ROW
    WHEN (NEW.state IN ('completed', 'failed', 'cancelled', 'skipped')
        AND OLD.state IS DISTINCT FROM NEW.state AND NEW.schedule_id IS NOT NULL)
    EXECUTE FUNCTION pgbeat.job_ended();
"""


def upgrade() -> None:
    for script in (
        SCHEDULES, NAMESPACES, TICKS, PROBLEMS, CALENDARS, CHECK_SCHEDULE, CONDITIONS, JOB_ENDED,
    ):  # fmt: skip
        op.execute(script.strip())
