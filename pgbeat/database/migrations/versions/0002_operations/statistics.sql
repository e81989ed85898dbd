-- Analyzes one of the owner's tables of pgbeat or of the broker, for a role that may delete history.
CREATE FUNCTION pgbeat.analyze_table(id oid) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    name regclass;
BEGIN
    PERFORM pgbeat.require_delete('ended_jobs');
    SELECT c.oid INTO name FROM pg_class c
     WHERE c.oid = id AND c.relkind = 'r' AND pg_has_role(c.relowner, 'USAGE')
       AND (c.relnamespace = 'pgbeat'::regnamespace OR c.relname = 'kombu_message');
    IF FOUND THEN
        EXECUTE format('ANALYZE %s', name);
    END IF;
END
$$;
