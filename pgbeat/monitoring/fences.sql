-- name: newest
SELECT epoch, raised_at, raised_by, reason, restored_to, released_at, queues,
       ARRAY(SELECT s.namespace || '/' || s.name FROM pgbeat.schedules s
              WHERE s.id = ANY (f.schedules) ORDER BY 1)
  FROM pgbeat.fences f ORDER BY epoch DESC LIMIT 1

-- Held messages, a batch after the other. A claimed one was with a worker when the copy was made.
-- name: messages
SELECT m.id, m.payload, q.name AS queue, m.enqueued_at AS created_at,
       CASE WHEN m.claimed_by IS NOT NULL THEN 'claimed'
            WHEN m.visible THEN 'waiting' ELSE 'delayed' END AS state,
       m.job_id IS NOT NULL AS is_job
  FROM kombu_message m JOIN kombu_queue q ON q.id = m.queue_id
 WHERE q.name = ANY (:queues) AND m.id > :after AND m.enqueued_at <= :raised_at
 ORDER BY m.id LIMIT :limit

-- Jobs that have no message, as those that wait in lanes.
-- name: jobs
SELECT j.id, j.task, j.queue, j.created_at, j.state
  FROM pgbeat.unfinished_jobs j
 WHERE j.created_at <= :raised_at
   AND NOT EXISTS (SELECT FROM kombu_message m WHERE m.job_id = j.id)
 ORDER BY j.created_at, j.id
