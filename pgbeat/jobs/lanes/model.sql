-- name: listing
SELECT {columns},
       s.jobs + d.running, w.jobs + d.waiting, least(w.oldest, d.oldest)
  FROM pgbeat.lanes l
       CROSS JOIN LATERAL (
           SELECT count(*) AS jobs FROM pgbeat.unfinished_jobs j
            WHERE j.namespace = l.namespace AND j.lane = l.name AND {has_slot}) AS s
       CROSS JOIN LATERAL (
           SELECT count(*) AS jobs, min(created_at) AS oldest FROM pgbeat.unfinished_jobs j
            WHERE j.namespace = l.namespace AND j.lane = l.name AND {is_waiting}) AS w
       CROSS JOIN LATERAL (
           SELECT count(*) FILTER (WHERE started_at IS NOT NULL) AS running,
                  count(*) FILTER (WHERE started_at IS NULL) AS waiting,
                  min(created_at) FILTER (WHERE started_at IS NULL) AS oldest
             FROM pgbeat.reservations r
            WHERE r.namespace = l.namespace AND r.lane = l.name) AS d
 WHERE l.namespace = :namespace ORDER BY l.name

-- The first of each line in its order. For EXISTS, or any row, Postgres may read the whole table.
-- name: has_waiting
SELECT coalesce((
           SELECT true FROM pgbeat.unfinished_jobs j
            WHERE j.namespace = :namespace AND j.lane = :lane AND {is_waiting}
            ORDER BY j.priority DESC LIMIT 1), false)
    OR EXISTS (SELECT FROM pgbeat.reservations WHERE namespace = :namespace AND lane = :lane)

-- Jobs may wait in a lane that was removed. Each step takes the next lane in the index.
-- name: to_dispatch
WITH RECURSIVE lines AS (
    (SELECT j.lane FROM pgbeat.unfinished_jobs j
      WHERE j.namespace = :namespace AND j.lane IS NOT NULL AND {is_waiting}
      ORDER BY j.lane LIMIT 1)
    UNION ALL
    SELECT (SELECT j.lane FROM pgbeat.unfinished_jobs j
             WHERE j.namespace = :namespace AND j.lane > n.lane AND {is_waiting}
             ORDER BY j.lane LIMIT 1)
      FROM lines n WHERE n.lane IS NOT NULL)
SELECT n.lane FROM lines n LEFT JOIN pgbeat.lanes l ON l.namespace = :namespace AND l.name = n.lane
 WHERE n.lane IS NOT NULL AND l.paused_at IS NULL
 UNION
SELECT r.lane FROM pgbeat.reservations r WHERE r.namespace = :namespace
 ORDER BY lane
