"""Jobs: executions, lanes, groups, templates, webhooks; who lives, and what may follow what."""

from alembic import op

revision = "0004"
down_revision = "0003"

JOBS = """
-- What the checks below refuse: a state that somebody wrote by hand.
UPDATE pgbeat.jobs SET started_at = created_at WHERE state = 'running' AND started_at IS NULL;
UPDATE pgbeat.jobs SET finished_at = coalesce(started_at, created_at)
 WHERE state IN ('completed', 'failed', 'cancelled', 'skipped') AND finished_at IS NULL;

ALTER TABLE pgbeat.jobs
    ADD namespace       text NOT NULL DEFAULT 'default',
    ADD options         jsonb NOT NULL DEFAULT '{}',
    ADD template        text,
    ADD run_at          timestamptz,          -- not before
    ADD dispatched_at   timestamptz DEFAULT now(),  -- given to the broker; it has its lane's slot
    ADD lane            text,
    ADD priority        smallint NOT NULL DEFAULT 0,
    ADD position        numeric,
    ADD tags            text[] NOT NULL DEFAULT '{}',
    ADD resources       jsonb NOT NULL DEFAULT '{}',
    ADD attempt         integer NOT NULL DEFAULT 1,
    ADD max_attempts    integer NOT NULL DEFAULT 1,
    ADD retry_base      interval NOT NULL DEFAULT '1 minute',
    ADD retry_cap       interval NOT NULL DEFAULT '1 hour',
    ADD retry_of        uuid,
    ADD retried_by      uuid,
    ADD group_id        uuid,
    ADD group_position  integer,
    ADD awaits_turn     boolean NOT NULL DEFAULT false,  -- those before it in its group go first
    ADD unique_key      text,
    ADD awaits_approval boolean NOT NULL DEFAULT false,
    ADD approved_by     text,
    ADD approved_at     timestamptz,
    ADD cancel_requested_by text,
    ADD cancel_requested_at timestamptz,
    ADD checkpoint      jsonb,
    ADD CONSTRAINT jobs_started CHECK (state <> 'running' OR started_at IS NOT NULL),
    ADD CONSTRAINT jobs_finished CHECK (
        state NOT IN ('completed', 'failed', 'cancelled', 'skipped') OR finished_at IS NOT NULL),
    ADD CONSTRAINT jobs_approval CHECK (NOT awaits_approval OR state NOT IN ('pending',
        'scheduled', 'running')),
    ADD CONSTRAINT jobs_turn CHECK (NOT awaits_turn OR dispatched_at IS NULL),
    ADD CONSTRAINT jobs_attempts CHECK (attempt >= 1 AND max_attempts >= 1),
    ADD CONSTRAINT jobs_backoff CHECK (
        retry_base >= interval '0' AND retry_cap >= retry_base
        AND retry_cap <= interval '36500 days'),
    ADD CONSTRAINT jobs_options_object CHECK (jsonb_typeof(options) = 'object'),
    ADD CONSTRAINT jobs_resources_object CHECK (jsonb_typeof(resources) = 'object');

-- Those that there are were given to the broker when they were made.
ALTER TABLE pgbeat.jobs ALTER dispatched_at DROP DEFAULT;
UPDATE pgbeat.jobs j SET namespace = s.namespace FROM pgbeat.schedules s
 WHERE s.id = j.schedule_id AND s.namespace <> 'default';

-- Not in the column's definition: it would have every row written anew.
ALTER TABLE pgbeat.jobs ALTER position SET DEFAULT extract(epoch FROM clock_timestamp());

-- Not by the state: to a planner whose statistics are of before much was launched, an index on
-- states seems the quickest way to a job, even where its id is given.
UPDATE pgbeat.jobs SET finished_at = NULL
 WHERE state IN ('pending', 'scheduled', 'running', 'paused') AND finished_at IS NOT NULL;
DROP INDEX pgbeat.jobs_unfinished;
CREATE INDEX jobs_unfinished ON pgbeat.jobs (schedule_id)
    WHERE schedule_id IS NOT NULL AND finished_at IS NULL;
-- One that waits: for its lane, or to be due.
CREATE INDEX jobs_waiting ON pgbeat.jobs (namespace, lane, priority DESC, position, created_at)
    WHERE lane IS NOT NULL AND dispatched_at IS NULL AND state = 'pending' AND NOT awaits_turn;
CREATE INDEX jobs_to_come ON pgbeat.jobs (namespace, run_at)
    WHERE dispatched_at IS NULL AND state = 'scheduled' AND NOT awaits_turn;
-- One that has a slot, and those that had: rates are counted over them.
CREATE INDEX jobs_in_lane ON pgbeat.jobs (namespace, lane)
    WHERE lane IS NOT NULL AND dispatched_at IS NOT NULL
        AND state IN ('pending', 'scheduled', 'running');
CREATE INDEX jobs_of_lane ON pgbeat.jobs (namespace, lane, dispatched_at)
    WHERE lane IS NOT NULL AND dispatched_at IS NOT NULL;
CREATE INDEX jobs_of_group ON pgbeat.jobs (group_id, state, group_position)
    WHERE group_id IS NOT NULL;
CREATE INDEX jobs_by_key ON pgbeat.jobs (namespace, unique_key, created_at)
    WHERE unique_key IS NOT NULL;
CREATE UNIQUE INDEX jobs_one_of_key ON pgbeat.jobs (namespace, unique_key)
    WHERE unique_key IS NOT NULL AND state IN ('pending', 'scheduled', 'running', 'paused');
CREATE INDEX jobs_retries ON pgbeat.jobs (retry_of) WHERE retry_of IS NOT NULL;
CREATE INDEX jobs_newest ON pgbeat.jobs (namespace, created_at, id);
CREATE INDEX jobs_by_state ON pgbeat.jobs (namespace, state, created_at, id);
CREATE INDEX jobs_by_task ON pgbeat.jobs (namespace, task, created_at, id);
CREATE INDEX jobs_by_lane ON pgbeat.jobs (namespace, lane, created_at, id)
    WHERE lane IS NOT NULL;
CREATE INDEX jobs_by_template ON pgbeat.jobs (namespace, template, created_at, id)
    WHERE template IS NOT NULL;
CREATE INDEX jobs_by_creator ON pgbeat.jobs (namespace, created_by, created_at, id);
"""

# Which state may follow which, whoever writes. The condition is the trigger's own: no call is made
# for what is right.
STATES = """
CREATE FUNCTION pgbeat.refuse_transition() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'job % can''t go from % to %', OLD.id, OLD.state, NEW.state
        USING ERRCODE = 'check_violation', SCHEMA = 'pgbeat', TABLE = 'jobs';
END
$$;

CREATE TRIGGER refuse_transition BEFORE UPDATE OF state ON pgbeat.jobs FOR EACH ROW
    WHEN (OLD.state <> NEW.state AND (
        OLD.state IN ('completed', 'failed', 'cancelled', 'skipped')
        OR OLD.state = 'paused' AND NEW.state IN ('running', 'completed')
        OR OLD.state = 'running' AND NEW.state = 'paused'))
    EXECUTE FUNCTION pgbeat.refuse_transition();
"""

# A retry goes on where the job ended: those who wait for the job wait for the last of them.
ENDED = """
DROP TRIGGER job_ended ON pgbeat.jobs;
CREATE TRIGGER job_ended AFTER UPDATE OF state ON pgbeat.jobs FOR EACH ROW
    WHEN (NEW.state IN ('completed', 'failed', 'cancelled', 'skipped')
        AND OLD.state IS DISTINCT FROM NEW.state AND NEW.schedule_id IS NOT NULL
        AND NEW.retried_by IS NULL)
    EXECUTE FUNCTION pgbeat.job_ended();
"""

EXECUTIONS = """
CREATE TABLE pgbeat.executions (
    id               uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    job_id           uuid NOT NULL,
    schedule_id      bigint,
    number           integer NOT NULL,
    state            text NOT NULL DEFAULT 'running',
    lost             boolean NOT NULL DEFAULT false,  -- its process died, or its machine
    retry_attempt    integer NOT NULL DEFAULT 0,      -- Celery's own retries before it
    worker           text NOT NULL,
    worker_id        integer,
    pid              integer,
    acks_late        boolean NOT NULL DEFAULT false,
    started_at       timestamptz NOT NULL DEFAULT now(),
    finished_at      timestamptz,
    duration_ms      double precision,
    cpu_time_ms      double precision,
    memory_peak_mb   double precision,
    progress_done    double precision,
    progress_total   double precision,
    progress_message text,
    result           text,                            -- a summary
    error            text,
    traceback        text,
    metadata         jsonb NOT NULL DEFAULT '{}',     -- what the task reported
    CONSTRAINT executions_number UNIQUE (job_id, number),
    CONSTRAINT executions_state CHECK (
        state IN ('running', 'completed', 'failed', 'cancelled', 'skipped')),
    CONSTRAINT executions_finished CHECK ((state = 'running') = (finished_at IS NULL)),
    CONSTRAINT executions_lost CHECK (NOT lost OR state IN ('failed', 'cancelled')),
    CONSTRAINT executions_metadata_object CHECK (jsonb_typeof(metadata) = 'object')
) WITH (fillfactor = 85);

CREATE INDEX executions_running ON pgbeat.executions (worker_id)
    WHERE worker_id IS NOT NULL AND state = 'running';
CREATE INDEX executions_of_schedule ON pgbeat.executions (schedule_id, started_at)
    WHERE schedule_id IS NOT NULL;
CREATE INDEX executions_by_time ON pgbeat.executions (started_at);

-- A worker is alive as long as one of its sessions holds the advisory lock (1885823603, id).
CREATE TABLE pgbeat.workers (
    id            integer GENERATED BY DEFAULT AS IDENTITY (CYCLE) PRIMARY KEY,
    name          text NOT NULL,
    pid           integer NOT NULL,
    pool          text,
    concurrency   integer,
    started_at    timestamptz NOT NULL DEFAULT now(),
    missing_since timestamptz                         -- nobody holds its lock since
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 100);

-- Sums that outlive what they were counted from.
CREATE TABLE pgbeat.counters (
    name  text PRIMARY KEY,
    value bigint NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 100);
"""

LANES = """
CREATE TABLE pgbeat.lanes (
    namespace   text NOT NULL DEFAULT 'default',
    name        text NOT NULL,
    max_running integer,                              -- NULL: no limit
    policy      text,                                 -- name of a ConcurrencyPolicy
    options     jsonb NOT NULL DEFAULT '{}',          -- the policy's
    rate_limit  integer,                              -- jobs a period …
    rate_period interval,
    rate_key    text,                                 -- … of each such key; NULL: of the lane
    paused_at   timestamptz,
    created_at  timestamptz NOT NULL DEFAULT now(),
    updated_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (namespace, name),
    CONSTRAINT lanes_namespace CHECK (namespace ~ '^[A-Za-z0-9_.-]{1,63}$'),
    CONSTRAINT lanes_name CHECK (name ~ '^[^[:cntrl:]/]{1,200}$' AND btrim(name) = name
        AND name NOT IN ('.', '..')),
    CONSTRAINT lanes_max_running CHECK (max_running >= 0),
    CONSTRAINT lanes_rate CHECK (num_nonnulls(rate_limit, rate_period) IN (0, 2)
        AND rate_limit > 0 AND rate_period > interval '0'
        AND rate_period <= interval '366 days'),
    CONSTRAINT lanes_options_object CHECK (jsonb_typeof(options) = 'object')
) WITH (fillfactor = 70);

-- Who wants the next slot of a lane for a direct execution, or has it: as long as its session
-- holds the advisory lock (1885823609, id).
CREATE TABLE pgbeat.reservations (
    id         integer GENERATED BY DEFAULT AS IDENTITY (CYCLE) PRIMARY KEY,
    namespace  text NOT NULL DEFAULT 'default',
    lane       text NOT NULL,
    task       text NOT NULL,
    tags       text[] NOT NULL DEFAULT '{}',
    resources  jsonb NOT NULL DEFAULT '{}',
    created_by text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    started_at timestamptz
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 100);
CREATE INDEX reservations_lane ON pgbeat.reservations (namespace, lane);

-- What dispatchers and those who wait for a slot hear of: `namespace/lane`.
CREATE FUNCTION pgbeat.announce_lane(namespace text, lane text) RETURNS void
LANGUAGE sql AS $$
    SELECT pg_notify('pgbeat_lanes', namespace || '/' || lane)
$$;
"""

GROUPS = """
CREATE TABLE pgbeat.groups (
    id            uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    namespace     text NOT NULL DEFAULT 'default',
    name          text,
    mode          text NOT NULL DEFAULT 'parallel',
    on_failure    text NOT NULL DEFAULT 'stop',
    state         text NOT NULL DEFAULT 'running',
    job_source    text NOT NULL,
    created_by    text NOT NULL,
    is_system_job boolean NOT NULL DEFAULT false,
    created_at    timestamptz NOT NULL DEFAULT now(),
    finished_at   timestamptz,
    cancelled_by  text,                               -- who wants it to end
    cancelled_at  timestamptz,
    CONSTRAINT groups_mode CHECK (mode IN ('parallel', 'sequential')),
    CONSTRAINT groups_on_failure CHECK (on_failure IN ('stop', 'continue', 'skip_remaining')),
    CONSTRAINT groups_state CHECK (state IN ('running', 'completed', 'failed', 'cancelled')),
    CONSTRAINT groups_finished CHECK ((state = 'running') = (finished_at IS NULL))
);
CREATE INDEX groups_newest ON pgbeat.groups (namespace, created_at, id);
CREATE INDEX groups_running ON pgbeat.groups (namespace, created_at, id)
    WHERE finished_at IS NULL;
"""

TEMPLATES = """
CREATE TABLE pgbeat.templates (
    namespace   text NOT NULL DEFAULT 'default',
    name        text NOT NULL,
    description text,
    task        text NOT NULL,
    args        jsonb NOT NULL DEFAULT '[]',
    kwargs      jsonb NOT NULL DEFAULT '{}',
    options     jsonb NOT NULL DEFAULT '{}',
    queue       text,
    job         jsonb NOT NULL DEFAULT '{}',          -- lane, priority, retries … of its jobs
    created_by  text,
    created_at  timestamptz NOT NULL DEFAULT now(),
    updated_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (namespace, name),
    CONSTRAINT templates_namespace CHECK (namespace ~ '^[A-Za-z0-9_.-]{1,63}$'),
    CONSTRAINT templates_name CHECK (name ~ '^[^[:cntrl:]/]{1,200}$' AND btrim(name) = name
        AND name NOT IN ('.', '..')),
    CONSTRAINT templates_task CHECK (task ~ '^[^[:cntrl:]]{1,255}$' AND btrim(task) = task),
    CONSTRAINT templates_args_array CHECK (jsonb_typeof(args) = 'array'),
    CONSTRAINT templates_kwargs_object CHECK (jsonb_typeof(kwargs) = 'object'),
    CONSTRAINT templates_options_object CHECK (jsonb_typeof(options) = 'object'),
    CONSTRAINT templates_job_object CHECK (jsonb_typeof(job) = 'object')
);

-- A schedule's jobs: template, lane, priority, retries …
ALTER TABLE pgbeat.schedules
    ADD job jsonb NOT NULL DEFAULT '{}',
    ADD CONSTRAINT schedules_job_object CHECK (jsonb_typeof(job) = 'object');

-- Before check_schedule, by its name.
CREATE FUNCTION pgbeat.check_job() RETURNS trigger
LANGUAGE plpgsql AS $$
DECLARE
    problem text;
    key     text;
BEGIN
    IF jsonb_typeof(NEW.job) IS DISTINCT FROM 'object' THEN
        problem := format('job is a JSON %s; it must be an object, for example ''{"lane": "gpu"}''',
            coalesce(jsonb_typeof(NEW.job), 'null'));
    ELSE
        SELECT k INTO key FROM jsonb_object_keys(NEW.job) k
         WHERE k NOT IN ('template', 'lane', 'priority', 'max_attempts', 'retry_base', 'retry_cap',
            'tags', 'resources', 'unique', 'unique_key', 'unique_for', 'requires_approval')
         LIMIT 1;
        IF key IS NOT NULL THEN
            problem := format('job has %L, and there is no such key; there are template, lane, '
                'priority, max_attempts, retry_base, retry_cap, tags, resources, unique, '
                'unique_key, unique_for, requires_approval', key);
        END IF;
    END IF;
    IF problem IS NULL AND NEW.task IS NULL AND NEW.job ? 'template' THEN
        SELECT t.task INTO NEW.task FROM pgbeat.templates t
         WHERE t.namespace = NEW.namespace AND t.name = NEW.job ->> 'template';
        IF NOT FOUND THEN
            problem := format('there is no template %L; `pgbeat templates list` shows those '
                'there are', NEW.job ->> 'template');
        END IF;
    END IF;
    IF problem IS NOT NULL THEN
        RAISE EXCEPTION 'schedule "%": %', coalesce(NEW.name, ''), problem
            USING ERRCODE = 'check_violation', SCHEMA = 'pgbeat', TABLE = 'schedules';
    END IF;
    RETURN NEW;
END
$$;
CREATE TRIGGER check_job BEFORE INSERT OR UPDATE OF job, task ON pgbeat.schedules FOR EACH ROW
    WHEN (NEW.job <> '{}') EXECUTE FUNCTION pgbeat.check_job();
"""

# What happened is told in the transaction in which it did: a row for each webhook that wants it.
WEBHOOKS = """
CREATE TABLE pgbeat.webhooks (
    id              bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    namespace       text NOT NULL DEFAULT 'default',
    name            text NOT NULL,
    url             text NOT NULL,
    secret          text NOT NULL,
    previous_secret text,                             -- signs too …
    previous_until  timestamptz,                      -- … until then
    events          text[] NOT NULL,
    enabled         boolean NOT NULL DEFAULT true,
    disabled_reason text,
    slots           smallint NOT NULL DEFAULT 8,      -- deliveries under way at once
    created_by      text,
    created_at      timestamptz NOT NULL DEFAULT now(),
    updated_at      timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT webhooks_name_key UNIQUE (namespace, name),
    CONSTRAINT webhooks_namespace CHECK (namespace ~ '^[A-Za-z0-9_.-]{1,63}$'),
    CONSTRAINT webhooks_name CHECK (name ~ '^[^[:cntrl:]/]{1,200}$' AND btrim(name) = name
        AND name NOT IN ('.', '..')),
    CONSTRAINT webhooks_url CHECK (url ~ '^https?://[^[:space:][:cntrl:]]+$'),
    CONSTRAINT webhooks_slots CHECK (slots >= 1),
    CONSTRAINT webhooks_previous CHECK ((previous_secret IS NULL) = (previous_until IS NULL)),
    CONSTRAINT webhooks_events CHECK (cardinality(events) > 0 AND events <@ ARRAY[
        'job.run.completed', 'job.run.failed', 'job.run.skipped', 'job.failed',
        'schedule.disabled', 'tick.failed'])
);

CREATE TABLE pgbeat.deliveries (
    id          uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    webhook_id  bigint NOT NULL REFERENCES pgbeat.webhooks ON DELETE CASCADE,
    event       text NOT NULL,
    payload     jsonb NOT NULL,
    state       text NOT NULL DEFAULT 'pending',
    attempts    integer NOT NULL DEFAULT 0,
    next_at     timestamptz DEFAULT now(),            -- when to try (again), or to look after it
    sent_at     timestamptz,                          -- to the broker, for the attempt to come
    log         jsonb NOT NULL DEFAULT '[]',          -- of each attempt: at, status, error, ms
    created_at  timestamptz NOT NULL DEFAULT now(),
    finished_at timestamptz,
    CONSTRAINT deliveries_state CHECK (state IN ('pending', 'delivered', 'failed')),
    CONSTRAINT deliveries_finished CHECK (
        (state = 'pending') = (finished_at IS NULL)
        AND (state = 'pending') = (next_at IS NOT NULL)),
    CONSTRAINT deliveries_sent CHECK (sent_at IS NULL OR state = 'pending')
) WITH (fillfactor = 85);
CREATE INDEX deliveries_pending ON pgbeat.deliveries (webhook_id, next_at)
    WHERE state = 'pending';
CREATE INDEX deliveries_under_way ON pgbeat.deliveries (webhook_id, next_at)
    WHERE sent_at IS NOT NULL;
CREATE INDEX deliveries_failed ON pgbeat.deliveries (webhook_id, created_at)
    WHERE state = 'failed';
CREATE INDEX deliveries_of_webhook ON pgbeat.deliveries (webhook_id, created_at, id);
CREATE INDEX deliveries_by_time ON pgbeat.deliveries (created_at);

-- When there is a delivery to be sent: now or earlier, where one waits; NULL: there is none. With
-- all slots taken it is when the first of them is looked after; one that ends wakes the beat.
-- In plpgsql, whose plans are kept: every look of a beat asks.
CREATE FUNCTION pgbeat.next_delivery(namespace text) RETURNS timestamptz
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT min(CASE WHEN w.enabled AND w.slots <= (
               SELECT count(*) FROM pgbeat.deliveries d
                WHERE d.webhook_id = w.id AND d.sent_at IS NOT NULL)
           THEN (SELECT min(d.next_at) FROM pgbeat.deliveries d
                  WHERE d.webhook_id = w.id AND d.sent_at IS NOT NULL)
           ELSE (SELECT min(d.next_at) FROM pgbeat.deliveries d
                  WHERE d.webhook_id = w.id AND d.state = 'pending') END)
      FROM pgbeat.webhooks w WHERE w.namespace = next_delivery.namespace);
END
$$;

-- The webhook is held: one that is deleted at this moment must not fail what happened.
CREATE FUNCTION pgbeat.tell(namespace text, event text, data jsonb) RETURNS void
LANGUAGE sql AS $$
    INSERT INTO pgbeat.deliveries (webhook_id, event, payload)
    SELECT w.id, tell.event, jsonb_build_object('type', tell.event, 'timestamp', to_char(
               clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
               'data', tell.data)
      FROM pgbeat.webhooks w
     WHERE w.enabled AND w.namespace = tell.namespace AND tell.event = ANY (w.events)
       FOR KEY SHARE OF w
$$;

CREATE FUNCTION pgbeat.tell_execution() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM pgbeat.webhooks WHERE enabled) THEN
        PERFORM pgbeat.tell(j.namespace, 'job.run.' || NEW.state, jsonb_build_object(
            'execution_id', NEW.id, 'number', NEW.number, 'status', NEW.state, 'lost', NEW.lost,
            'job_id', j.id, 'task', j.task, 'schedule', j.schedule, 'due_at', j.due_at,
            'job_source', j.job_source, 'created_by', j.created_by, 'attempt', j.attempt,
            'max_attempts', j.max_attempts, 'retry_of', j.retry_of, 'worker', NEW.worker,
            'started_at', NEW.started_at, 'finished_at', NEW.finished_at,
            'duration_ms', NEW.duration_ms, 'result', NEW.result, 'error', NEW.error,
            'metadata', NEW.metadata))
           FROM pgbeat.jobs j WHERE j.id = NEW.job_id AND j.task <> 'pgbeat.deliver';
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER tell_new_execution AFTER INSERT ON pgbeat.executions FOR EACH ROW
    WHEN (NEW.state IN ('completed', 'failed', 'skipped'))
    EXECUTE FUNCTION pgbeat.tell_execution();
CREATE TRIGGER tell_execution AFTER UPDATE OF state ON pgbeat.executions FOR EACH ROW
    WHEN (NEW.state IN ('completed', 'failed', 'skipped') AND OLD.state <> NEW.state)
    EXECUTE FUNCTION pgbeat.tell_execution();

-- A job that failed for good. (Of a delivery nothing is told, it would go round for ever.)
CREATE FUNCTION pgbeat.tell_job() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgbeat.tell(NEW.namespace, 'job.failed', jsonb_build_object(
        'job_id', NEW.id, 'task', NEW.task, 'schedule', NEW.schedule, 'due_at', NEW.due_at,
        'job_source', NEW.job_source, 'created_by', NEW.created_by, 'attempt', NEW.attempt,
        'max_attempts', NEW.max_attempts, 'retry_of', NEW.retry_of, 'error', NEW.error));
    RETURN NULL;
END
$$;
CREATE TRIGGER tell_job AFTER UPDATE OF state ON pgbeat.jobs FOR EACH ROW
    WHEN (NEW.state = 'failed' AND OLD.state <> 'failed' AND NEW.retried_by IS NULL
        AND NEW.task <> 'pgbeat.deliver')
    EXECUTE FUNCTION pgbeat.tell_job();
-- A task that nobody made a job for may be told of when it has failed.
CREATE TRIGGER tell_new_job AFTER INSERT ON pgbeat.jobs FOR EACH ROW
    WHEN (NEW.state = 'failed' AND NEW.task <> 'pgbeat.deliver')
    EXECUTE FUNCTION pgbeat.tell_job();

CREATE FUNCTION pgbeat.tell_schedule() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgbeat.tell(NEW.namespace, 'schedule.disabled', jsonb_build_object(
        'schedule', NEW.name, 'task', NEW.task, 'reason', NEW.disabled_reason,
        'retry_count', NEW.retry_count, 'last_error', NEW.last_error));
    RETURN NULL;
END
$$;
CREATE TRIGGER tell_schedule AFTER UPDATE OF enabled ON pgbeat.schedules FOR EACH ROW
    WHEN (OLD.enabled AND NOT NEW.enabled
        AND coalesce(NEW.disabled_reason, '') NOT LIKE 'completed: %')
    EXECUTE FUNCTION pgbeat.tell_schedule();

CREATE FUNCTION pgbeat.tell_tick() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgbeat.tell(s.namespace, 'tick.failed', jsonb_build_object(
        'tick_id', NEW.id, 'schedule', NEW.schedule, 'task', s.task, 'trigger', NEW.trigger,
        'due_at', NEW.due_at, 'error', NEW.error))
       FROM pgbeat.schedules s WHERE s.id = NEW.schedule_id;
    RETURN NULL;
END
$$;
CREATE TRIGGER tell_tick AFTER INSERT ON pgbeat.ticks FOR EACH ROW
    WHEN (NEW.outcome = 'failed') EXECUTE FUNCTION pgbeat.tell_tick();

-- Beat sends them out: it is woken, as for a schedule.
CREATE FUNCTION pgbeat.announce_deliveries() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM fresh) THEN
        PERFORM pg_notify('pgbeat_schedules', 'deliveries');
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER announce_deliveries AFTER INSERT ON pgbeat.deliveries
    REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT
    EXECUTE FUNCTION pgbeat.announce_deliveries();
"""

# A job's message is found by the job, to be withdrawn. Most messages have none, and cost nothing.
MESSAGES = """
CREATE FUNCTION pgbeat.add_job_ids(message_table regclass, dead_table regclass) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('ALTER TABLE %s ADD COLUMN IF NOT EXISTS job_id uuid', message_table);
    EXECUTE format('ALTER TABLE %s ADD COLUMN IF NOT EXISTS job_id uuid', dead_table);
    EXECUTE format('CREATE INDEX IF NOT EXISTS %I ON %s (job_id) WHERE job_id IS NOT NULL',
        (SELECT relname FROM pg_class WHERE oid = message_table) || '_job', message_table);
    EXECUTE format('CREATE INDEX IF NOT EXISTS %I ON %s (job_id) WHERE job_id IS NOT NULL',
        (SELECT relname FROM pg_class WHERE oid = dead_table) || '_job', dead_table);
END
$$;

ALTER FUNCTION pgbeat.adopt_broker(text, text) RENAME TO adopt_broker_tables;
CREATE FUNCTION pgbeat.adopt_broker(
    queue_table text DEFAULT 'kombu_queue', message_table text DEFAULT 'kombu_message'
) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgbeat.adopt_broker_tables(queue_table, message_table);
    PERFORM pgbeat.add_job_ids(quote_ident(message_table)::regclass,
        quote_ident(message_table || '_dead')::regclass);
END
$$;

DO $$
DECLARE
    adopted record;
BEGIN
    FOR adopted IN SELECT c.oid::regclass AS message, d.oid::regclass AS dead
          FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
               JOIN pg_class d ON d.relnamespace = c.relnamespace
                    AND d.relname = c.relname || '_dead'
         WHERE t.tgname = 'pgbeat_announce' LOOP
        PERFORM pgbeat.add_job_ids(adopted.message, adopted.dead);
    END LOOP;
END
$$;
"""


def upgrade() -> None:
    for script in (
        JOBS, STATES, ENDED, EXECUTIONS, LANES, GROUPS, TEMPLATES, WEBHOOKS, MESSAGES,
    ):  # fmt: skip
        op.execute(script.strip())
