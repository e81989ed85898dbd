-- Load over time: what ended in each minute, and in each hour, of all jobs of a namespace and of
-- those of a task, a lane or a queue. The leading beat writes them
-- (pgbeat/monitoring/rollups/load_rollups.py); no statement that ends a job does.

CREATE TABLE pgbeat.rollups (
    namespace text NOT NULL,
    step      integer NOT NULL,                        -- seconds: of a minute or an hour
    kind      text NOT NULL,                           -- whose name it is; of all: 'all', ''
    name      text NOT NULL,
    at        timestamptz NOT NULL,                    -- its beginning
    completed bigint NOT NULL DEFAULT 0,
    failed    bigint NOT NULL DEFAULT 0,
    cancelled bigint NOT NULL DEFAULT 0,
    skipped   bigint NOT NULL DEFAULT 0,
    waiting   integer[] NOT NULL DEFAULT '{}',         -- histograms: {{bucket,count},…}
    running   integer[] NOT NULL DEFAULT '{}',
    depth     bigint NOT NULL DEFAULT 0,               -- jobs that waited, at most
    PRIMARY KEY (namespace, kind, name, step, at),
    CONSTRAINT rollups_step CHECK (step IN (60, 3600)),
    CONSTRAINT rollups_kind CHECK (kind IN ('all', 'task', 'lane', 'queue'))
) WITH (autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX rollups_by_time ON pgbeat.rollups (namespace, step, at);

-- The errors of failed jobs in each minute, hour and day, by pattern and task; place 0 is the
-- most frequent. All beyond the first hundred are one row, of no task. They are written with the
-- load (pgbeat/monitoring/rollups/error_rollups.py).
CREATE TABLE pgbeat.error_rollups (
    namespace text NOT NULL,
    step      integer NOT NULL,                        -- seconds: of a minute, an hour or a day
    at        timestamptz NOT NULL,                    -- its beginning; of a day, in UTC
    place     smallint NOT NULL,
    error     text NOT NULL,                           -- the pattern
    task      text NOT NULL,
    number    bigint NOT NULL,
    first_at  timestamptz NOT NULL,
    last_at   timestamptz NOT NULL,
    job_id    uuid NOT NULL,                           -- the last job
    schedules text[] NOT NULL DEFAULT '{}',            -- some that launched them: up to 11
    PRIMARY KEY (namespace, step, at, place),
    CONSTRAINT error_rollups_step CHECK (step IN (60, 3600, 86400))
) WITH (autovacuum_vacuum_scale_factor = 0.05);
-- The first and the last time of one.
CREATE INDEX error_rollups_of_error ON pgbeat.error_rollups (namespace, task, md5(error), last_at);

-- Tasks that workers received without tracking them, by the hour; '' is all beyond a worker's 500.
CREATE TABLE pgbeat.untracked_tasks (
    namespace text NOT NULL,
    at        timestamptz NOT NULL,                    -- the hour's beginning
    task      text NOT NULL,
    number    bigint NOT NULL,
    PRIMARY KEY (namespace, at, task)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);

-- How far the ends of a namespace's jobs are counted: for now, and for good.
CREATE TABLE pgbeat.rollup_progress (
    namespace     text PRIMARY KEY,
    counted_until timestamptz NOT NULL,
    settled_until timestamptz NOT NULL,
    CONSTRAINT rollup_progress_order CHECK (settled_until <= counted_until)
) WITH (fillfactor = 50);

-- Rows are added at the end of a partition in about the order of this time. An entry covers 32
-- pages, so ending a job writes nothing here.
CREATE INDEX ended_jobs_by_time ON pgbeat.ended_jobs USING brin (finished_at)
    WITH (pages_per_range = 32, autosummarize = on);
