-- Makes what the broker's tables need besides their columns, wherever it is missing. Dropping the
-- schema pgbeat, for one, takes the triggers along.
CREATE FUNCTION pgbeat.equip_broker() RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    CREATE INDEX IF NOT EXISTS ix_kombu_message_timestamp_id ON kombu_message (timestamp, id)
        WHERE visible;
    CREATE INDEX IF NOT EXISTS kombu_message_ready
        ON kombu_message (queue_id, priority DESC, (id + 0)) WHERE visible;
    CREATE INDEX IF NOT EXISTS kombu_message_delayed ON kombu_message (available_at)
        WHERE available_at IS NOT NULL;
    CREATE INDEX IF NOT EXISTS kombu_message_claimed ON kombu_message (claimed_by)
        WHERE claimed_by IS NOT NULL;
    CREATE INDEX IF NOT EXISTS kombu_message_expiring ON kombu_message (expires_at)
        WHERE expires_at IS NOT NULL;
    -- A job's message is found by the job, to be withdrawn. Most messages have none, and cost
    -- nothing.
    CREATE INDEX IF NOT EXISTS kombu_message_job ON kombu_message (job_id)
        WHERE job_id IS NOT NULL;
    -- What the stock transport has delivered and never deletes: no other row is in this index.
    CREATE INDEX IF NOT EXISTS kombu_message_useless ON kombu_message (id)
        WHERE NOT visible AND claimed_by IS NULL AND available_at IS NULL;
    CREATE TABLE IF NOT EXISTS kombu_queue_exchange (
        name text PRIMARY KEY, type text NOT NULL, durable boolean NOT NULL,
        auto_delete boolean NOT NULL);
    CREATE TABLE IF NOT EXISTS kombu_queue_binding (
        exchange text NOT NULL, routing_key text NOT NULL, queue_id bigint NOT NULL,
        type text NOT NULL, pattern text, PRIMARY KEY (exchange, routing_key, queue_id));
    CREATE INDEX IF NOT EXISTS kombu_queue_binding_queue ON kombu_queue_binding (queue_id);
    CREATE TABLE IF NOT EXISTS kombu_queue_consumer (
        queue_id bigint NOT NULL, consumer_id integer NOT NULL,
        PRIMARY KEY (queue_id, consumer_id));
    CREATE TABLE IF NOT EXISTS kombu_message_dead (
        id bigint PRIMARY KEY, queue text NOT NULL, payload text NOT NULL,
        priority smallint NOT NULL, deliveries smallint NOT NULL, reason text NOT NULL,
        enqueued_at timestamptz,
        died_at timestamptz NOT NULL DEFAULT now(), job_id uuid);
    CREATE INDEX IF NOT EXISTS kombu_message_dead_time ON kombu_message_dead (died_at);
    CREATE INDEX IF NOT EXISTS kombu_message_dead_job ON kombu_message_dead (job_id)
        WHERE job_id IS NOT NULL;

    CREATE OR REPLACE TRIGGER pgbeat_announce AFTER INSERT ON kombu_message
        REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT
        EXECUTE FUNCTION pgbeat.announce_messages();
    CREATE OR REPLACE TRIGGER pgbeat_bound AFTER INSERT ON kombu_queue_binding
        REFERENCING NEW TABLE AS changed FOR EACH STATEMENT
        EXECUTE FUNCTION pgbeat.announce_bindings();
    CREATE OR REPLACE TRIGGER pgbeat_unbound AFTER DELETE ON kombu_queue_binding
        REFERENCING OLD TABLE AS changed FOR EACH STATEMENT
        EXECUTE FUNCTION pgbeat.announce_bindings();
END
$$;

-- Makes kombu's tables, or adopts those that are there, with the messages in them. Changing the
-- type of a column breaks statements that other sessions have prepared: those of kombu's stock
-- transport poll every second, so they are caught waiting for the lock, and ended. They connect
-- again, as after any lost connection.
CREATE FUNCTION pgbeat.adopt_broker() RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    index   text;
    other   integer;
BEGIN
    PERFORM pg_advisory_xact_lock(123589334753652);
    -- IF NOT EXISTS doesn't see what another session (a stock worker's) is just making: each time
    -- it fails for that, one more of them is there.
    FOR attempt IN 1..5 LOOP
        BEGIN
            CREATE SEQUENCE IF NOT EXISTS queue_id_sequence;
            CREATE SEQUENCE IF NOT EXISTS message_id_sequence;
            CREATE TABLE IF NOT EXISTS kombu_queue (
                id bigint PRIMARY KEY DEFAULT nextval('queue_id_sequence'),
                name varchar(200) UNIQUE);
            CREATE TABLE IF NOT EXISTS kombu_message (
                id bigint PRIMARY KEY DEFAULT nextval('message_id_sequence'),
                visible boolean DEFAULT true,
                timestamp timestamp,
                payload text NOT NULL,
                version smallint NOT NULL DEFAULT 1,
                queue_id bigint);
            EXIT;
        EXCEPTION WHEN unique_violation OR duplicate_table OR duplicate_object THEN
            IF attempt = 5 THEN
                RAISE;
            END IF;
        END;
    END LOOP;
    IF EXISTS (SELECT FROM pg_attribute
         WHERE attrelid = to_regclass('kombu_message') AND attname = 'claimed_by') THEN
        PERFORM pgbeat.equip_broker();
        RETURN;
    END IF;
    LOCK TABLE kombu_queue, kombu_message IN ACCESS EXCLUSIVE MODE;

    IF 'int4'::regtype IN (SELECT atttypid FROM pg_attribute
         WHERE attrelid IN (to_regclass('kombu_queue'), to_regclass('kombu_message'))
           AND attname IN ('id', 'queue_id')) THEN
        PERFORM pg_sleep(1.5);
        -- Waiting messages only: the stock transport has no more use for what it delivered.
        CREATE TEMPORARY TABLE pgbeat_waiting ON COMMIT DROP AS
            SELECT id, payload, version, queue_id, timestamp FROM kombu_message WHERE visible;
        TRUNCATE kombu_message;
        ALTER TABLE kombu_message DROP CONSTRAINT IF EXISTS "FK_kombu_message_queue";
        ALTER TABLE kombu_queue ALTER id TYPE bigint;
        ALTER TABLE kombu_message ALTER id TYPE bigint, ALTER queue_id TYPE bigint;
        INSERT INTO kombu_message (id, visible, payload, version, queue_id, timestamp)
            SELECT id, true, payload, version, queue_id, timestamp FROM pgbeat_waiting;
        -- Whoever waits for us now has a statement prepared on what the tables were.
        FOR other IN SELECT DISTINCT l.pid FROM pg_locks l JOIN pg_stat_activity a USING (pid)
             WHERE l.relation IN (to_regclass('kombu_queue'), to_regclass('kombu_message'))
               AND NOT l.granted AND a.backend_type = 'client backend' LOOP
            BEGIN
                PERFORM pg_terminate_backend(other);
            EXCEPTION WHEN insufficient_privilege THEN
                RAISE WARNING 'session % uses the broker''s tables and belongs to another role: '
                    'restart its process', other;
            END;
        END LOOP;
    END IF;

    ALTER TABLE kombu_queue
        ALTER id SET DEFAULT nextval('queue_id_sequence'),
        ADD durable        boolean NOT NULL DEFAULT true,
        ADD auto_delete    boolean NOT NULL DEFAULT false,
        ADD owner          integer,   -- the consumer that it is exclusive to
        ADD max_priority   smallint,
        ADD message_ttl    bigint,    -- milliseconds, as in AMQP
        ADD expires        bigint,    -- milliseconds without use
        ADD delivery_limit integer,
        ADD used_at        timestamptz NOT NULL DEFAULT now(),
        ADD paused_at      timestamptz;
    ALTER TABLE kombu_message
        ALTER id SET DEFAULT nextval('message_id_sequence'),
        ALTER visible SET DEFAULT true,
        ALTER version SET DEFAULT 1,
        ADD priority     smallint NOT NULL DEFAULT 0,
        ADD available_at timestamptz,          -- not before; NULL: now
        ADD expires_at   timestamptz,
        ADD enqueued_at  timestamptz DEFAULT now(),
        ADD claimed_by   integer,
        ADD deliveries   smallint NOT NULL DEFAULT 0,
        ADD redelivered  boolean NOT NULL DEFAULT false,
        ADD job_id       uuid;

    -- Every index of a queue's table is written at every message. The stock transport's consumers
    -- read visible rows by time; with NULL times in the order of their ids. In the index of the
    -- claims the id is an expression: the primary key must not seem to serve as well.
    FOR index IN SELECT indexrelid::regclass FROM pg_index
         WHERE indrelid = to_regclass('kombu_message') AND NOT indisprimary LOOP
        EXECUTE 'DROP INDEX ' || index;
    END LOOP;
    -- Rows live for seconds: vacuum by their number, not by the table's size, and without naps.
    ALTER TABLE kombu_message SET (fillfactor = 70,
        autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
        autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 100000,
        autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 10000,
        autovacuum_vacuum_cost_delay = 0, toast.autovacuum_vacuum_scale_factor = 0,
        toast.autovacuum_vacuum_threshold = 2000, toast.autovacuum_vacuum_cost_delay = 0);
    PERFORM pgbeat.equip_broker();
END
$$;
