-- name: line
FROM pgbeat.unfinished_jobs j WHERE namespace = :namespace AND lane = :lane AND {is_waiting}
-- name: others
{line} AND priority = :priority AND fair_key = :fair_key AND id <> :moved
-- name: before
(position, created_at, id) < (:position, :created_at, :id)
-- name: place
SELECT count(*) FROM (
    SELECT {line} AND fair_key = (SELECT fair_key FROM pgbeat.unfinished_jobs WHERE id = :id)
       AND priority >= :priority AND (priority > :priority OR {before})
     LIMIT :limit) AS ahead
-- name: length
SELECT count(*) FROM (SELECT {line} LIMIT :limit) AS line
-- name: first
SELECT min(position) {others}
-- name: last
SELECT max(position) {others}
-- name: neighbour_before
SELECT position {others} AND {before}
 ORDER BY position DESC, created_at DESC, id DESC LIMIT 1
-- name: neighbour_after
SELECT position {others} AND (position, created_at, id) > (:position, :created_at, :id)
 ORDER BY position, created_at, id LIMIT 1
-- name: number
UPDATE pgbeat.unfinished_jobs j SET position = n.number
  FROM (SELECT id, row_number() OVER (ORDER BY position, created_at, id) AS number
          {line} AND priority = :priority AND fair_key = :fair_key) AS n
 WHERE j.id = n.id
-- name: put
UPDATE pgbeat.unfinished_jobs j SET position = :position, priority = :priority
 WHERE id = :moved
   AND {is_in_line}
RETURNING {columns}
