-- Retries: each is a job of its own, linked by `retried_by` and `retry_of`. By hand, a job may be
-- retried twice, and a retry goes on with the chain: a chain may branch, and has no natural end.

-- The id of the job that retries a job which `target` is recorded for; NULL if none does. It is
-- always the same, so that a retry is made once. A job that keeps its id is retried by Celery.
CREATE FUNCTION pgbeat.retry_id(
    id uuid, keeps_id boolean, args jsonb, attempt integer, max_attempts integer,
    cancel_requested_at timestamptz, target text) RETURNS uuid
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN target = 'failed' AND NOT keeps_id AND cancel_requested_at IS NULL
                     AND args IS NOT NULL AND attempt < max_attempts
                THEN md5(id || '/retry')::uuid END
$$;

-- These two walk in a loop: Postgres would estimate a recursive query at thousands of rows, each with
-- a look into every partition of history, and compile it at every call.

-- A job and those that retried it, one after the other and numbered from 1; each with the last error
-- that it or one before it ended with. The job with the highest number stands for the others.
CREATE FUNCTION pgbeat.attempts_from(first uuid)
RETURNS TABLE (id uuid, number integer, error text)
LANGUAGE plpgsql STABLE ROWS 2 SET jit = off AS $$
DECLARE
    j record;
BEGIN
    id := first;
    FOR attempt IN 1..1000 LOOP
        SELECT o.retried_by, o.error INTO j FROM pgbeat.jobs o WHERE o.id = attempts_from.id;
        EXIT WHEN NOT FOUND;
        number := attempt;
        error := coalesce(j.error, error);
        RETURN NEXT;
        EXIT WHEN j.retried_by IS NULL;
        id := j.retried_by;
    END LOOP;
END
$$;

-- The jobs of the chain that a job is part of, up to a thousand: the first one that is still kept,
-- and all that retry it, those of one attempt before those of the next.
CREATE FUNCTION pgbeat.retry_chain(member uuid) RETURNS SETOF uuid
LANGUAGE plpgsql STABLE ROWS 2 SET jit = off AS $$
DECLARE
    most  CONSTANT integer := 1000;
    level uuid[] := ARRAY(SELECT j.id FROM pgbeat.jobs j WHERE j.id = member);
    above uuid[];
    given integer := 0;
BEGIN
    FOR step IN 1..most LOOP
        above := ARRAY(SELECT b.id FROM pgbeat.jobs b WHERE b.id = (
            SELECT j.retry_of FROM pgbeat.jobs j WHERE j.id = level[1]));
        EXIT WHEN above = '{}';
        level := above;
    END LOOP;
    WHILE level <> '{}' AND given < most LOOP
        RETURN QUERY SELECT unnest(level);
        given := given + cardinality(level);
        level := ARRAY(SELECT j.id FROM pgbeat.jobs j WHERE j.retry_of = ANY (level)
                        LIMIT most - given);
    END LOOP;
END
$$;
