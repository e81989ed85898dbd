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

-- A job and those that retried it, one after the other and numbered from 1; each with the last error
-- that it or one before it ended with. The job with the highest number stands for the others.
CREATE FUNCTION pgbeat.attempts_from(first uuid)
RETURNS TABLE (id uuid, number integer, error text)
LANGUAGE sql STABLE AS $$
    WITH RECURSIVE chain AS (
        SELECT j.id, j.retried_by, j.error, 1 AS number FROM pgbeat.jobs j WHERE j.id = first
        UNION ALL
        SELECT n.id, n.retried_by, coalesce(n.error, c.error), c.number + 1
          FROM chain c CROSS JOIN LATERAL (
               SELECT * FROM pgbeat.jobs WHERE id = c.retried_by OFFSET 0) AS n
         WHERE c.number < 1000)
    SELECT c.id, c.number, c.error FROM chain c
$$;

-- All jobs of the chain that a job is part of: those that it retries, and all that retry these.
CREATE FUNCTION pgbeat.retry_chain(member uuid) RETURNS SETOF uuid
LANGUAGE sql STABLE AS $$
    WITH RECURSIVE before AS (
        SELECT j.id, j.retry_of FROM pgbeat.jobs j WHERE j.id = member
        UNION
        SELECT j.id, j.retry_of FROM before b CROSS JOIN LATERAL (
               SELECT * FROM pgbeat.jobs WHERE id = b.retry_of OFFSET 0) AS j),
    chain AS (
        SELECT b.id FROM before b
        UNION
        SELECT j.id FROM chain c CROSS JOIN LATERAL (
               SELECT * FROM pgbeat.jobs WHERE retry_of = c.id OFFSET 0) AS j)
    SELECT c.id FROM chain c
$$;
