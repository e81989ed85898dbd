-- Jobs that wait for other jobs to end: their parents. A job counts its unfinished parents in its row,
-- and the transaction that ends the last of them decides about it.
--
-- Neither a parent nor its other dependents are locked while a job begins to depend on it: a transaction
-- that stays open must not keep workers from recording ends. If the parent ends before that commits,
-- neither transaction sees the other; the program that submitted the job looks again after its commit,
-- and the leading beat now and then.

CREATE TABLE pgbeat.dependencies (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job_id     uuid NOT NULL,
    parent_id  uuid NOT NULL,
    needs      text NOT NULL DEFAULT 'completed',
    -- The state in which the parent ended; 'retried' if its retry has taken its place, 'gone' if it was
    -- deleted. NULL: it has not ended.
    outcome    text,
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT dependencies_once UNIQUE (job_id, parent_id),
    CONSTRAINT dependencies_of_others CHECK (job_id <> parent_id),
    CONSTRAINT dependencies_needs CHECK (needs IN ('completed', 'finished'))
);
CREATE INDEX dependencies_of_parent ON pgbeat.dependencies (parent_id, outcome);

-- Has a new job, which no one has dispatched, wait for its parents.
CREATE FUNCTION pgbeat.depend_on(job uuid, parents uuid[], own_needs text) RETURNS void
LANGUAGE sql AS $$
    WITH edges AS (
        INSERT INTO pgbeat.dependencies (job_id, parent_id, needs)
        SELECT DISTINCT job, p.id, own_needs FROM unnest(parents) AS p (id)
        RETURNING parent_id)
    UPDATE pgbeat.unfinished_jobs j
       SET is_blocked = true, unfinished_parents = (SELECT count(*) FROM edges)
     WHERE j.id = job
$$;

-- Notes that these parents have ended, in the transaction that ends them, and returns the jobs about
-- which something is to be done: those that may run now, and, with one parent that ended otherwise and
-- how, those that can't run any more. The retry of a parent takes its place. Parents that have not ended
-- are passed over, so that calling it again, or with too many, does no harm. With `dependents`, it looks
-- at no other jobs: a transaction that submits them may stay open, and must lock nothing of others.
--
-- Invariant: jobs are locked before they are counted, and in order. Of two parents that end at the same
-- time, the second sees the first.
CREATE FUNCTION pgbeat.end_parents(parents uuid[], dependents uuid[] DEFAULT NULL)
RETURNS TABLE (job_id uuid, parent_id uuid, outcome text)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    PERFORM FROM pgbeat.unfinished_jobs j
      WHERE j.id = ANY (ARRAY(SELECT d.job_id FROM pgbeat.dependencies d
                               WHERE d.parent_id = ANY (parents) AND d.outcome IS NULL
                                 AND (dependents IS NULL OR d.job_id = ANY (dependents))))
      ORDER BY j.id FOR NO KEY UPDATE;
    RETURN QUERY
    WITH last AS MATERIALIZED (
        SELECT p.id, a.id AS attempt, a.state
          FROM (SELECT DISTINCT unnest(parents) AS id) AS p LEFT JOIN LATERAL (
               SELECT c.id, j.state
                 FROM pgbeat.attempts_from(p.id) AS c CROSS JOIN LATERAL (
                      SELECT state FROM pgbeat.jobs WHERE id = c.id LIMIT 1) AS j
                ORDER BY c.number DESC LIMIT 1) AS a ON true),
    known AS MATERIALIZED (
        SELECT l.id, l.attempt,
               CASE WHEN l.state IS NULL THEN 'gone'
                    WHEN l.state IN ('completed', 'failed', 'cancelled', 'skipped') THEN l.state
                    ELSE 'retried' END AS outcome
          FROM last l
         WHERE l.attempt IS DISTINCT FROM l.id
            OR l.state IN ('completed', 'failed', 'cancelled', 'skipped')),
    noted AS (
        UPDATE pgbeat.dependencies d SET outcome = k.outcome
          FROM known k
         WHERE d.parent_id = k.id AND d.outcome IS NULL
           AND (dependents IS NULL OR d.job_id = ANY (dependents))
        RETURNING d.job_id, d.parent_id, d.needs, k.attempt, k.outcome),
    instead AS (
        INSERT INTO pgbeat.dependencies (job_id, parent_id, needs)
        SELECT n.job_id, n.attempt, n.needs FROM noted n WHERE n.outcome = 'retried'
            ON CONFLICT DO NOTHING
        RETURNING job_id),
    counted AS MATERIALIZED (
        SELECT n.job_id, count(*) - (SELECT count(*) FROM instead i WHERE i.job_id = n.job_id)
                   AS number
          FROM noted n GROUP BY n.job_id),
    left_over AS (
        UPDATE pgbeat.unfinished_jobs j SET unfinished_parents = j.unfinished_parents - c.number
          FROM (SELECT * FROM counted OFFSET 0) AS c
         WHERE j.id = c.job_id AND j.is_blocked
           AND j.id = ANY (ARRAY(SELECT c.job_id FROM counted c))
        RETURNING j.id, j.unfinished_parents),
    against AS (
        SELECT DISTINCT ON (n.job_id) n.job_id, n.parent_id, n.outcome FROM noted n
         WHERE n.outcome NOT IN ('completed', 'retried')
           AND NOT (n.needs = 'finished' AND n.outcome = 'failed')
         ORDER BY n.job_id, n.parent_id)
    SELECT l.id, a.parent_id, a.outcome
      FROM left_over l LEFT JOIN against a ON a.job_id = l.id
     WHERE a.job_id IS NOT NULL OR l.unfinished_parents = 0
     ORDER BY l.id;
END
$$;

-- Looks at the next dependencies of jobs that wait for others, up to `most`, in the order of both ids.
-- Returns the place of the last, if there are more than these, and the parents that have ended, or are
-- gone, without the job knowing it.
CREATE FUNCTION pgbeat.overlooked_parents(
    own_namespace text, after_job uuid, after_parent uuid, most integer)
RETURNS TABLE (last_job uuid, last_parent uuid, parents uuid[])
LANGUAGE sql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_sort = off
AS $$
    WITH page AS MATERIALIZED (
        SELECT d.job_id, d.parent_id, d.outcome
          FROM pgbeat.unfinished_jobs j CROSS JOIN LATERAL (
               SELECT * FROM pgbeat.dependencies d
                WHERE d.job_id = j.id AND (d.job_id, d.parent_id) > (after_job, after_parent)
                ORDER BY d.job_id, d.parent_id LIMIT most) AS d
         WHERE j.namespace = own_namespace AND j.unfinished_parents > 0 AND j.id >= after_job
         ORDER BY j.id, d.parent_id LIMIT most),
    last AS (SELECT job_id, parent_id FROM page ORDER BY job_id DESC, parent_id DESC LIMIT 1)
    SELECT l.job_id, l.parent_id,
           ARRAY(SELECT DISTINCT p.parent_id FROM page p
                  WHERE p.outcome IS NULL AND NOT EXISTS (
                        SELECT FROM pgbeat.unfinished_jobs u WHERE u.id = p.parent_id))
      FROM (SELECT count(*) AS number FROM page) AS n
           LEFT JOIN last l ON n.number = most
$$;
