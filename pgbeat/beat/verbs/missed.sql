-- A failed due time is launched when the first decision after its retries is a launch; while none
-- has been made, that is open (NULL), if the schedule is in retry.
-- name: launched
SELECT t.due_at, true FROM pgbeat.ticks t
 WHERE t.schedule_id = :schedule AND t.due_at BETWEEN :start AND :end
   AND t.outcome = 'launched' AND t.trigger <> 'manual'
 UNION ALL
SELECT f.due_at, CASE WHEN n.outcome IS NOT NULL THEN n.trigger = 'retry'
                           AND n.outcome = 'launched'
                      WHEN :retrying THEN NULL ELSE false END
  FROM pgbeat.ticks f LEFT JOIN LATERAL (
       SELECT n.outcome, n.trigger FROM pgbeat.ticks n
        WHERE n.schedule_id = f.schedule_id AND n.due_at > f.due_at
          AND (n.trigger = 'timetable' OR n.trigger = 'retry' AND n.outcome <> 'failed')
        ORDER BY n.due_at LIMIT 1) n ON true
 WHERE f.schedule_id = :schedule AND f.due_at BETWEEN :start AND :end
   AND f.outcome = 'failed' AND f.trigger = 'timetable'
