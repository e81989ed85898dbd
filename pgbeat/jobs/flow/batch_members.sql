-- As the index `unfinished_jobs_of_batch` has them.
-- name: is_member
j.message ? 'batch' AND CASE WHEN j.state = 'pending' THEN NOT j.is_blocked ELSE false END
-- name: namespace
j.namespace || ''
-- name: queue
coalesce(j.queue, '')
-- name: shared
j.message #>> '{batch,key}'
-- name: since
coalesce(j.run_at, j.created_at)

-- The members that wait with the same key.
-- name: waits
{namespace} = :namespace AND j.task = :task AND {queue} = :queue AND {shared} = :key
   AND {is_member} AND j.dispatched_at IS NULL

-- Looks at the next page of members, each key's in its line. Returns the first in line of each batch that
-- starts now, since it is full or has waited, in how many seconds another one does, and the key
-- after which the next page begins, if there are more. Members that a message which is on its way will take along
-- are in no batch. The last key of a full page may have more members, and is left to the next page,
-- unless it is the only one.
-- name: page
WITH page AS MATERIALIZED (
    SELECT j.id, j.task, {queue} AS queue, {shared} AS key, j.priority, {since} AS since,
           j.dispatched_at, (j.message #>> '{batch,size}')::bigint AS own_size,
           (j.message #>> '{batch,after}')::float8 * interval '1 second' AS after
      FROM pgbeat.unfinished_jobs j
     WHERE {namespace} = :namespace AND {is_member}
       AND (j.task, {queue}, {shared}) > (:task, :queue, :key)
     ORDER BY j.task, {queue}, {shared}, j.priority DESC, {since}, j.id LIMIT :limit),
members AS (
    SELECT p.*, max(p.own_size) OVER same AS size, count(p.dispatched_at) OVER same AS sent,
           dense_rank() OVER (ORDER BY p.task, p.queue, p.key) AS number,
           count(*) OVER () = :limit AS is_full
      FROM page p WINDOW same AS (PARTITION BY p.task, p.queue, p.key)),
whole AS (
    SELECT m.* FROM members m
     WHERE NOT m.is_full OR m.number = 1 OR m.number < (SELECT max(number) FROM members)),
line AS (
    SELECT w.*, row_number() OVER (PARTITION BY w.number ORDER BY w.priority DESC, w.since, w.id)
                - 1 - w.sent * (w.size - 1) AS place
      FROM whole w WHERE w.dispatched_at IS NULL),
batches AS (
    SELECT (array_agg(l.id ORDER BY l.place))[1] AS id,
           CASE WHEN count(*) < min(l.size) THEN min(l.since + l.after) END AS due_at
      FROM line l WHERE l.place >= 0
     GROUP BY l.number, l.place / l.size)
SELECT b.ids, b.seconds, b.size, last.task, last.queue, last.key
  FROM (SELECT array_agg(id) FILTER (WHERE due_at IS NULL OR due_at <= now()) AS ids,
               extract(epoch FROM min(due_at) FILTER (WHERE due_at > now()) - now())::float8
                   AS seconds,
               (SELECT max(size) FROM members) AS size
          FROM batches) AS b
       LEFT JOIN (SELECT task, queue, key FROM whole WHERE is_full
                   ORDER BY number DESC LIMIT 1) AS last ON true

-- name: start
WITH due AS (
    SELECT id FROM pgbeat.unfinished_jobs
     WHERE id = ANY (CAST(:ids AS uuid[]))
       AND CASE WHEN state = 'pending' THEN dispatched_at IS NULL ELSE false END
       FOR UPDATE SKIP LOCKED)
UPDATE pgbeat.unfinished_jobs j SET dispatched_at = now()
 WHERE j.id = ANY (ARRAY(SELECT id FROM due))
RETURNING {columns}

-- The first in line. What another run takes at this moment is locked.
-- name: take
SELECT {columns} FROM pgbeat.unfinished_jobs j
 WHERE {waits} AND j.id <> CAST(:id AS uuid)
 ORDER BY j.priority DESC, {since}, j.id
 LIMIT :limit FOR UPDATE SKIP LOCKED

-- The members that wait, and whose messages have one of the texts.
-- name: written_with
SELECT j.id, j.message ->> 'payload' AS payload FROM pgbeat.unfinished_jobs j
 WHERE j.namespace = :namespace AND j.state IN ('pending', 'scheduled')
   AND j.message ? 'batch' AND j.dispatched_at IS NULL
   AND EXISTS (SELECT FROM unnest(CAST(:texts AS text[])) AS own (text)
                WHERE strpos(j.message ->> 'payload', own.text) > 0)

-- name: own
SELECT {columns} FROM pgbeat.unfinished_jobs j WHERE id = CAST(:id AS uuid) AND message ? 'batch'
   FOR NO KEY UPDATE

-- Members that run without a message of their own, in a batch that was killed. They run in halves,
-- among such members alone: so the one that kills is soon apart from the others.
-- name: halve
UPDATE pgbeat.unfinished_jobs j
   SET message = jsonb_set(j.message, ARRAY['batch'], j.message -> 'batch' || jsonb_build_object(
           'key', (j.message #>> '{batch,key}') || '~' || e.half, 'size', e.half, 'after', 0))
  FROM (SELECT job_id, (coalesce((metadata #>> '{batch,members}')::bigint, 1) + 1) / 2 AS half
          FROM pgbeat.running_executions WHERE id = ANY (CAST(:ids AS uuid[]))) AS e
 WHERE j.id = e.job_id AND j.dispatched_at IS NULL AND j.message ? 'batch'
RETURNING j.id

-- name: waiting
SELECT count(*), min({since}) + :after * interval '1 second'
  FROM pgbeat.unfinished_jobs j
 WHERE {waits}
