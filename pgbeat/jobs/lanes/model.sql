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

-- name: to_dispatch
SELECT name FROM pgbeat.lanes l
 WHERE namespace = :namespace
   AND (paused_at IS NULL AND coalesce((
            SELECT true FROM pgbeat.unfinished_jobs j
             WHERE j.namespace = l.namespace AND j.lane = l.name AND {is_waiting}
             ORDER BY j.priority DESC LIMIT 1), false)
        OR EXISTS (SELECT FROM pgbeat.reservations r
                    WHERE r.namespace = l.namespace AND r.lane = l.name))
 ORDER BY name
