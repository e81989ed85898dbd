-- Jobs and their executions, and what became of the messages that started them.
--
-- What changes is kept apart from what doesn't. A job is in `unfinished_jobs` until the statement
-- that ends it moves it to `ended_jobs`: small tables whose rows come and go, and partitions by time
-- that only grow, and go as a whole (partitions.sql). Executions likewise. Statements that end a job
-- DELETE and INSERT: an UPDATE of `state` moves the row too, but fails whoever waits for its lock.

CREATE TABLE pgbeat.jobs (
    id               uuid NOT NULL,
    namespace        text NOT NULL DEFAULT 'default',
    description      text,
    labels           jsonb NOT NULL DEFAULT '{}',
    metadata         jsonb NOT NULL DEFAULT '{}',

    -- What it runs.
    task             text NOT NULL,
    args             jsonb,
    kwargs           jsonb,
    options          jsonb NOT NULL DEFAULT '{}',
    queue            text,
    template         text,

    -- Where it comes from.
    job_source       text NOT NULL,
    created_by       text NOT NULL,
    is_system_job    boolean NOT NULL,
    schedule_id      bigint,
    schedule         text,
    trigger          text,
    due_at           timestamptz,
    interval_start   timestamptz,
    interval_end     timestamptz,                      -- where it isn't due_at
    run_key          text,                             -- among those launched together
    root_id          uuid,                             -- Celery's root, or group of such; NULL: itself
    parent_id        uuid,                             -- the task that sent it
    callback_of      uuid,                             -- the group whose callback it is
    canvas           jsonb,                            -- its group, chord and chain (jobs/messages/canvas.py)

    -- When and where it may run.
    run_at           timestamptz,                      -- not before
    lane             text,
    priority         smallint NOT NULL DEFAULT 0,
    position         numeric,                          -- in its lane's line (fair_lanes.sql)
    fair_key         text COLLATE "C" NOT NULL DEFAULT '',  -- with which it takes turns in its lane
    tags             text[] NOT NULL DEFAULT '{}',
    resources        jsonb NOT NULL DEFAULT '{}',
    group_id         uuid,
    group_position   integer,
    is_blocked       boolean NOT NULL DEFAULT false,   -- others go first: in its group, its parents
    unfinished_parents integer NOT NULL DEFAULT 0,     -- of which it waits (dependencies.sql)
    unique_key       text,
    attempt          integer NOT NULL DEFAULT 1,
    max_attempts     integer NOT NULL DEFAULT 1,
    retry_base       interval NOT NULL DEFAULT '1 minute',
    retry_cap        interval NOT NULL DEFAULT '1 hour',
    keeps_id         boolean NOT NULL DEFAULT false,   -- sent as a task: Celery retries it, as the same
    retry_of         uuid,
    retried_by       uuid,
    requires_approval boolean NOT NULL DEFAULT false,  -- stays with it and with its retries
    paused_at        timestamptz,                      -- since when, in the state `paused`
    awaits_approval  boolean NOT NULL DEFAULT false,
    approved_by      text,
    approved_at      timestamptz,
    must_start_by    timestamptz,
    must_end_by      timestamptz,                      -- its last retry, too

    -- Its state.
    state            text NOT NULL DEFAULT 'pending',
    created_at       timestamptz NOT NULL DEFAULT now(),
    dispatched_at    timestamptz,                      -- given to the broker; has its lane's slot
    elsewhere_at     timestamptz,                      -- given to a broker elsewhere
    started_at       timestamptz,
    finished_at      timestamptz,
    worker           text,
    error            text,
    cancel_requested_by text,
    cancel_requested_at timestamptz,
    cancel_reason    text,                             -- of a running job, until it has ended
    checkpoint       jsonb,
    next_deadline    timestamptz,                      -- to look at; NULL: none is left
    late_at          timestamptz,                      -- marked as late
    missed_deadlines text[] NOT NULL DEFAULT '{}',     -- 'start', 'end'
    executions       integer NOT NULL DEFAULT 0,       -- that began
    message          jsonb,                            -- what Celery made of it (jobs/messages/kept_messages.py)

    -- The partitions allow no other state than theirs, nor an end without its time, and the trigger
    -- check_details checks labels and metadata. Every statement that writes a job parses each of
    -- these constraints.
    CONSTRAINT jobs_source CHECK (job_source IN ('user_cli', 'user_api', 'scheduled_task',
        'system')),
    CONSTRAINT jobs_started CHECK (state <> 'running' OR started_at IS NOT NULL),
    CONSTRAINT jobs_approved CHECK (
        NOT (awaits_approval OR requires_approval AND approved_by IS NULL)
        OR state IN ('paused', 'failed', 'cancelled', 'skipped')),
    CONSTRAINT jobs_blocked CHECK (NOT is_blocked OR dispatched_at IS NULL),
    CONSTRAINT jobs_parents CHECK (unfinished_parents = 0 OR unfinished_parents > 0 AND is_blocked),
    CONSTRAINT jobs_attempts CHECK (attempt >= 1 AND max_attempts >= 1),
    CONSTRAINT jobs_backoff CHECK (
        retry_base >= interval '0' AND retry_cap >= retry_base
        AND retry_cap <= interval '36500 days'),
    CONSTRAINT jobs_options_object CHECK (jsonb_typeof(options) = 'object'),
    CONSTRAINT jobs_resources_object CHECK (jsonb_typeof(resources) = 'object')
) PARTITION BY LIST (state);

CREATE TABLE pgbeat.unfinished_jobs PARTITION OF pgbeat.jobs (
    CONSTRAINT unfinished_jobs_pkey PRIMARY KEY (id)
) FOR VALUES IN ('pending', 'scheduled', 'running', 'paused')
WITH (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05);
CREATE TABLE pgbeat.ended_jobs PARTITION OF pgbeat.jobs (PRIMARY KEY (id, finished_at))
FOR VALUES IN ('completed', 'failed', 'cancelled', 'skipped') PARTITION BY RANGE (finished_at);

-- An id is unique among the unfinished. Of all jobs it is so because none is made twice: a tick's by
-- `ticks_one_decision`, a retry by the job that it retries, others by a random id.
CREATE INDEX jobs_by_schedule ON pgbeat.jobs (schedule_id, created_at)
    WHERE schedule_id IS NOT NULL;
-- The outcomes of a schedule's jobs: the newest end, and those since. A job that is tried again
-- has not ended.
CREATE INDEX ended_jobs_outcomes ON pgbeat.ended_jobs (state, schedule_id, finished_at)
    WHERE schedule_id IS NOT NULL AND retried_by IS NULL AND state IN ('completed', 'failed');
CREATE INDEX jobs_launched_together ON pgbeat.jobs (schedule_id, due_at, trigger)
    WHERE run_key IS NOT NULL;
-- Those that wait: for their lane, or to be due.
CREATE INDEX unfinished_jobs_waiting ON pgbeat.unfinished_jobs
    (namespace, lane, priority DESC, fair_key, position, created_at)
    WHERE lane IS NOT NULL AND dispatched_at IS NULL AND state = 'pending' AND NOT is_blocked;
CREATE INDEX unfinished_jobs_to_come ON pgbeat.unfinished_jobs (namespace, run_at)
    WHERE dispatched_at IS NULL AND state = 'scheduled' AND NOT is_blocked;
CREATE INDEX unfinished_jobs_dependent ON pgbeat.unfinished_jobs (namespace, id)
    WHERE unfinished_parents > 0;
CREATE INDEX unfinished_jobs_deadlines ON pgbeat.unfinished_jobs (namespace, next_deadline)
    WHERE next_deadline IS NOT NULL;
-- Those that have a slot, and those that had one: rates are counted over them.
CREATE INDEX unfinished_jobs_in_lane ON pgbeat.unfinished_jobs (namespace, lane, fair_key)
    WHERE lane IS NOT NULL AND dispatched_at IS NOT NULL
        AND state IN ('pending', 'scheduled', 'running');
CREATE INDEX jobs_of_lane ON pgbeat.jobs (namespace, lane, dispatched_at)
    WHERE lane IS NOT NULL AND dispatched_at IS NOT NULL;
CREATE INDEX jobs_of_group ON pgbeat.jobs (group_id, state, group_position)
    WHERE group_id IS NOT NULL;
CREATE INDEX ended_jobs_by_key ON pgbeat.ended_jobs (namespace, unique_key, task, created_at)
    WHERE unique_key IS NOT NULL;
CREATE UNIQUE INDEX unfinished_jobs_one_of_key
    ON pgbeat.unfinished_jobs (namespace, unique_key, task)
    WHERE unique_key IS NOT NULL;
CREATE INDEX jobs_retries ON pgbeat.jobs (retry_of) WHERE retry_of IS NOT NULL;
CREATE INDEX jobs_by_root ON pgbeat.jobs (root_id) WHERE root_id IS NOT NULL;
CREATE INDEX jobs_labels ON pgbeat.jobs USING gin (labels jsonb_path_ops) WHERE labels <> '{}';
-- A page of them, newest first.
CREATE INDEX jobs_newest ON pgbeat.jobs (namespace, created_at, id);
CREATE INDEX jobs_by_state ON pgbeat.jobs (namespace, state, created_at, id);
CREATE INDEX jobs_by_task ON pgbeat.jobs (namespace, task, created_at, id);
CREATE INDEX jobs_by_lane ON pgbeat.jobs (namespace, lane, created_at, id)
    WHERE lane IS NOT NULL;
CREATE INDEX jobs_by_template ON pgbeat.jobs (namespace, template, created_at, id)
    WHERE template IS NOT NULL;
CREATE INDEX jobs_late ON pgbeat.jobs (namespace, created_at, id) WHERE late_at IS NOT NULL;
CREATE INDEX jobs_became_late ON pgbeat.jobs (late_at) WHERE late_at IS NOT NULL;
CREATE INDEX jobs_by_creator ON pgbeat.jobs (namespace, created_by, created_at, id);

-- Which state may follow which, whatever program writes it. The condition is the trigger's own: a
-- valid transition costs no call.
CREATE FUNCTION pgbeat.refuse_transition() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'job % can''t go from % to %', OLD.id, OLD.state, NEW.state
        USING ERRCODE = 'check_violation', SCHEMA = 'pgbeat', TABLE = 'jobs';
END
$$;

CREATE TRIGGER refuse_transition BEFORE UPDATE OF state ON pgbeat.unfinished_jobs FOR EACH ROW
    WHEN (OLD.state = 'paused' AND NEW.state IN ('running', 'completed')
          OR OLD.state = 'running' AND NEW.state = 'paused')
    EXECUTE FUNCTION pgbeat.refuse_transition();
CREATE TRIGGER refuse_transition BEFORE UPDATE OF state ON pgbeat.ended_jobs FOR EACH ROW
    WHEN (OLD.state <> NEW.state) EXECUTE FUNCTION pgbeat.refuse_transition();

-- Since when a job is paused, whatever program pauses it.
CREATE FUNCTION pgbeat.set_paused_at() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    NEW.paused_at := CASE WHEN NEW.state = 'paused' THEN now() END;
    RETURN NEW;
END
$$;

CREATE TRIGGER begin_paused BEFORE INSERT ON pgbeat.jobs FOR EACH ROW
    WHEN (NEW.state = 'paused') EXECUTE FUNCTION pgbeat.set_paused_at();
CREATE TRIGGER change_paused BEFORE UPDATE OF state ON pgbeat.jobs FOR EACH ROW
    WHEN ((OLD.state = 'paused') <> (NEW.state = 'paused'))
    EXECUTE FUNCTION pgbeat.set_paused_at();

CREATE TABLE pgbeat.executions (
    id               uuid NOT NULL DEFAULT gen_random_uuid(),
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
    recorded_at      timestamptz,                     -- when its end was written
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
    log              json,                            -- its last lines (worker/task_logs.py)
    CONSTRAINT executions_finished CHECK ((state = 'running') = (finished_at IS NULL)),
    CONSTRAINT executions_lost CHECK (NOT lost OR state IN ('failed', 'cancelled')),
    CONSTRAINT executions_metadata_object CHECK (jsonb_typeof(metadata) = 'object')
) PARTITION BY LIST (state);

CREATE TABLE pgbeat.running_executions PARTITION OF pgbeat.executions (
    CONSTRAINT running_executions_pkey PRIMARY KEY (id)
) FOR VALUES IN ('running') WITH (fillfactor = 70);
CREATE TABLE pgbeat.ended_executions PARTITION OF pgbeat.executions (PRIMARY KEY (id, finished_at))
FOR VALUES IN ('completed', 'failed', 'cancelled', 'skipped', 'snoozed')
PARTITION BY RANGE (finished_at);

CREATE INDEX running_executions_of_worker ON pgbeat.running_executions (worker_id)
    WHERE worker_id IS NOT NULL;
CREATE INDEX executions_of_job ON pgbeat.executions (job_id, number);
CREATE INDEX executions_of_schedule ON pgbeat.executions (schedule_id, started_at)
    WHERE schedule_id IS NOT NULL;
CREATE INDEX executions_by_time ON pgbeat.executions (started_at);
-- Each of them has given its slot back: rates count it besides the slot that its job has now.
CREATE INDEX ended_executions_snoozed ON pgbeat.ended_executions (started_at)
    WHERE state = 'snoozed';
CREATE INDEX ended_executions_recorded ON pgbeat.ended_executions (recorded_at);

-- What became of the messages that started jobs. Rows are only ever inserted, so nothing that is
-- locked elsewhere delays an acknowledgement.
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

-- A worker is alive as long as one of its sessions holds the advisory lock (1885823603, id).
CREATE TABLE pgbeat.workers (
    id            integer GENERATED BY DEFAULT AS IDENTITY (CYCLE) PRIMARY KEY,
    name          text NOT NULL,
    pid           integer NOT NULL,
    pool          text,
    concurrency   integer,
    namespace     text,
    tasks         text[],                             -- registered; NULL: it does not say
    host          text,
    versions      jsonb,                              -- of pgbeat, celery, python
    queues        text[],                             -- that it consumes from
    memory_mb     real,                               -- resident, of all of its processes
    cpu           real,                               -- cores in use, on average since the report before
    reported_at   timestamptz,                        -- when it said that
    started_at    timestamptz NOT NULL DEFAULT now(),
    missing_since timestamptz,                        -- no session holds its lock since
    alive_until   timestamptz                         -- without a session of its own; NULL: by lock
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 100);
