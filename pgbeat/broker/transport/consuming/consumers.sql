-- A single statement, so that no other consumer can see the row before its lock is held, and take
-- this consumer for dead.
-- name: register
WITH made AS (
    INSERT INTO pgbeat.consumers (name, lease_until)
    VALUES (:name, now() + make_interval(secs => CAST(:lease AS float8))) RETURNING id)
SELECT id, CASE WHEN CAST(:lease AS float8) IS NULL THEN pg_try_advisory_lock(:life, id)
                ELSE true END FROM made

-- Returns the queues that are there. Who deletes one waits for this, and then sees the consumer.
-- name: subscribe
WITH here AS (
        SELECT id, auto_delete FROM kombu_queue WHERE id = ANY (:queues) ORDER BY id FOR KEY SHARE),
    noted AS (
        INSERT INTO kombu_queue_consumer (queue_id, consumer_id)
        SELECT id, :consumer FROM here ON CONFLICT DO NOTHING)
    SELECT id, auto_delete FROM here

-- name: unsubscribe
WITH gone AS (
    DELETE FROM kombu_queue_consumer WHERE consumer_id = :consumer AND queue_id = ANY (:queues))
{mark_used}

-- Inserts the rows of a CTE `dead` as dead letters. They keep the messages' ids, unless an older
-- letter has the same, as can happen after a restore or a reset of the sequence. If another
-- transaction takes that id at the same moment, the whole statement fails and the message stays.
-- name: note
INSERT INTO kombu_message_dead
               (id, queue, payload, priority, deliveries, reason, enqueued_at, job_id)
        SELECT CASE WHEN EXISTS (SELECT FROM kombu_message_dead t WHERE t.id = d.id)
                    THEN greatest((SELECT max(t.id) FROM kombu_message_dead t),
                                  (SELECT max(o.id) FROM dead o))
                         + row_number() OVER (ORDER BY d.id)
                    ELSE d.id END,
               coalesce(q.name, ''), d.payload, d.priority, d.deliveries, {reason},
               d.enqueued_at, d.job_id
          FROM dead d LEFT JOIN kombu_queue q ON q.id = d.queue_id

-- Whether a message `m` starts a job that has ended: the job was cancelled while a consumer had the
-- message, or ended without acknowledging it, or was retried before its process died. The message
-- of a job that had failed before was requeued by hand.
-- name: over
m.job_id IS NOT NULL AND coalesce((
                   SELECT j.state IN ('completed', 'cancelled', 'skipped')
                          OR j.retried_by IS NOT NULL
                          OR j.state = 'failed' AND j.finished_at > m.enqueued_at
                     FROM pgbeat.jobs j WHERE j.id = m.job_id), false)

-- Rows are found again by arrays: for a join, the planner may expect so many that it reads the whole
-- table.
-- name: requeue
WITH mine AS (
        SELECT m.id, m.queue_id, {over} AS over,
               :uncounted = 0 AND m.deliveries >= coalesce(q.delivery_limit, :limit) AS spent
          FROM kombu_message m LEFT JOIN kombu_queue q ON q.id = m.queue_id
         WHERE {which} FOR UPDATE OF m SKIP LOCKED),
    useless AS (
        DELETE FROM kombu_message m WHERE m.id = ANY (ARRAY(SELECT id FROM mine WHERE over))),
    dead AS (
        DELETE FROM kombu_message m
         USING unnest(ARRAY(SELECT id FROM mine WHERE spent AND NOT over)) AS d (id)
         WHERE m.id = d.id RETURNING m.*),
    noted AS (
        {note}),
    back AS (
        UPDATE kombu_message m SET visible = true, claimed_by = NULL, redelivered = true,
               deliveries = m.deliveries - :uncounted
          FROM unnest(ARRAY(SELECT id FROM mine WHERE spent IS NOT TRUE AND NOT over)) AS b (id)
         WHERE m.id = b.id RETURNING m.queue_id)
    SELECT {result}, count(pgbeat.announce_queue(queue_id, 'again'))
      FROM (SELECT DISTINCT queue_id FROM back) AS q
-- name: spent
'delivered ' || d.deliveries || ' times, the last time ' || :fate

-- The messages `m` among those given that the consumer has claimed.
-- name: claimed
m.id = ANY (:messages) AND m.claimed_by IS NOT DISTINCT FROM :consumer
-- Those of them that another session has locked.
-- name: left
ARRAY(SELECT m.id FROM kombu_message m
                   WHERE {claimed} AND m.id <> ALL (ARRAY(SELECT id FROM mine)))
-- name: put_back
WITH mine AS (SELECT m.id FROM kombu_message m WHERE {claimed} FOR UPDATE SKIP LOCKED),
    later AS (
        UPDATE kombu_message m
           SET claimed_by = NULL, deliveries = m.deliveries - 1,
               available_at = clock_timestamp() + make_interval(secs => :delay)
         WHERE m.id = ANY (ARRAY(SELECT id FROM mine)))
    SELECT {left}
-- name: reject
WITH mine AS (SELECT m.id FROM kombu_message m WHERE {claimed} FOR UPDATE SKIP LOCKED),
    dead AS (
        DELETE FROM kombu_message m WHERE m.id = ANY (ARRAY(SELECT id FROM mine)) RETURNING m.*),
    noted AS (
        {note})
    SELECT {left}

-- A consumer may have renewed its lease since it was found dead, so its row is locked and read
-- again. A claim under a lease locks the row until it is done.
-- name: doomed
WITH locked AS (
        SELECT c.id FROM pgbeat.consumers c
         WHERE c.id = ANY (:dead) AND c.id IN (SELECT pgbeat.dead_consumers())
           AND (c.lease_until IS NULL OR c.lease_until < clock_timestamp())
           FOR UPDATE SKIP LOCKED)
    SELECT id FROM locked
    UNION ALL
    SELECT d.id FROM unnest(CAST(:dead AS integer[])) AS d (id)
     WHERE NOT EXISTS (SELECT FROM pgbeat.consumers c WHERE c.id = d.id)

-- name: their_queues
q.owner = ANY (:dead)
    OR q.id IN (SELECT queue_id FROM kombu_queue_consumer WHERE consumer_id = ANY (:dead))
-- name: abandon
WITH gone AS (
    DELETE FROM kombu_queue_consumer WHERE consumer_id = ANY (:dead) RETURNING queue_id)
UPDATE kombu_queue SET used_at = now() WHERE id IN (SELECT queue_id FROM gone) RETURNING id

-- Goes from holder to holder by the index, however many messages each has claimed.
-- name: unknown
WITH RECURSIVE holder AS (
        SELECT min(claimed_by) AS id FROM kombu_message WHERE claimed_by IS NOT NULL
        UNION ALL
        SELECT (SELECT min(m.claimed_by) FROM kombu_message m WHERE m.claimed_by > h.id)
          FROM holder h WHERE h.id IS NOT NULL)
    SELECT h.id FROM holder h
     WHERE h.id IS NOT NULL
       AND NOT EXISTS (SELECT FROM pgbeat.consumers c WHERE c.id = h.id)

-- name: due_maintenance
SELECT ARRAY(SELECT d.id FROM pgbeat.dead_consumers() AS d (id) WHERE d.id <> :consumer),
           (SELECT extract(epoch FROM min(available_at) - clock_timestamp())::float8
              FROM kombu_message WHERE available_at IS NOT NULL),
           coalesce((SELECT min(expires_at) FROM kombu_message
                      WHERE expires_at IS NOT NULL AND claimed_by IS NULL) <= now(), false)
               OR EXISTS (SELECT FROM kombu_queue q
                   WHERE q.used_at + q.expires * interval '1 millisecond' < now()
                     AND NOT EXISTS (SELECT FROM kombu_queue_consumer c WHERE c.queue_id = q.id)),
           (SELECT count(*) FROM pgbeat.consumers)

-- In a paused queue, a message stays as old as it is: a fence holds those that are older than it.
-- name: promote
WITH due AS (
        SELECT m.ctid AS tid, {over} AS over FROM kombu_message m
         WHERE available_at <= clock_timestamp() ORDER BY available_at LIMIT :limit
           FOR UPDATE SKIP LOCKED),
    useless AS (
        DELETE FROM kombu_message m WHERE m.ctid = ANY (ARRAY(SELECT tid FROM due WHERE over))),
    ready AS (
        UPDATE kombu_message m
           SET visible = true, available_at = NULL, id = nextval('message_id_sequence'),
               enqueued_at = CASE WHEN EXISTS (
                   SELECT FROM kombu_queue q WHERE q.id = m.queue_id AND q.paused_at IS NOT NULL)
                   THEN m.enqueued_at ELSE now() END
          FROM unnest(ARRAY(SELECT tid FROM due WHERE NOT over)) AS d (tid)
         WHERE m.ctid = d.tid RETURNING m.queue_id)
    SELECT (SELECT count(*) FROM due), count(pgbeat.announce_queue(queue_id))
      FROM (SELECT DISTINCT queue_id FROM ready) AS q
