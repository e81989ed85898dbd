-- Makes what the broker's tables need besides their columns, wherever it is missing. Dropping the
-- schema pgbeat, for one, takes the triggers along.
CREATE FUNCTION pgbeat.equip_broker(queue_table text, message_table text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    m text := quote_ident(message_table);
BEGIN
    EXECUTE format('CREATE INDEX IF NOT EXISTS %I ON %s (timestamp, id) WHERE visible',
        'ix_' || message_table || '_timestamp_id', m);
    EXECUTE format('CREATE INDEX IF NOT EXISTS %I
        ON %s (queue_id, priority DESC, (id + 0)) WHERE visible',
        message_table || '_ready', m);
    EXECUTE format('CREATE INDEX IF NOT EXISTS %I ON %s (available_at)
        WHERE available_at IS NOT NULL',
        message_table || '_delayed', m);
    EXECUTE format('CREATE INDEX IF NOT EXISTS %I ON %s (claimed_by)
        WHERE claimed_by IS NOT NULL',
        message_table || '_claimed', m);
    EXECUTE format('CREATE INDEX IF NOT EXISTS %I ON %s (expires_at)
        WHERE expires_at IS NOT NULL',
        message_table || '_expiring', m);
    -- A job's message is found by the job, to be withdrawn. Most messages have none, and cost
    -- nothing.
    EXECUTE format('CREATE INDEX IF NOT EXISTS %I ON %s (job_id) WHERE job_id IS NOT NULL',
        message_table || '_job', m);
    -- What the stock transport has delivered and never deletes: no other row is in this index.
    EXECUTE format('CREATE INDEX IF NOT EXISTS %I ON %s (id)
        WHERE NOT visible AND claimed_by IS NULL AND available_at IS NULL',
        message_table || '_useless', m);
    EXECUTE format('CREATE TABLE IF NOT EXISTS %I (
        name text PRIMARY KEY, type text NOT NULL, durable boolean NOT NULL,
        auto_delete boolean NOT NULL)', queue_table || '_exchange');
    EXECUTE format('CREATE TABLE IF NOT EXISTS %I (
        exchange text NOT NULL, routing_key text NOT NULL, queue_id bigint NOT NULL,
        type text NOT NULL, pattern text, PRIMARY KEY (exchange, routing_key, queue_id))',
        queue_table || '_binding');
    EXECUTE format('CREATE INDEX IF NOT EXISTS %I ON %I (queue_id)',
        queue_table || '_binding_queue', queue_table || '_binding');
    EXECUTE format('CREATE TABLE IF NOT EXISTS %I (
        queue_id bigint NOT NULL, consumer_id integer NOT NULL,
        PRIMARY KEY (queue_id, consumer_id))', queue_table || '_consumer');
    EXECUTE format('CREATE TABLE IF NOT EXISTS %I (
        id bigint PRIMARY KEY, queue text NOT NULL, payload text NOT NULL,
        priority smallint NOT NULL, deliveries smallint NOT NULL, reason text NOT NULL,
        enqueued_at timestamptz,
        died_at timestamptz NOT NULL DEFAULT now(), job_id uuid)', message_table || '_dead');
    EXECUTE format('CREATE INDEX IF NOT EXISTS %I ON %I (died_at)',
        message_table || '_dead_time', message_table || '_dead');
    EXECUTE format('CREATE INDEX IF NOT EXISTS %I ON %I (job_id) WHERE job_id IS NOT NULL',
        message_table || '_dead_job', message_table || '_dead');

    EXECUTE format('CREATE OR REPLACE TRIGGER pgbeat_announce AFTER INSERT ON %s
        REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT
        EXECUTE FUNCTION pgbeat.announce_messages()', m);
    EXECUTE format('CREATE OR REPLACE TRIGGER pgbeat_bound AFTER INSERT ON %I
        REFERENCING NEW TABLE AS changed FOR EACH STATEMENT
        EXECUTE FUNCTION pgbeat.announce_bindings()', queue_table || '_binding');
    EXECUTE format('CREATE OR REPLACE TRIGGER pgbeat_unbound AFTER DELETE ON %I
        REFERENCING OLD TABLE AS changed FOR EACH STATEMENT
        EXECUTE FUNCTION pgbeat.announce_bindings()', queue_table || '_binding');
END
$$;

-- Makes kombu's tables, or adopts those that are there, with the messages in them. Changing the
-- type of a column breaks statements that other sessions have prepared: those of kombu's stock
-- transport poll every second, so they are caught waiting for the lock, and ended. They connect
-- again, as after any lost connection.
CREATE FUNCTION pgbeat.adopt_broker(
    queue_table text DEFAULT 'kombu_queue', message_table text DEFAULT 'kombu_message'
) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    q       text;  -- the names, quoted
    m       text;
    index   text;
    other   integer;
BEGIN
    PERFORM pg_advisory_xact_lock(123589334753652);
    -- IF NOT EXISTS doesn't see what another session (a stock worker's) is just making: each time
    -- it fails for that, one more of them is there.
    FOR attempt IN 1..5 LOOP
        BEGIN
            EXECUTE 'CREATE SEQUENCE IF NOT EXISTS queue_id_sequence';
            EXECUTE 'CREATE SEQUENCE IF NOT EXISTS message_id_sequence';
            EXECUTE format('CREATE TABLE IF NOT EXISTS %I (
                id bigint PRIMARY KEY DEFAULT nextval(''queue_id_sequence''),
                name varchar(200) UNIQUE)', queue_table);
            EXECUTE format('CREATE TABLE IF NOT EXISTS %I (
                id bigint PRIMARY KEY DEFAULT nextval(''message_id_sequence''),
                visible boolean DEFAULT true,
                timestamp timestamp,
                payload text NOT NULL,
                version smallint NOT NULL DEFAULT 1,
                queue_id bigint)', message_table);
            EXIT;
        EXCEPTION WHEN unique_violation OR duplicate_table OR duplicate_object THEN
            IF attempt = 5 THEN
                RAISE;
            END IF;
        END;
    END LOOP;
    q := quote_ident(queue_table);
    m := quote_ident(message_table);
    IF EXISTS (SELECT FROM pg_attribute
         WHERE attrelid = m::regclass AND attname = 'claimed_by') THEN
        PERFORM pgbeat.equip_broker(queue_table, message_table);
        RETURN;
    END IF;
    EXECUTE format('LOCK TABLE %s, %s IN ACCESS EXCLUSIVE MODE', q, m);

    IF 'int4'::regtype IN (SELECT atttypid FROM pg_attribute
         WHERE attrelid IN (q::regclass, m::regclass) AND attname IN ('id', 'queue_id')) THEN
        PERFORM pg_sleep(1.5);
        -- Waiting messages only: the stock transport has no more use for what it delivered.
        EXECUTE format('CREATE TEMPORARY TABLE pgbeat_waiting ON COMMIT DROP AS
            SELECT id, payload, version, queue_id, timestamp FROM %s WHERE visible', m);
        EXECUTE format('TRUNCATE %s', m);
        FOR other IN EXECUTE format('SELECT 1 FROM pg_constraint WHERE conrelid = %L::regclass
            AND conname = ''FK_kombu_message_queue''', m) LOOP
            EXECUTE format('ALTER TABLE %s DROP CONSTRAINT "FK_kombu_message_queue"', m);
        END LOOP;
        EXECUTE format('ALTER TABLE %s ALTER id TYPE bigint', q);
        EXECUTE format('ALTER TABLE %s ALTER id TYPE bigint, ALTER queue_id TYPE bigint', m);
        EXECUTE format('INSERT INTO %s (id, visible, payload, version, queue_id, timestamp)
            SELECT id, true, payload, version, queue_id, timestamp FROM pgbeat_waiting', m);
        -- Whoever waits for us now has a statement prepared on what the tables were.
        FOR other IN SELECT DISTINCT l.pid FROM pg_locks l JOIN pg_stat_activity a USING (pid)
             WHERE l.relation IN (q::regclass, m::regclass) AND NOT l.granted
               AND a.backend_type = 'client backend' LOOP
            BEGIN
                PERFORM pg_terminate_backend(other);
            EXCEPTION WHEN insufficient_privilege THEN
                RAISE WARNING 'session % uses the broker''s tables and belongs to another role: '
                    'restart its process', other;
            END;
        END LOOP;
    END IF;

    EXECUTE format('ALTER TABLE %s
        ALTER id SET DEFAULT nextval(''queue_id_sequence''),
        ADD durable        boolean NOT NULL DEFAULT true,
        ADD auto_delete    boolean NOT NULL DEFAULT false,
        ADD owner          integer,   -- the consumer that it is exclusive to
        ADD max_priority   smallint,
        ADD message_ttl    bigint,    -- milliseconds, as in AMQP
        ADD expires        bigint,    -- milliseconds without use
        ADD delivery_limit integer,
        ADD used_at        timestamptz NOT NULL DEFAULT now(),
        ADD paused_at      timestamptz', q);
    EXECUTE format('ALTER TABLE %s
        ALTER id SET DEFAULT nextval(''message_id_sequence''),
        ALTER visible SET DEFAULT true,
        ALTER version SET DEFAULT 1,
        ADD priority     smallint NOT NULL DEFAULT 0,
        ADD available_at timestamptz,          -- not before; NULL: now
        ADD expires_at   timestamptz,
        ADD enqueued_at  timestamptz DEFAULT now(),
        ADD claimed_by   integer,
        ADD deliveries   smallint NOT NULL DEFAULT 0,
        ADD redelivered  boolean NOT NULL DEFAULT false,
        ADD job_id       uuid', m);

    -- Every index of a queue's table is written at every message. The stock transport's consumers
    -- read visible rows by time; with NULL times in the order of their ids. In the index of the
    -- claims the id is an expression: the primary key must not seem to serve as well.
    FOR index IN SELECT format('%I.%I', schemaname, indexname) FROM pg_indexes
         WHERE format('%I.%I', schemaname, tablename)::regclass = m::regclass
           AND indexname NOT LIKE '%pkey' LOOP
        EXECUTE 'DROP INDEX ' || index;
    END LOOP;
    -- Rows live for seconds: vacuum by their number, not by the table's size, and without naps.
    EXECUTE format('ALTER TABLE %s SET (fillfactor = 70,
        autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
        autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 100000,
        autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 10000,
        autovacuum_vacuum_cost_delay = 0, toast.autovacuum_vacuum_scale_factor = 0,
        toast.autovacuum_vacuum_threshold = 2000, toast.autovacuum_vacuum_cost_delay = 0)', m);
    PERFORM pgbeat.equip_broker(queue_table, message_table);
END
$$;
