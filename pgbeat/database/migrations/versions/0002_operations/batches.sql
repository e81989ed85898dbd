-- Batches: calls of one task that run together. A member waits as a pending job without a message on its
-- way, and keeps that in its row, with its batch: `key` (which members share), `size`, and `after`, the
-- seconds that the oldest waits for others. Of each batch that is to start, one member's message is sent;
-- its run takes the others along (pgbeat/jobs/flow/batches.sql).

CREATE INDEX unfinished_jobs_of_batch ON pgbeat.unfinished_jobs
    (namespace, task, queue, (message #>> '{batch,key}'))
    WHERE message ? 'batch';

-- The members whose messages are to be sent, each with when: at once if its batch is full. The first in
-- line of those that no message which is on its way already will take along. CASE keeps the state from
-- choosing an index of all jobs that are pending.
CREATE FUNCTION pgbeat.batches_to_start(own_namespace text)
RETURNS TABLE (id uuid, due_at timestamptz)
LANGUAGE sql STABLE AS $$
    WITH members AS (
        SELECT j.id, j.task, j.queue, j.message #>> '{batch,key}' AS key, j.priority,
               coalesce(j.run_at, j.created_at) AS since,
               (j.message #>> '{batch,after}')::float8 * interval '1 second' AS after,
               max((j.message #>> '{batch,size}')::bigint) OVER same AS size,
               count(j.dispatched_at) OVER same AS sent, j.dispatched_at IS NOT NULL AS is_sent
          FROM pgbeat.unfinished_jobs j
         WHERE j.namespace = own_namespace AND j.message ? 'batch'
           AND CASE WHEN j.state = 'pending' THEN NOT j.is_blocked ELSE false END
        WINDOW same AS (PARTITION BY j.task, j.queue, j.message #>> '{batch,key}')),
    line AS (
        SELECT m.*, m.since + m.after AS due,
               row_number() OVER (PARTITION BY m.task, m.queue, m.key
                                  ORDER BY m.priority DESC, m.since, m.id)
               - 1 - m.sent * (m.size - 1) AS place
          FROM members m WHERE NOT m.is_sent)
    SELECT (array_agg(l.id ORDER BY l.place))[1],
           CASE WHEN count(*) >= min(l.size) THEN to_timestamp(0) ELSE min(l.due) END
      FROM line l WHERE l.place >= 0
     GROUP BY l.task, l.queue, l.key, l.place / l.size
$$;
