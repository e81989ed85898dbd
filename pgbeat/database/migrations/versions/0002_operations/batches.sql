-- Batches: calls of one task that run together. A member waits as a pending job without a message on its
-- way, and keeps that in its row, with its batch: `key` (which members share), `size`, and `after`, the
-- seconds that the oldest waits for others. Of each batch that is to start, one member's message is sent;
-- its run takes the others along (pgbeat/jobs/flow/batch_members.sql).

-- Has the members that wait, and those whose messages are on their way, in the order in which they run.
-- CASE keeps the state, and the empty text the namespace, from choosing another index, while the statistics
-- know of no members.
CREATE INDEX unfinished_jobs_of_batch ON pgbeat.unfinished_jobs
    ((namespace || ''), task, (coalesce(queue, '')), (message #>> '{batch,key}'), priority DESC,
     (coalesce(run_at, created_at)), id)
    WHERE message ? 'batch' AND CASE WHEN state = 'pending' THEN NOT is_blocked ELSE false END;
