-- Claims have one index that the planner can choose. After a vacuum that found no message, it expects one
-- wherever it looks: to read all visible ones by the index that consumers of kombu's stock transport use,
-- and to sort them, seemed as good as to read the first few in order, and each claim read all that waited
-- until the next ANALYZE. Stock consumers find a queue's messages by `kombu_message_ready`, and sort them.
DO $$
BEGIN
    DROP INDEX IF EXISTS ix_kombu_message_timestamp_id;
EXCEPTION WHEN insufficient_privilege THEN
    RAISE WARNING 'another role owns kombu_message: drop its index ix_kombu_message_timestamp_id as that role';
END
$$;

-- As before, but for that index.
CREATE OR REPLACE FUNCTION pgbeat.equip_broker() RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
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
