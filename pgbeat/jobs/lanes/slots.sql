-- name: of_lane
j.namespace = :namespace AND j.lane = :lane
-- name: holders
FROM pgbeat.unfinished_jobs j WHERE {of_lane} AND {has_slot}
-- name: line
FROM pgbeat.unfinished_jobs j WHERE {of_lane} AND {is_waiting}
-- name: in_order
ORDER BY j.priority DESC, j.fair_key, j.position, j.created_at, j.id
-- name: work
CAST(j.id AS text), j.namespace, j.lane, j.task, j.args, j.kwargs, j.tags, j.resources,
j.priority, j.created_by, j.schedule, j.template, CAST(j.group_id AS text), j.attempt,
j.fair_key

-- Rows are found again by an array: for a join, Postgres may read the whole table.
-- name: take
UPDATE pgbeat.unfinished_jobs j SET dispatched_at = statement_timestamp()
 WHERE j.id = ANY (ARRAY(SELECT id FROM mine))
-- name: take_first
WITH mine AS (
    SELECT j.id {line} {in_order}
     LIMIT CASE
         WHEN EXISTS (SELECT FROM pgbeat.reservations
                       WHERE namespace = :namespace AND lane = :lane) THEN 0
         WHEN CAST(:slots AS integer) IS NULL THEN :limit
         ELSE least(:limit, greatest(0, :slots - (SELECT count(*) {holders})))
     END FOR UPDATE SKIP LOCKED)
{take} RETURNING {columns}

-- name: take_turns
SELECT {columns} FROM pgbeat.lanes l CROSS JOIN LATERAL pgbeat.take_turns(
       l, :limit, CAST(:job_ids AS uuid[])) AS j
 WHERE l.namespace = :namespace AND l.name = :lane
   AND NOT EXISTS (SELECT FROM pgbeat.reservations
                    WHERE namespace = :namespace AND lane = :lane)

-- name: take_next
SELECT n.slots, {next_columns} FROM pgbeat.take_next($1, $2, $3, $4) n
-- name: take_these
WITH mine AS (
    SELECT id FROM pgbeat.unfinished_jobs j
     WHERE id = ANY (CAST(:ids AS uuid[])) AND {is_waiting}
       FOR UPDATE SKIP LOCKED)
{take} RETURNING {columns}

-- By priority: in the index, which has the line's order, keys come after that.
-- name: clear_keys
WITH RECURSIVE levels AS (
    (SELECT j.priority {line} ORDER BY j.priority DESC LIMIT 1)
    UNION ALL
    SELECT (SELECT j.priority {line} AND j.priority < l.priority ORDER BY j.priority DESC LIMIT 1)
      FROM levels l WHERE l.priority IS NOT NULL),
mine AS (
    SELECT w.id FROM levels l CROSS JOIN LATERAL (
        SELECT j.id {line} AND j.priority = l.priority AND j.fair_key > '' {in_order} LIMIT 5000
           FOR UPDATE SKIP LOCKED) AS w)
UPDATE pgbeat.unfinished_jobs j SET fair_key = '' WHERE j.id = ANY (ARRAY(SELECT id FROM mine))

-- name: count
SELECT count(*) {holders}
-- name: count_by_key
SELECT j.fair_key, count(*) {holders} GROUP BY j.fair_key
-- name: waiting_jobs
SELECT NULL, NULL, {keys}, j.created_at, {work}
  {line} {in_order} LIMIT :limit OFFSET :offset
-- name: waiting_turns
SELECT CASE WHEN f.id IS NULL THEN f.priority END, f.fair_key, {keys}, j.created_at, {work}
  FROM pgbeat.lanes l
       CROSS JOIN LATERAL pgbeat.fair_line(
           l, CAST(:limit AS integer) + :offset, CAST(:is_limited AS boolean),
           gained => pgbeat.gained_keys(l, CAST(:job_ids AS uuid[])))
           WITH ORDINALITY AS f (id, priority, fair_key, number)
       LEFT JOIN LATERAL (
           SELECT * FROM pgbeat.unfinished_jobs u WHERE u.id = f.id OFFSET 0) AS j ON true
 WHERE l.namespace = :namespace AND l.name = :lane
 ORDER BY f.number OFFSET :offset

-- name: running
SELECT {work} {holders}
-- name: completed
SELECT l.policy, l.options, {work}
  FROM pgbeat.jobs j JOIN pgbeat.lanes l ON l.namespace = j.namespace AND l.name = j.lane
 WHERE j.id = ANY (CAST(:ids AS uuid[])) AND j.dispatched_at IS NOT NULL
   AND l.policy = ANY (CAST(:policies AS text[]))
