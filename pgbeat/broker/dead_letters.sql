-- name: find
SELECT d.id, d.queue, d.payload, d.reason, d.deliveries, d.died_at FROM kombu_message_dead d
 WHERE {which} ORDER BY d.died_at DESC, d.id DESC LIMIT :limit
-- name: choose
SELECT d.id, d.queue FROM kombu_message_dead d WHERE {which} ORDER BY d.id FOR UPDATE
-- name: queues
SELECT DISTINCT d.queue FROM kombu_message_dead d WHERE {which} AND d.queue <> ''
-- name: requeue
WITH back AS (
    DELETE FROM kombu_message_dead d USING kombu_queue q
     WHERE {which} AND d.queue = q.name RETURNING d.*, q.id AS queue_id)
INSERT INTO kombu_message
       (visible, payload, priority, queue_id, redelivered, job_id)
SELECT true, b.payload, b.priority, b.queue_id, true, b.job_id
  FROM back b ORDER BY b.died_at, b.id
-- LIMIT NULL is no limit.
-- name: drop
DELETE FROM kombu_message_dead d WHERE d.ctid = ANY (ARRAY(
    SELECT d.ctid FROM kombu_message_dead d WHERE {which} LIMIT :limit))
