-- name: columns
s.id, s.kind, s.name, s.n, s.value, s.content_type, s.content_encoding, s.event::text AS event,
       s.event IS NOT NULL AS has_event, s.began_at, s.until, s.finished_at

-- At least one row: the chain's first job and the namespace are in each.
-- name: open
SELECT t.root, t.own_namespace, {columns}
  FROM pgbeat.take_steps(CAST(:job AS uuid)) AS t
       LEFT JOIN pgbeat.steps s ON s.root_id = t.root
 ORDER BY s.id

-- A step is recorded once: by the run that commits first.
-- name: record
INSERT INTO pgbeat.steps (root_id, job_id, namespace, kind, name, n, value, content_type,
                          content_encoding, began_at, finished_at)
VALUES (CAST(:root AS uuid), CAST(:job AS uuid), :namespace, 'step', :name, :n, :value,
        :content_type, :content_encoding, clock_timestamp() - :seconds * interval '1 second',
        clock_timestamp())
ON CONFLICT (root_id, kind, name, n) DO NOTHING
RETURNING id

-- name: recorded
SELECT value, content_type, content_encoding FROM pgbeat.steps
 WHERE root_id = CAST(:root AS uuid) AND kind = 'step' AND name = :name AND n = :n

-- name: suspend
SELECT * FROM pgbeat.suspend(CAST(:root AS uuid), CAST(:job AS uuid), :namespace, :kind, :name, :n,
                             CAST(:seconds AS float8))

-- Of a job's chain, without taking the steps over for it.
-- name: roots
WITH chain AS MATERIALIZED (
    SELECT array_agg(c.id) AS ids FROM pgbeat.retry_chain(CAST(:job AS uuid)) AS c (id)),
roots AS (
    SELECT unnest(ids) AS id FROM chain
    UNION
    SELECT s.root_id FROM pgbeat.steps s WHERE s.job_id = ANY (ARRAY(SELECT unnest(ids) FROM chain)))
-- name: of_roots
s.root_id = ANY (ARRAY(SELECT id FROM roots))

-- name: of_job
{roots}
SELECT {columns} FROM pgbeat.steps s WHERE {of_roots} ORDER BY s.id LIMIT 1000

-- name: keys_of_job
{roots}
SELECT s.id, s.kind, s.name, s.n FROM pgbeat.steps s WHERE {of_roots} ORDER BY s.id

-- Forgets the steps of a chain from one on.
-- name: forget
{roots}
DELETE FROM pgbeat.steps s WHERE {of_roots} AND s.id >= :first

-- Deletes the steps of a chain of which the last job is deleted.
-- name: delete
DELETE FROM pgbeat.steps s
 WHERE CAST(:job AS uuid) IN (s.root_id, s.job_id)
   AND NOT EXISTS (SELECT FROM pgbeat.jobs j WHERE j.id IN (s.root_id, s.job_id))
   AND NOT EXISTS (SELECT FROM pgbeat.jobs j WHERE j.retry_of IN (s.root_id, s.job_id))
