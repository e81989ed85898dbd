-- As before, but with the rights of who inserts: anybody may make it the trigger of a table of theirs, and casts
-- of their types would run as its owner. A role that publishes needs no rights on the schema pgbeat all the same,
-- since this is `announce_queue` without a call of it.
CREATE OR REPLACE FUNCTION pgbeat.announce_messages() RETURNS trigger
LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    queue bigint;
    slot  integer;
BEGIN
    FOR queue IN SELECT DISTINCT queue_id FROM fresh WHERE visible LOOP
        slot := queue % 64;
        PERFORM pg_advisory_xact_lock_shared(1885823601, slot);
        IF pg_try_advisory_lock(1885823594, slot) THEN
            PERFORM pg_advisory_unlock(1885823594, slot);
        ELSE
            PERFORM pg_notify('pgbeat_queue_' || queue, '');
        END IF;
    END LOOP;
    IF EXISTS (SELECT FROM fresh WHERE available_at < now() + interval '3 seconds') THEN
        PERFORM pg_notify('pgbeat_broker', 'delayed');
    END IF;
    RETURN NULL;
END
$$;
