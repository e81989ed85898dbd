-- name: mark
WITH due AS (
    SELECT u.id, pgbeat.passed_deadlines(
               u.must_start_by, u.must_end_by, u.started_at, u.finished_at, now()) AS passed
      FROM pgbeat.unfinished_jobs u
     WHERE u.namespace = :namespace AND u.next_deadline <= now()
     ORDER BY u.next_deadline LIMIT :limit
       FOR NO KEY UPDATE SKIP LOCKED)
UPDATE pgbeat.unfinished_jobs j
   SET missed_deadlines = pgbeat.add_missed(j.missed_deadlines, due.passed),
       late_at = coalesce(j.late_at, CASE WHEN due.passed <> '{}' THEN now() END),
       next_deadline = least(CASE WHEN j.must_start_by > now() THEN j.must_start_by END,
                             CASE WHEN j.must_end_by > now() THEN j.must_end_by END)
  FROM due WHERE j.id = due.id
