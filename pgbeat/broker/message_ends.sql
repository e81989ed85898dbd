-- name: ack
DELETE FROM kombu_message WHERE id = ANY ($1::bigint[])
       AND claimed_by IS NOT DISTINCT FROM $2::integer
-- Acknowledges messages of jobs ($1: their ids) and records which consumer ($2) and which worker
-- ($3) accepted them. A job that has ended needs no record.
-- name: accept
WITH acked AS (
        {ack} RETURNING job_id)
    INSERT INTO pgbeat.message_ends (job_id, how, consumer_id, worker_id)
    SELECT a.job_id, 'accepted', $2::integer, $3::integer FROM acked a
     WHERE a.job_id IS NOT NULL
       AND EXISTS (SELECT FROM pgbeat.unfinished_jobs j
                    WHERE j.id = a.job_id AND j.state <> 'paused')
-- Records how the messages of a CTE `gone_messages` (job_id, queue) left.
-- name: note
INSERT INTO pgbeat.message_ends (job_id, how, queue)
        SELECT g.job_id, '{how}', g.queue FROM gone_messages g WHERE g.job_id IS NOT NULL
-- The row of the message that was sent last is needed until its job has ended: the worker may be
-- about to record that it began.
-- name: prune
DELETE FROM pgbeat.message_ends WHERE id = ANY (ARRAY(
        SELECT m.id FROM pgbeat.message_ends m
         WHERE m.id > :after AND m.id <= :last
           AND NOT EXISTS (
               SELECT FROM pgbeat.unfinished_jobs j
                WHERE j.id = m.job_id AND j.dispatched_at <= m.ended_at
                  AND NOT EXISTS (SELECT FROM pgbeat.message_ends n
                                   WHERE n.job_id = m.job_id AND n.id > m.id))
           FOR UPDATE SKIP LOCKED))
