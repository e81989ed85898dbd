-- The servers on which the database has lived, by which a copy is recognised, and what is held after
-- a restore.
CREATE TABLE pgbeat.servers (
    system_identifier bigint NOT NULL,
    timeline integer NOT NULL,
    first_seen_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (system_identifier, timeline)
);

-- A service may hide these functions: then the database has no servers, and no copy is recognised.
DO $$
BEGIN
    INSERT INTO pgbeat.servers (system_identifier, timeline)
    SELECT system_identifier,
           ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::integer
      FROM pg_control_system();
EXCEPTION WHEN OTHERS THEN
    RAISE NOTICE 'the server does not say which one it is: %', SQLERRM;
END
$$;

CREATE TABLE pgbeat.fences (
    epoch integer PRIMARY KEY,
    raised_at timestamptz NOT NULL DEFAULT now(),
    raised_by text NOT NULL,
    reason text,
    restored_to timestamptz,
    released_at timestamptz,
    -- What is still held.
    queues text[] NOT NULL,
    schedules bigint[] NOT NULL
);
CREATE UNIQUE INDEX fences_raised ON pgbeat.fences ((true)) WHERE released_at IS NULL;
