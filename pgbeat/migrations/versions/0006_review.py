"""The oldest programs that a schema admits, and what else running beside each other needs."""

from alembic import op

revision = "0006"
down_revision = "0005"

# A program of an older version may use the schema if its own newest migration is `minimum` or a
# later one. A migration that only adds leaves it as it is; one that takes away or changes the
# meaning of what the version before uses raises it: `UPDATE pgbeat.migrations SET minimum = …`.
# Programs up to 0005 accept their own version only, so the rule starts here.
MINIMUM = """
ALTER TABLE pgbeat.migrations ADD COLUMN minimum text;
UPDATE pgbeat.migrations SET minimum = '0006';
"""

# That a job must be approved stays with it and with its retries.
APPROVAL = """
ALTER TABLE pgbeat.jobs ADD COLUMN requires_approval boolean NOT NULL DEFAULT false;
UPDATE pgbeat.jobs SET requires_approval = true WHERE awaits_approval;
ALTER TABLE pgbeat.jobs ADD CONSTRAINT jobs_approved CHECK (
    NOT requires_approval OR approved_by IS NOT NULL
    OR state NOT IN ('pending', 'scheduled', 'running', 'completed'));
"""

# What became of the messages that started jobs. Only ever inserted into, so nothing that is locked
# elsewhere delays an acknowledgement.
MESSAGE_ENDS = """
CREATE TABLE pgbeat.message_ends (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job_id      uuid NOT NULL,
    how         text NOT NULL,
    queue       text,                             -- of one that no worker accepted
    consumer_id integer,                          -- of one that was accepted …
    worker_id   integer,                          -- … NULL: by a worker that records nothing
    ended_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT message_ends_how CHECK (how IN ('accepted', 'purged', 'deleted', 'expired'))
);
CREATE INDEX message_ends_of_job ON pgbeat.message_ends (job_id, id);
CREATE INDEX message_ends_unaccepted ON pgbeat.message_ends (id) WHERE how <> 'accepted';
"""

# Why a running job is to be cancelled, until it has ended.
CANCEL_REASON = """
ALTER TABLE pgbeat.jobs ADD COLUMN cancel_reason text;
"""

# What a task can ask about the due time that it is for.
DUE_TIMES = """
ALTER TABLE pgbeat.jobs ADD COLUMN trigger text, ADD COLUMN interval_start timestamptz;
"""

# Which app's code made a row. NULL: not known, so no beat removes it.
SCHEDULE_APPS = """
ALTER TABLE pgbeat.schedules ADD COLUMN app text;
"""

# Schedules that were made in the console, as the audit calls it.
SOURCES = """
ALTER TABLE pgbeat.schedules
    DROP CONSTRAINT schedules_source,
    ADD CONSTRAINT schedules_source CHECK (
        source IN ('sql', 'cli', 'api', 'page', 'file', 'code', 'import'));
"""

# What webhooks are told has the names that the API has for the same.
PAYLOADS = """
CREATE OR REPLACE FUNCTION pgbeat.tell_execution() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM pgbeat.webhooks WHERE enabled) THEN
        PERFORM pgbeat.tell(j.namespace, 'job.run.' || NEW.state, jsonb_build_object(
            'id', NEW.id, 'job_id', NEW.job_id, 'execution_number', NEW.number,
            'status', NEW.state, 'lost', NEW.lost, 'started_at', NEW.started_at,
            'completed_at', NEW.finished_at, 'duration_ms', round(NEW.duration_ms::numeric),
            'cpu_time_ms', round(NEW.cpu_time_ms::numeric), 'memory_peak_mb', NEW.memory_peak_mb,
            'retry_attempt', NEW.retry_attempt, 'worker', NEW.worker, 'result', NEW.result,
            'error_message', NEW.error, 'artifacts', coalesce(NEW.metadata -> 'artifacts', '[]'),
            'metadata', NEW.metadata - 'artifacts', 'job', pgbeat.job_facts(j)))
           FROM pgbeat.jobs j WHERE j.id = NEW.job_id AND j.task <> 'pgbeat.deliver';
    END IF;
    RETURN NULL;
END
$$;

CREATE FUNCTION pgbeat.job_facts(j pgbeat.jobs) RETURNS jsonb
LANGUAGE sql STABLE AS $$
    SELECT jsonb_build_object(
        'id', j.id, 'task', j.task, 'schedule', j.schedule, 'due_at', j.due_at,
        'template', j.template, 'queue', j.queue, 'lane', j.lane, 'priority', j.priority,
        'tags', to_jsonb(j.tags), 'group_id', j.group_id, 'unique_key', j.unique_key,
        'attempt', j.attempt, 'max_attempts', j.max_attempts, 'retry_of', j.retry_of,
        'job_source', j.job_source, 'created_by', j.created_by,
        'is_system_job', j.is_system_job, 'created_at', j.created_at)
$$;

CREATE OR REPLACE FUNCTION pgbeat.tell_job() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgbeat.tell(NEW.namespace, 'job.failed',
        pgbeat.job_facts(NEW) || jsonb_build_object(
            'status', NEW.state, 'started_at', NEW.started_at, 'completed_at', NEW.finished_at,
            'worker', NEW.worker, 'error', NEW.error));
    RETURN NULL;
END
$$;

CREATE OR REPLACE FUNCTION pgbeat.tell_schedule() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgbeat.tell(NEW.namespace, 'schedule.disabled', jsonb_build_object(
        'id', NEW.id, 'name', NEW.name, 'task', NEW.task, 'owner', NEW.owner,
        'disabled_reason', NEW.disabled_reason, 'retry_count', NEW.retry_count,
        'last_failure', NEW.last_failure, 'last_error', NEW.last_error));
    RETURN NULL;
END
$$;

CREATE OR REPLACE FUNCTION pgbeat.tell_tick() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgbeat.tell(s.namespace, 'tick.failed', jsonb_build_object(
        'schedule_name', NEW.schedule, 'task', s.task, 'run_time', NEW.due_at,
        'decided_at', NEW.decided_at, 'outcome', NEW.outcome, 'trigger', NEW.trigger,
        'error', NEW.error))
       FROM pgbeat.schedules s WHERE s.id = NEW.schedule_id;
    RETURN NULL;
END
$$;
"""

# Each condition is undone once it has answered: what it sets is not there for the next.
CONDITIONS = """
CREATE OR REPLACE FUNCTION pgbeat.ask(conditions text[])
RETURNS TABLE (first_row text, code text, problem text)
LANGUAGE plpgsql AS $$
DECLARE
    condition   text;
    asked       refcursor;
    answer      record;
    has_answered boolean;
BEGIN
    FOREACH condition IN ARRAY conditions LOOP
        first_row := NULL;
        code := NULL;
        problem := NULL;
        has_answered := false;
        BEGIN
            asked := NULL;
            OPEN asked NO SCROLL FOR EXECUTE condition;
            FETCH asked INTO answer;
            IF FOUND THEN
                first_row := row_to_json(answer)::text;
            END IF;
            CLOSE asked;
            has_answered := true;
            RAISE EXCEPTION USING ERRCODE = 'PB001';
        EXCEPTION
            WHEN query_canceled THEN
                code := '57014';
                problem := SQLERRM;
                RETURN NEXT;
                RETURN;
            WHEN OTHERS THEN
                IF NOT has_answered OR SQLSTATE <> 'PB001' THEN
                    GET STACKED DIAGNOSTICS code = RETURNED_SQLSTATE, problem = MESSAGE_TEXT;
                END IF;
        END;
        RETURN NEXT;
    END LOOP;
END
$$;
"""

# How the jobs of a schedule came out is looked up here: the newest end, and those since. A job that
# is tried again is no end.
OUTCOMES = """
CREATE INDEX jobs_outcomes ON pgbeat.jobs (state, schedule_id, finished_at)
 WHERE schedule_id IS NOT NULL AND retried_by IS NULL AND state IN ('completed', 'failed');

-- A worker's namespace, and the tasks that it has registered; NULL where it does not say.
ALTER TABLE pgbeat.workers ADD namespace text, ADD tasks text[];
"""

# A schedule whose jobs fail is paused in the transaction that ends the last of them. Failures count
# from the last time that somebody let it go on.
PAUSING = """
ALTER TABLE pgbeat.schedules
    ADD pause_after_failures integer,
    ADD paused_reason text,
    ADD failures_from timestamptz,
    ADD CONSTRAINT schedules_pause_after_failures
        CHECK (pause_after_failures BETWEEN 1 AND 1000);

CREATE FUNCTION pgbeat.refuse_pause_after_failures() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'schedule "%": pause_after_failures is %; it must be 1 to 1000, or NULL '
        'for never',
        NEW.name, NEW.pause_after_failures
        USING ERRCODE = 'check_violation', SCHEMA = 'pgbeat', TABLE = 'schedules';
END
$$;
CREATE TRIGGER check_pause_after_failures
    BEFORE INSERT OR UPDATE OF pause_after_failures ON pgbeat.schedules FOR EACH ROW
    WHEN (NEW.pause_after_failures NOT BETWEEN 1 AND 1000)
    EXECUTE FUNCTION pgbeat.refuse_pause_after_failures();

CREATE FUNCTION pgbeat.count_failures_anew() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    NEW.failures_from := clock_timestamp();
    IF NEW.paused_at IS NULL THEN
        NEW.paused_reason := NULL;
    END IF;
    RETURN NEW;
END
$$;
CREATE TRIGGER count_failures_anew BEFORE UPDATE OF paused_at, enabled ON pgbeat.schedules
    FOR EACH ROW
    WHEN (OLD.paused_at IS NOT NULL AND NEW.paused_at IS NULL OR NEW.enabled AND NOT OLD.enabled)
    EXECUTE FUNCTION pgbeat.count_failures_anew();

-- Two jobs that end at the same time come one after the other: the second sees the first. Ending
-- the job comes first: where the row can't be written, the schedule goes on.
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
CREATE TRIGGER pause_failing AFTER UPDATE OF state ON pgbeat.jobs FOR EACH ROW
    WHEN (NEW.state = 'failed' AND OLD.state <> 'failed' AND NEW.retried_by IS NULL
        AND NEW.schedule_id IS NOT NULL)
    EXECUTE FUNCTION pgbeat.pause_failing();
"""

EVENTS = """
ALTER TABLE pgbeat.webhooks
    DROP CONSTRAINT webhooks_events,
    ADD CONSTRAINT webhooks_events CHECK (cardinality(events) > 0 AND events <@ ARRAY[
        'job.run.completed', 'job.run.failed', 'job.run.skipped', 'job.failed',
        'schedule.disabled', 'schedule.paused', 'tick.failed', 'tick.skipped']);

CREATE FUNCTION pgbeat.tell_pause() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgbeat.tell(NEW.namespace, 'schedule.paused', jsonb_build_object(
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
CREATE TRIGGER tell_pause AFTER UPDATE OF paused_at ON pgbeat.schedules FOR EACH ROW
    WHEN (OLD.paused_at IS NULL AND NEW.paused_at IS NOT NULL)
    EXECUTE FUNCTION pgbeat.tell_pause();

-- Skips may come every few seconds: of each schedule one is told in an hour, with how many there
-- were since the one before. Where another transaction is about to tell, this one need not: nobody
-- waits.
CREATE TABLE pgbeat.skip_notices (
    schedule_id bigint PRIMARY KEY,
    told_at     timestamptz NOT NULL,
    untold      bigint NOT NULL DEFAULT 0             -- skips since then
);

CREATE FUNCTION pgbeat.tell_skip() RETURNS trigger
LANGUAGE plpgsql AS $$
DECLARE
    schedule record;
    before   record;
BEGIN
    SELECT s.namespace, s.task INTO schedule FROM pgbeat.schedules s
     WHERE s.id = NEW.schedule_id AND EXISTS (
           SELECT FROM pgbeat.webhooks w
            WHERE w.enabled AND w.namespace = s.namespace AND 'tick.skipped' = ANY (w.events));
    IF NOT FOUND OR NOT pg_try_advisory_xact_lock(
        hashtextextended('pgbeat.skip_notices', NEW.schedule_id))
    THEN
        RETURN NULL;
    END IF;
    SELECT n.told_at, n.untold INTO before FROM pgbeat.skip_notices n
     WHERE n.schedule_id = NEW.schedule_id;
    IF before.told_at > clock_timestamp() - interval '1 hour' THEN
        UPDATE pgbeat.skip_notices SET untold = untold + 1 WHERE schedule_id = NEW.schedule_id;
        RETURN NULL;
    END IF;
    INSERT INTO pgbeat.skip_notices (schedule_id, told_at)
    VALUES (NEW.schedule_id, clock_timestamp())
    ON CONFLICT (schedule_id) DO UPDATE SET told_at = excluded.told_at, untold = 0;
    PERFORM pgbeat.tell(schedule.namespace, 'tick.skipped', jsonb_build_object(
        'schedule_name', NEW.schedule, 'task', schedule.task, 'run_time', NEW.due_at,
        'decided_at', NEW.decided_at, 'outcome', NEW.outcome, 'trigger', NEW.trigger,
        'reason', NEW.reason,
        'skips', 1 + coalesce(before.untold, 0), 'since', before.told_at));
    RETURN NULL;
END
$$;
CREATE TRIGGER tell_skip AFTER INSERT ON pgbeat.ticks FOR EACH ROW
    WHEN (NEW.outcome = 'skipped') EXECUTE FUNCTION pgbeat.tell_skip();

CREATE FUNCTION pgbeat.forget_skips() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM pgbeat.skip_notices n USING gone WHERE n.schedule_id = gone.id;
    RETURN NULL;
END
$$;
CREATE TRIGGER forget_skips AFTER DELETE ON pgbeat.schedules
    REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION pgbeat.forget_skips();
"""

# What people write on schedules and jobs to find them again; pgbeat itself goes by none of it.
DETAILS = r"""
ALTER TABLE pgbeat.schedules
    ADD description text,
    ADD labels jsonb NOT NULL DEFAULT '{}',
    ADD metadata jsonb NOT NULL DEFAULT '{}',
    ADD CONSTRAINT schedules_labels_object CHECK (jsonb_typeof(labels) = 'object'),
    ADD CONSTRAINT schedules_metadata_object CHECK (jsonb_typeof(metadata) = 'object');
ALTER TABLE pgbeat.jobs
    ADD description text,
    ADD labels jsonb NOT NULL DEFAULT '{}',
    ADD metadata jsonb NOT NULL DEFAULT '{}',
    ADD CONSTRAINT jobs_labels_object CHECK (jsonb_typeof(labels) = 'object'),
    ADD CONSTRAINT jobs_metadata_object CHECK (jsonb_typeof(metadata) = 'object');
CREATE OR REPLACE FUNCTION pgbeat.job_facts(j pgbeat.jobs) RETURNS jsonb
LANGUAGE sql STABLE AS $$
    SELECT jsonb_build_object(
        'id', j.id, 'task', j.task, 'schedule', j.schedule, 'due_at', j.due_at,
        'template', j.template, 'queue', j.queue, 'lane', j.lane, 'priority', j.priority,
        'tags', to_jsonb(j.tags), 'group_id', j.group_id, 'unique_key', j.unique_key,
        'attempt', j.attempt, 'max_attempts', j.max_attempts, 'retry_of', j.retry_of,
        'job_source', j.job_source, 'created_by', j.created_by,
        'is_system_job', j.is_system_job, 'created_at', j.created_at, 'labels', j.labels)
$$;
CREATE INDEX schedules_labels ON pgbeat.schedules USING gin (labels jsonb_path_ops)
 WHERE labels <> '{}';
CREATE INDEX jobs_labels ON pgbeat.jobs USING gin (labels jsonb_path_ops) WHERE labels <> '{}';

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

-- Before check_schedule, by their names.
CREATE FUNCTION pgbeat.check_details() RETURNS trigger
LANGUAGE plpgsql AS $$
DECLARE
    problem CONSTANT text := pgbeat.details_problem(NEW.description, NEW.labels, NEW.metadata);
BEGIN
    IF problem IS NOT NULL THEN
        RAISE EXCEPTION '%: %',
            CASE TG_TABLE_NAME WHEN 'jobs' THEN 'job ' || NEW.id
                 ELSE format('schedule "%s"', coalesce(to_jsonb(NEW) ->> 'name', '')) END, problem
            USING ERRCODE = 'check_violation', SCHEMA = 'pgbeat', TABLE = TG_TABLE_NAME;
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
"""

# Until when a worker lives whose session is not its own; NULL: as long as its session's lock.
WORKER_LEASES = """
ALTER TABLE pgbeat.workers ADD COLUMN alive_until timestamptz;
"""

# When a job's message was given to a broker that is not this database; NULL: it never was.
ELSEWHERE = """
ALTER TABLE pgbeat.jobs ADD COLUMN elsewhere_at timestamptz;
"""


# Consumers that wait for messages and publishers see each other by locks. One for each queue would
# fill the server's lock table where processes use thousands: queues share 64 of each kind. A
# session takes a lock as often as it waits for queues of it, and needs one entry. Publishers also
# heed sessions that began to wait before this migration, by their queues' own locks.
# Locks: 1885823594 a consumer waits, 1885823601 somebody publishes; 1885823593 it waited before.
WAITING = """
CREATE OR REPLACE FUNCTION pgbeat.announce_queue(queue bigint, payload text DEFAULT '')
RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    slot CONSTANT integer := (queue % 64)::integer;
    own  CONSTANT integer := (queue % 2147483647)::integer;
BEGIN
    PERFORM pg_advisory_xact_lock_shared(1885823601, slot);
    IF pg_try_advisory_lock(1885823594, slot) THEN
        PERFORM pg_advisory_unlock(1885823594, slot);
        IF pg_try_advisory_lock(1885823593, own) THEN
            PERFORM pg_advisory_unlock(1885823593, own);
            RETURN;
        END IF;
    END IF;
    PERFORM pg_notify('pgbeat_queue_' || queue, payload);
END
$$;

CREATE OR REPLACE FUNCTION pgbeat.await_queues(queues bigint[]) RETURNS SETOF bigint
LANGUAGE plpgsql AS $$
DECLARE
    slot integer;
    mine bigint[];
BEGIN
    FOR slot, mine IN SELECT (q.queue % 64)::integer, array_agg(q.queue)
          FROM unnest(queues) AS q (queue) GROUP BY 1 LOOP
        IF NOT pg_try_advisory_lock_shared(1885823594, slot) THEN
            CONTINUE;
        END IF;
        IF pg_try_advisory_lock(1885823601, slot) THEN
            PERFORM pg_advisory_unlock(1885823601, slot);
            PERFORM pg_advisory_lock_shared(1885823594, slot)
               FROM generate_series(2, cardinality(mine));
            RETURN QUERY SELECT unnest(mine);
        ELSE
            PERFORM pg_advisory_unlock_shared(1885823594, slot);
        END IF;
    END LOOP;
END
$$;

CREATE OR REPLACE FUNCTION pgbeat.leave_queues(queues bigint[]) RETURNS void
LANGUAGE sql AS $$
    SELECT pg_advisory_unlock_shared(1885823594, (queue % 64)::integer)
      FROM unnest(queues) AS q (queue)
$$;
"""

# What the stock transport has delivered and never deletes: no other row is in this index, which
# therefore costs nothing.
USELESS = """
CREATE FUNCTION pgbeat.index_useless(message_table regclass) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('CREATE INDEX IF NOT EXISTS %I ON %s (id)
        WHERE NOT visible AND claimed_by IS NULL AND available_at IS NULL',
        (SELECT relname FROM pg_class WHERE oid = message_table) || '_useless', message_table);
END
$$;

CREATE OR REPLACE FUNCTION pgbeat.adopt_broker(
    queue_table text DEFAULT 'kombu_queue', message_table text DEFAULT 'kombu_message'
) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgbeat.adopt_broker_tables(queue_table, message_table);
    PERFORM pgbeat.add_job_ids(quote_ident(message_table)::regclass,
        quote_ident(message_table || '_dead')::regclass);
    PERFORM pgbeat.index_useless(quote_ident(message_table)::regclass);
END
$$;

DO $$
DECLARE
    adopted regclass;
BEGIN
    FOR adopted IN SELECT tgrelid::regclass FROM pg_trigger WHERE tgname = 'pgbeat_announce' LOOP
        PERFORM pgbeat.index_useless(adopted);
    END LOOP;
END
$$;
"""

# Every due time waits for the job before it.
BUFFER_ALL = """
ALTER TABLE pgbeat.schedules
    DROP CONSTRAINT schedules_policies,
    ADD CONSTRAINT schedules_policies CHECK (
        after_outcome IN ('completed', 'failed', 'finished')
        AND catch_up IN ('latest', 'all', 'none')
        AND overlap IN ('allow', 'skip', 'queue_one', 'buffer_all', 'cancel_previous'));

CREATE FUNCTION pgbeat.check_overlap() RETURNS trigger
LANGUAGE plpgsql AS $$
DECLARE
    problem text;
BEGIN
    IF NEW.overlap NOT IN ('allow', 'skip', 'queue_one', 'buffer_all', 'cancel_previous') THEN
        problem := format('overlap is %L; it must be allow, skip, queue_one, buffer_all or '
            'cancel_previous', NEW.overlap);
    ELSIF NEW.overlap = 'buffer_all' AND NEW.after IS NOT NULL THEN
        problem := 'overlap buffer_all is for schedules with a timetable, and this one has after; '
            'use queue_one';
    END IF;
    IF problem IS NOT NULL THEN
        RAISE EXCEPTION 'schedule "%": %', coalesce(NEW.name, ''), problem
            USING ERRCODE = 'check_violation', SCHEMA = 'pgbeat', TABLE = 'schedules';
    END IF;
    RETURN NEW;
END
$$;
CREATE TRIGGER check_overlap BEFORE INSERT OR UPDATE OF overlap, after ON pgbeat.schedules
    FOR EACH ROW EXECUTE FUNCTION pgbeat.check_overlap();

-- What check_schedule said of it is check_overlap's now.
DO $$
DECLARE
    definition CONSTANT text := pg_get_functiondef('pgbeat.check_schedule()'::regprocedure);
    changed    CONSTANT text := replace(definition,
        $q$NEW.overlap NOT IN ('allow', 'skip', 'queue_one', 'cancel_previous')$q$, 'false');
BEGIN
    IF changed = definition THEN
        RAISE EXCEPTION 'pgbeat.check_schedule is not as migration 0003 left it';
    END IF;
    EXECUTE changed;
END
$$;
"""

# Several jobs of one tick. Schedules that come after theirs are due once, when the last of them has
# ended: two that end at the same time come one after the other, so that the second sees the first.
# Of those that one statement ended, the one of the highest id counts.
LAUNCHED_TOGETHER = r"""
ALTER TABLE pgbeat.jobs ADD run_key text;
CREATE INDEX jobs_launched_together ON pgbeat.jobs (schedule_id, due_at, trigger)
 WHERE run_key IS NOT NULL;
ALTER TABLE pgbeat.ticks
    ADD more_job_ids uuid[],    -- those beside job_id
    ADD CONSTRAINT ticks_more_jobs CHECK (more_job_ids IS NULL
        OR outcome = 'launched' AND cardinality(more_job_ids) BETWEEN 1 AND 99);

-- How the jobs of a tick came out together, once the last has ended; NULL before, and for those
-- that ended with the last. A job that is tried again has not ended.
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

CREATE OR REPLACE FUNCTION pgbeat.job_ended() RETURNS trigger
LANGUAGE plpgsql AS $$
DECLARE
    outcome text := NEW.state;
BEGIN
    IF EXISTS (SELECT FROM pgbeat.schedules
                WHERE id = NEW.schedule_id AND waiting_for IS NOT NULL) THEN
        UPDATE pgbeat.schedules SET ended = ended + 1, next_run = clock_timestamp()
         WHERE id = NEW.schedule_id AND waiting_for IS NOT NULL;
    END IF;
    IF EXISTS (SELECT FROM pgbeat.schedules d JOIN pgbeat.schedules s
                ON d.namespace = s.namespace AND d.after = s.name
                WHERE s.id = NEW.schedule_id) THEN
        IF NEW.run_key IS NOT NULL THEN
            outcome := pgbeat.joint_outcome(NEW);
            IF outcome IS NULL THEN
                RETURN NULL;
            END IF;
        END IF;
        UPDATE pgbeat.schedules d
           SET ended = d.ended + 1, next_run = coalesce(d.next_run, clock_timestamp())
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

CREATE OR REPLACE FUNCTION pgbeat.job_facts(j pgbeat.jobs) RETURNS jsonb
LANGUAGE sql STABLE AS $$
    SELECT jsonb_build_object(
        'id', j.id, 'task', j.task, 'schedule', j.schedule, 'due_at', j.due_at,
        'run_key', j.run_key, 'template', j.template, 'queue', j.queue, 'lane', j.lane,
        'priority', j.priority, 'tags', to_jsonb(j.tags), 'group_id', j.group_id,
        'unique_key', j.unique_key, 'attempt', j.attempt, 'max_attempts', j.max_attempts,
        'retry_of', j.retry_of, 'job_source', j.job_source, 'created_by', j.created_by,
        'is_system_job', j.is_system_job, 'created_at', j.created_at, 'labels', j.labels)
$$;
"""


def upgrade() -> None:
    for script in (
        MINIMUM,
        APPROVAL,
        MESSAGE_ENDS,
        CANCEL_REASON,
        DUE_TIMES,
        SCHEDULE_APPS,
        SOURCES,
        PAYLOADS,
        CONDITIONS,
        BUFFER_ALL,
        OUTCOMES,
        PAUSING,
        EVENTS,
        DETAILS,
        WORKER_LEASES,
        WAITING,
        USELESS,
        ELSEWHERE,
        LAUNCHED_TOGETHER,
    ):
        op.execute(script.strip())
