-- A failed due time is launched by the first retry after it that doesn't fail, if that is a launch, and
-- no other due time was decided before: in the order of ids, as with catch_up all a retry's time is
-- later than those that are decided after it. While no decision has been made, that is open (NULL), if
-- the schedule is in retry.
-- name: launched
SELECT t.due_at, true FROM pgbeat.ticks t
 WHERE t.schedule_id = :schedule AND t.due_at BETWEEN :start AND :end
   AND t.outcome = 'launched' AND t.trigger <> 'manual'
 UNION ALL
SELECT f.due_at, CASE WHEN EXISTS (
                            SELECT FROM pgbeat.ticks n
                             WHERE n.schedule_id = f.schedule_id AND n.due_at > f.due_at
                               AND n.trigger = 'timetable' AND n.id > f.id
                               AND (r.id IS NULL OR n.id < r.id)) THEN false
                      WHEN r.id IS NOT NULL THEN r.outcome = 'launched'
                      WHEN :retrying THEN NULL ELSE false END
  FROM pgbeat.ticks f LEFT JOIN LATERAL (
       SELECT r.id, r.outcome FROM pgbeat.ticks r
        WHERE r.schedule_id = f.schedule_id AND r.due_at > f.due_at AND r.id > f.id
          AND r.trigger = 'retry' AND r.outcome <> 'failed'
        ORDER BY r.due_at LIMIT 1) r ON true
 WHERE f.schedule_id = :schedule AND f.due_at BETWEEN :start AND :end
   AND f.outcome = 'failed' AND f.trigger = 'timetable'
