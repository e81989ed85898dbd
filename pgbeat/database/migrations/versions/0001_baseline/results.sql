-- Results of Celery tasks. A result is one row, written by one statement; a success is never
-- overwritten. A chord counts each part once, and ends in the transaction that publishes its body.

CREATE TABLE pgbeat.results (
    task_id          text PRIMARY KEY,
    status           text NOT NULL,
    body             bytea,                           -- the result, or the error, as encoded
    content_type     text NOT NULL,
    content_encoding text NOT NULL,
    traceback        text,
    children         jsonb,                           -- as `AsyncResult.as_tuple` gives them
    group_id         text,
    parent_id        text,
    date_done        timestamptz,
    task             text,                            -- these five where results are extended
    worker           text,
    queue            text,
    retries          integer,
    request          bytea,                           -- args, kwargs and stamps, encoded likewise
    expires_at       timestamptz                      -- NULL: never
);
CREATE INDEX results_expired ON pgbeat.results (expires_at);

-- Whether a task is a job that was cancelled. Its id may have a prefix. A function, so that the
-- statement that stores a result plans and opens no partition of history.
CREATE FUNCTION pgbeat.was_cancelled(task_id text) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
DECLARE
    job constant text := right(task_id, 36);
BEGIN
    IF job !~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' THEN
        RETURN false;
    END IF;
    RETURN EXISTS (SELECT FROM pgbeat.ended_jobs j WHERE j.id = job::uuid AND j.state = 'cancelled');
END
$$;

-- Group results that were saved, and the structure of chord headers that are not flat.
CREATE TABLE pgbeat.result_groups (
    group_id         text PRIMARY KEY,
    body             bytea NOT NULL,
    content_type     text NOT NULL,
    content_encoding text NOT NULL,
    expires_at       timestamptz
);
CREATE INDEX result_groups_expired ON pgbeat.result_groups (expires_at);

-- Narrow, and without another index: every part updates the row, in place.
CREATE TABLE pgbeat.chords (
    group_id   text PRIMARY KEY,
    size       integer,                               -- NULL: not known yet
    added      integer NOT NULL DEFAULT 0,            -- by `Task.add_to_chord`
    done       integer NOT NULL DEFAULT 0,
    ended      boolean NOT NULL DEFAULT false,        -- the body was published, or has failed
    expires_at timestamptz
) WITH (fillfactor = 50);

-- What the members of chords that have not ended returned.
CREATE TABLE pgbeat.chord_parts (
    group_id         text NOT NULL,
    position         integer NOT NULL,                -- in the header; -1: not known
    task_id          text NOT NULL,
    status           text NOT NULL,
    body             bytea,
    content_type     text NOT NULL,
    content_encoding text NOT NULL,
    PRIMARY KEY (group_id, position, task_id)
);

-- Bodies of chords a part of which returned before their size was known; gone when they end.
CREATE TABLE pgbeat.chord_bodies (
    group_id         text PRIMARY KEY,
    body             bytea NOT NULL,                  -- its signature, as encoded
    content_type     text NOT NULL,
    content_encoding text NOT NULL
);

-- Which process waits for which result: hints, worth no disk flush, and gone after a crash.
CREATE UNLOGGED TABLE pgbeat.result_waits (
    task_id text NOT NULL,
    waiter  text NOT NULL,                            -- the end of its channel's name
    at      timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (task_id, waiter)
);
