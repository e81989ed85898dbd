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

-- The newest jobs of a state, each read by the index `jobs_by_state`. A planner that knows of one state
-- goes through the table for another, or through all jobs by time. The bounds are those of one state, but
-- the planner must not know: else it needs no order by state, which no other index has. Only with
-- `sourced`, which the index doesn't know, are the rows themselves read.
CREATE FUNCTION pgbeat.newest_jobs(
    namespace text, state text, most bigint, sourced boolean DEFAULT false)
RETURNS TABLE (id uuid, created_at timestamptz, job_source text)
LANGUAGE plpgsql STABLE SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
BEGIN
    IF sourced THEN
        RETURN QUERY
        SELECT j.id, j.created_at, j.job_source FROM pgbeat.jobs j
         WHERE j.namespace = newest_jobs.namespace
           AND j.state >= newest_jobs.state AND j.state <= newest_jobs.state
         ORDER BY j.state DESC, j.created_at DESC, j.id DESC LIMIT most;
    ELSE
        RETURN QUERY
        SELECT j.id, j.created_at, NULL::text FROM pgbeat.jobs j
         WHERE j.namespace = newest_jobs.namespace
           AND j.state >= newest_jobs.state AND j.state <= newest_jobs.state
         ORDER BY j.state DESC, j.created_at DESC, j.id DESC LIMIT most;
    END IF;
END
$$;
