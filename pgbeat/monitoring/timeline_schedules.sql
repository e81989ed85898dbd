-- The kinds in the order in which they are chosen: suspects of being late, stale or failing, what runs,
-- what was decided last, what is due next.
-- name: candidates
WITH ticks AS MATERIALIZED (
    SELECT t.schedule_id, max(t.id) AS last, bool_or(t.outcome = 'failed') AS has_failed
      FROM (SELECT id, schedule_id, outcome FROM pgbeat.ticks
             ORDER BY id DESC LIMIT :ticks) AS t
     GROUP BY t.schedule_id),
found (kind, id, place) AS (
    SELECT 0, late.id, 0 FROM (
           SELECT s.id FROM pgbeat.schedules s
            WHERE s.namespace = :namespace AND s.enabled AND s.paused_at IS NULL
              AND s.next_run < now() - CAST(:patience AS interval)
            ORDER BY s.next_run LIMIT :suspects) AS late
    UNION ALL
    SELECT 0, stale.id, 0 FROM (
           SELECT s.id FROM pgbeat.schedules s
            WHERE s.namespace = :namespace AND s.stale_since IS NOT NULL AND s.enabled
              AND s.paused_at IS NULL
            ORDER BY s.stale_since LIMIT :suspects) AS stale
    UNION ALL
    SELECT 0, t.schedule_id, 1 FROM ticks t WHERE t.has_failed
    UNION ALL
    SELECT DISTINCT 0, failed.schedule_id, 1 FROM (
           SELECT j.schedule_id FROM pgbeat.jobs j
            WHERE j.namespace = :namespace AND j.state = 'failed' AND j.created_at >= :since
            ORDER BY j.created_at DESC, j.id DESC LIMIT :jobs) AS failed
     WHERE failed.schedule_id IS NOT NULL
    UNION ALL
    SELECT DISTINCT 1, running.schedule_id, 0 FROM (
           SELECT j.schedule_id FROM pgbeat.unfinished_jobs j
            WHERE j.namespace = :namespace AND j.state = 'running'
            ORDER BY j.created_at DESC, j.id DESC LIMIT :jobs) AS running
     WHERE running.schedule_id IS NOT NULL
    UNION ALL
    SELECT 2, t.schedule_id, -t.last FROM ticks t
    UNION ALL
    SELECT 3, next.id, row_number() OVER (ORDER BY next.next_run) FROM (
           SELECT s.id, s.next_run FROM pgbeat.schedules s
            WHERE s.namespace = :namespace AND s.enabled AND s.paused_at IS NULL
              AND s.next_run IS NOT NULL
            ORDER BY s.next_run LIMIT :suspects) AS next)
SELECT f.id, min(f.kind)
  FROM found f
 WHERE (SELECT s.namespace FROM pgbeat.schedules s WHERE s.id = f.id) = :namespace
 GROUP BY f.id ORDER BY min(f.kind), min(f.place) LIMIT :most
