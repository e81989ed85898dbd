-- History in partitions by time. Each history has one partition of all that is older than what
-- retention has dropped (`…_kept`), one for each period since, named by its first day, and one of
-- all that is to come (`…_to_come`), empty as long as a beat adds partitions ahead.

CREATE TABLE pgbeat.partitions (
    history   text NOT NULL,
    name      text PRIMARY KEY,
    starts_at timestamptz,                            -- NULL: …_kept
    ends_at   timestamptz,                            -- NULL: …_to_come
    CONSTRAINT partitions_range CHECK (starts_at < ends_at)
);
CREATE UNIQUE INDEX partitions_start ON pgbeat.partitions (history, starts_at);

-- These functions change tables as their owner, for a role that may delete the rows anyway.
CREATE FUNCTION pgbeat.require_delete(history text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    caller CONSTANT text := coalesce(nullif(current_setting('role'), 'none'), session_user::text);
BEGIN
    IF NOT has_table_privilege(caller, format('pgbeat.%I', history), 'DELETE') THEN
        RAISE EXCEPTION 'role % may not delete from pgbeat.%', caller, history
            USING ERRCODE = 'insufficient_privilege';
    END IF;
END
$$;

-- Makes `…_to_come` the period that ends then, and a new one of what comes after it. Rows stay where
-- they are, but for those of times after the end, which move without the triggers that ran when they
-- were written.
CREATE FUNCTION pgbeat.add_partition(history text, ends timestamptz) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    next   CONSTANT text := history || '_to_come';
    moment text;
    starts timestamptz;
    added  text;
BEGIN
    PERFORM pgbeat.require_delete(history);
    SELECT starts_at INTO STRICT starts FROM pgbeat.partitions WHERE name = next FOR UPDATE;
    SELECT attname INTO STRICT moment
      FROM pg_partitioned_table p JOIN pg_attribute a
           ON a.attrelid = p.partrelid AND a.attnum = p.partattrs[0]
     WHERE p.partrelid = format('pgbeat.%I', history)::regclass;
    added := history || to_char(starts AT TIME ZONE 'UTC', '_YYYYMMDD');
    EXECUTE format('ALTER TABLE pgbeat.%I DETACH PARTITION pgbeat.%I', history, next);
    EXECUTE format('ALTER TABLE pgbeat.%I RENAME TO %I', next, added);
    EXECUTE format('CREATE TABLE pgbeat.%I PARTITION OF pgbeat.%I FOR VALUES FROM (%L)
            TO (MAXVALUE)', next, history, ends);
    EXECUTE format('ALTER TABLE pgbeat.%I DISABLE TRIGGER USER', next);
    EXECUTE format('WITH gone AS (DELETE FROM pgbeat.%I WHERE %I >= %L RETURNING *)
            INSERT INTO pgbeat.%I OVERRIDING SYSTEM VALUE SELECT * FROM gone',
        added, moment, ends, next);
    EXECUTE format('ALTER TABLE pgbeat.%I ENABLE TRIGGER USER', next);
    EXECUTE format('ALTER TABLE pgbeat.%I ATTACH PARTITION pgbeat.%I FOR VALUES FROM (%L)
            TO (%L)', history, added, starts, ends);
    UPDATE pgbeat.partitions SET starts_at = ends WHERE name = next;
    INSERT INTO pgbeat.partitions VALUES (history, added, starts, ends);
    RETURN added;
END
$$;

-- Drops a history's oldest period but for the rows with these ids, which join `…_kept`. Returns how
-- many those are.
CREATE FUNCTION pgbeat.drop_partition(name text, kept text[]) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    oldest record;
    past   text;
    moved  bigint;
BEGIN
    SELECT * INTO STRICT oldest FROM pgbeat.partitions p WHERE p.name = drop_partition.name
       FOR UPDATE;
    IF oldest.ends_at IS NULL OR oldest.starts_at IS DISTINCT FROM (
        SELECT min(p.starts_at) FROM pgbeat.partitions p WHERE p.history = oldest.history) THEN
        RAISE EXCEPTION '% is not the oldest period of %', name, oldest.history;
    END IF;
    PERFORM pgbeat.require_delete(oldest.history);
    past := oldest.history || '_kept';
    EXECUTE format('ALTER TABLE pgbeat.%I DETACH PARTITION pgbeat.%I', oldest.history, name);
    EXECUTE format('ALTER TABLE pgbeat.%I DETACH PARTITION pgbeat.%I', oldest.history, past);
    EXECUTE format('INSERT INTO pgbeat.%I OVERRIDING SYSTEM VALUE
            SELECT * FROM pgbeat.%I WHERE id = ANY ($1::%s[])', past, name,
        (SELECT format_type(atttypid, NULL) FROM pg_attribute
          WHERE attrelid = format('pgbeat.%I', name)::regclass AND attname = 'id'))
      USING kept;
    GET DIAGNOSTICS moved = ROW_COUNT;
    EXECUTE format('ALTER TABLE pgbeat.%I ATTACH PARTITION pgbeat.%I FOR VALUES FROM (MINVALUE)
            TO (%L)', oldest.history, past, oldest.ends_at);
    EXECUTE format('DROP TABLE pgbeat.%I', name);
    DELETE FROM pgbeat.partitions p WHERE p.name = drop_partition.name;
    UPDATE pgbeat.partitions p SET ends_at = oldest.ends_at WHERE p.name = past;
    RETURN moved;
END
$$;

DO $$
DECLARE
    history text;
    today   CONSTANT timestamptz := date_trunc('day', now(), 'UTC');
BEGIN
    FOREACH history IN ARRAY ARRAY['ended_jobs', 'ended_executions', 'ticks'] LOOP
        EXECUTE format('CREATE TABLE pgbeat.%I PARTITION OF pgbeat.%I FOR VALUES FROM (MINVALUE)
                TO (%L)', history || '_kept', history, today);
        EXECUTE format('CREATE TABLE pgbeat.%I PARTITION OF pgbeat.%I FOR VALUES FROM (%L)
                TO (MAXVALUE)', history || '_to_come', history, today);
        INSERT INTO pgbeat.partitions VALUES (history, history || '_kept', NULL, today),
            (history, history || '_to_come', today, NULL);
    END LOOP;
END
$$;
