-- History in partitions by time. Each history has one or more partitions of what retention has kept of
-- the periods that it dropped (`…_kept`, from the oldest on), one for each period since, named by its
-- first day, and one of all that is to come (`…_to_come`), empty as long as a beat adds partitions ahead.

CREATE TABLE pgbeat.partitions (
    history   text NOT NULL,
    name      text PRIMARY KEY,
    starts_at timestamptz,                            -- NULL: …_kept
    ends_at   timestamptz,                            -- NULL: …_to_come
    is_kept   boolean NOT NULL DEFAULT false,         -- what was not kept of its rows is gone
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

-- Drops a history's oldest period but for the rows with these ids. Puts what it kept in place of it
-- and of `merged` partitions before it, which are kept already; without a period, only these become one.
-- Returns how many rows the new partition has.
--
-- All rows are copied before the history's table is locked, which takes milliseconds then. Those that
-- are copied are locked: nobody changes them meanwhile. `drop_gone` must follow, in a transaction of
-- its own: to drop tables takes longer than the rest.
CREATE FUNCTION pgbeat.keep_partition(merged text[], period text, kept text[]) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    names CONSTANT text[] := merged || period;
    own   record;
    moment text;
    built  text;
    made   text;
    name   text;
    moved  bigint := 0;
    number bigint;
BEGIN
    PERFORM FROM pgbeat.partitions p WHERE p.name = ANY (names) FOR UPDATE;
    SELECT p.history, min(p.starts_at) AS begins, bool_or(p.starts_at IS NULL) AS is_first,
           max(p.ends_at) AS ends, count(*) AS number,
           bool_and(p.ends_at IS NOT NULL AND (p.is_kept OR p.name IS NOT DISTINCT FROM period
               AND p.starts_at = (SELECT min(o.starts_at) FROM pgbeat.partitions o
                                   WHERE o.history = p.history AND NOT o.is_kept))) AS are_old
      INTO STRICT own FROM pgbeat.partitions p WHERE p.name = ANY (names) GROUP BY p.history;
    IF own.number <> cardinality(names) - (period IS NULL)::integer OR NOT own.are_old OR EXISTS (
        SELECT FROM pgbeat.partitions p
         WHERE p.history = own.history AND p.name <> ALL (array_remove(names, NULL))
           AND p.ends_at <= own.ends AND (own.is_first OR p.starts_at >= own.begins)) THEN
        RAISE EXCEPTION '% is not the oldest period of %, after what is kept', names, own.history;
    END IF;
    PERFORM pgbeat.require_delete(own.history);
    SELECT attname INTO STRICT moment
      FROM pg_partitioned_table p JOIN pg_attribute a
           ON a.attrelid = p.partrelid AND a.attnum = p.partattrs[0]
     WHERE p.partrelid = format('pgbeat.%I', own.history)::regclass;
    built := own.history || '_built';
    EXECUTE format('CREATE TABLE pgbeat.%I (LIKE pgbeat.%I INCLUDING ALL EXCLUDING IDENTITY,
            CONSTRAINT period CHECK (%I IS NOT NULL AND %I < %L AND (%L OR %I >= %L)))', built,
        own.history, moment, moment, own.ends, own.is_first, moment, own.begins);
    FOREACH name IN ARRAY array_remove(names, NULL) LOOP
        EXECUTE format('INSERT INTO pgbeat.%I SELECT * FROM pgbeat.%I
                WHERE %L OR id = ANY ($1::%s[]) FOR UPDATE', built, name,
            name IS DISTINCT FROM period, (SELECT format_type(atttypid, NULL) FROM pg_attribute
              WHERE attrelid = format('pgbeat.%I', name)::regclass AND attname = 'id'))
          USING kept;
        GET DIAGNOSTICS number = ROW_COUNT;
        moved := moved + number;
    END LOOP;
    FOR try IN 1..20 LOOP
        BEGIN
            FOREACH name IN ARRAY array_remove(names, NULL) LOOP
                EXECUTE format('ALTER TABLE pgbeat.%I DETACH PARTITION pgbeat.%I', own.history, name);
            END LOOP;
            EXIT;
        EXCEPTION WHEN lock_not_available THEN
            IF try = 20 THEN
                RAISE;
            END IF;
            PERFORM pg_sleep(0.25);
        END;
    END LOOP;
    EXECUTE format('ALTER TABLE pgbeat.%I ATTACH PARTITION pgbeat.%I FOR VALUES FROM (%s) TO (%L)',
        own.history, built, CASE WHEN own.is_first THEN 'MINVALUE' ELSE quote_literal(own.begins) END,
        own.ends);
    FOREACH name IN ARRAY array_remove(names, NULL) LOOP
        EXECUTE format('ALTER TABLE pgbeat.%I RENAME TO %I', name,
            own.history || '_gone_' || format('pgbeat.%I', name)::regclass::oid);
    END LOOP;
    made := own.history || '_kept' || CASE WHEN own.is_first THEN ''
        ELSE to_char(own.begins AT TIME ZONE 'UTC', '_YYYYMMDD') END;
    EXECUTE format('ALTER TABLE pgbeat.%I RENAME TO %I', built, made);
    DELETE FROM pgbeat.partitions p WHERE p.name = ANY (names);
    INSERT INTO pgbeat.partitions
    VALUES (own.history, made, CASE WHEN NOT own.is_first THEN own.begins END, own.ends, true);
    RETURN moved;
END
$$;

-- Drops one of the partitions of a history that `keep_partition` has replaced; returns whether there
-- was one. A reader whose plan is older may lock several of them, in another order.
CREATE FUNCTION pgbeat.drop_gone(history text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    name text;
BEGIN
    PERFORM pgbeat.require_delete(history);
    SELECT relname INTO name FROM pg_class
     WHERE relnamespace = 'pgbeat'::regnamespace AND relkind = 'r' AND NOT relispartition
       AND relname = history || '_gone_' || oid LIMIT 1;
    IF name IS NOT NULL THEN
        EXECUTE format('DROP TABLE pgbeat.%I', name);
    END IF;
    RETURN name IS NOT NULL;
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
        INSERT INTO pgbeat.partitions VALUES (history, history || '_kept', NULL, today, true),
            (history, history || '_to_come', today, NULL, false);
    END LOOP;
END
$$;
