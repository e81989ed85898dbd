-- name: newest
SELECT epoch, raised_at, raised_by, reason, restored_to, released_at, queues,
       ARRAY(SELECT s.namespace || '/' || s.name FROM pgbeat.schedules s
              WHERE s.id = ANY (f.schedules) ORDER BY 1)
  FROM pgbeat.fences f ORDER BY epoch DESC LIMIT 1

-- A job that was there before the fence was raised, or the retry of one that has ended since then:
-- beat ends those that ran when the copy was made.
-- name: is_held
j.created_at <= :raised_at OR EXISTS (
           SELECT FROM pgbeat.ended_jobs o WHERE o.id = j.retry_of
              AND o.finished_at > :raised_at AND o.created_at <= :raised_at)
-- name: retry_of
CASE WHEN j.created_at > :raised_at THEN CAST(j.retry_of AS text) END

-- Held messages, a batch after the other. A claimed one was with a worker when the copy was made.
-- Beat may have sent that of a held job since then.
-- name: messages
SELECT m.id, m.payload, q.name AS queue, least(m.enqueued_at, j.created_at) AS created_at,
       CASE WHEN m.claimed_by IS NOT NULL THEN 'claimed'
            WHEN m.available_at > now() THEN 'delayed' ELSE 'waiting' END AS state,
       m.job_id IS NOT NULL AS is_job, {retry_of} AS retry_of
  FROM kombu_message m JOIN kombu_queue q ON q.id = m.queue_id
       LEFT JOIN pgbeat.unfinished_jobs j ON j.id = m.job_id
 WHERE q.name = ANY (:queues) AND m.id > :after AND (m.enqueued_at <= :raised_at OR {is_held})
 ORDER BY m.id LIMIT :limit

-- Jobs that have no message, as those that wait in lanes.
-- name: jobs
SELECT j.id, j.task, j.queue, j.created_at, j.state, {retry_of} AS retry_of
  FROM pgbeat.unfinished_jobs j
 WHERE ({is_held}) AND NOT EXISTS (SELECT FROM kombu_message m WHERE m.job_id = j.id)
 ORDER BY j.created_at, j.id
