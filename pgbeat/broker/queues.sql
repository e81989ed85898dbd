-- name: state
SELECT q.id, (SELECT count(*) FROM kombu_message m WHERE m.queue_id = q.id AND m.visible),
           (SELECT count(*) FROM kombu_queue_consumer c WHERE c.queue_id = q.id)
      FROM kombu_queue q WHERE q.name = :name
-- name: declare
INSERT INTO kombu_queue AS q (name, durable, auto_delete, owner, max_priority, message_ttl,
           expires, delivery_limit)
    VALUES (:name, :durable, :auto_delete, :owner, :max_priority, :message_ttl,
            :expires, :delivery_limit)
    ON CONFLICT (name) DO UPDATE SET used_at = now(),
           max_priority = coalesce(excluded.max_priority, q.max_priority),
           message_ttl = coalesce(excluded.message_ttl, q.message_ttl),
           expires = coalesce(excluded.expires, q.expires),
           delivery_limit = coalesce(excluded.delivery_limit, q.delivery_limit)

-- name: locked
SELECT q.owner, q.owner IN (SELECT pgbeat.dead_consumers())
               OR NOT EXISTS (SELECT FROM pgbeat.consumers c WHERE c.id = q.owner)
      FROM kombu_queue q WHERE q.name = :name AND q.owner IS DISTINCT FROM :owner
       AND q.owner IS NOT NULL

-- Locks queues: everybody who changes several does it in this order. A worker that connects again
-- uses queues that somebody else is about to delete, as those of a dead one.
-- name: lock
SELECT q.id FROM kombu_queue q WHERE {which} ORDER BY q.id FOR UPDATE
-- Restarts the clock of queues.
-- name: mark_used
UPDATE kombu_queue SET used_at = now() WHERE id = ANY (ARRAY({lock}))
-- name: use
WITH used AS ({mark_used})
SELECT name, id FROM kombu_queue WHERE name = ANY (CAST(:names AS text[]))

-- A queue that expires must be marked as used. One with another owner may be locked, or the owner
-- may be dead.
-- name: declare_at_once
WITH made AS (
        INSERT INTO kombu_queue AS q (name, durable, auto_delete, owner, max_priority, message_ttl,
               expires, delivery_limit)
        SELECT CAST(:name AS text), CAST(:durable AS boolean), CAST(:auto_delete AS boolean),
               CAST(:owner AS integer), CAST(:max_priority AS smallint),
               CAST(:message_ttl AS bigint), CAST(:expires AS bigint),
               CAST(:delivery_limit AS integer)
         WHERE NOT EXISTS (SELECT FROM kombu_queue WHERE name = :name)
            ON CONFLICT (name) DO NOTHING RETURNING id)
    SELECT id, 0, 0 FROM made
    UNION ALL ({state}
       AND q.expires IS NULL AND CAST(:expires AS bigint) IS NULL
       AND (q.owner IS NULL OR q.owner = CAST(:caller AS integer))
       AND coalesce(CAST(:max_priority AS smallint), q.max_priority)
           IS NOT DISTINCT FROM q.max_priority
       AND coalesce(CAST(:message_ttl AS bigint), q.message_ttl) IS NOT DISTINCT FROM q.message_ttl
       AND coalesce(CAST(:delivery_limit AS integer), q.delivery_limit)
           IS NOT DISTINCT FROM q.delivery_limit)

-- name: unused
NOT EXISTS (SELECT FROM kombu_queue_consumer c WHERE c.queue_id = q.id)
-- name: named
q.name = :name AND (NOT :if_unused OR {unused})
           AND (NOT :if_empty OR NOT EXISTS (SELECT FROM kombu_message m WHERE m.queue_id = q.id))
-- name: abandoned
q.id = ANY (:queues) AND q.auto_delete AND {unused}
-- name: expired
q.used_at + q.expires * interval '1 millisecond' < now() AND {unused}
-- name: owned
q.owner = ANY (:owners)
-- name: exclusive
{owned} AND q.name = ANY (CAST(:names AS text[]))

-- No single index has all messages of a queue; three of them together do, and cost nothing where
-- they have none. Consumers are told, since they know a queue by its id: another one of its name
-- is none of theirs.
-- name: delete
WITH gone AS (DELETE FROM kombu_queue WHERE id = ANY (ARRAY({lock})) RETURNING id, name),
    unbound AS (
        DELETE FROM kombu_queue_binding WHERE queue_id IN (SELECT id FROM gone)
        RETURNING exchange),
    left_over AS (
        DELETE FROM kombu_queue_consumer WHERE queue_id IN (SELECT id FROM gone)
        RETURNING queue_id),
    exchanges AS (
        DELETE FROM kombu_queue_exchange x
         WHERE x.auto_delete AND x.name IN (SELECT exchange FROM unbound)
           AND NOT EXISTS (SELECT FROM kombu_queue_binding b WHERE b.exchange = x.name
                              AND b.queue_id NOT IN (SELECT id FROM gone))),
    lost AS (
        DELETE FROM kombu_message WHERE ctid = ANY (ARRAY(
            SELECT m.tid FROM gone CROSS JOIN LATERAL (
                SELECT c.ctid AS tid FROM kombu_message c
                 WHERE c.queue_id = gone.id AND c.visible
                UNION ALL
                SELECT c.ctid FROM kombu_message c
                 WHERE c.queue_id = gone.id AND c.available_at IS NOT NULL
                UNION ALL
                SELECT c.ctid FROM kombu_message c
                 WHERE c.queue_id = gone.id AND c.claimed_by IS NOT NULL) AS m))
        RETURNING visible, job_id, queue_id),
    gone_messages AS (
        SELECT l.job_id, gone.name AS queue FROM lost l JOIN gone ON gone.id = l.queue_id),
    noted AS (
        {note})
    SELECT (SELECT count(*) FILTER (WHERE visible) FROM lost),
           (SELECT count(pg_notify('pgbeat_queue_' || id, 'gone ' || name)) FROM gone
             WHERE id IN (SELECT queue_id FROM left_over))

-- Messages that kombu's SQLAlchemy transport delivered are not counted. The queue's id is a
-- parameter so that the server can estimate how many messages the queue has.
-- name: purge
WITH gone_messages AS (
        DELETE FROM kombu_message m WHERE m.claimed_by IS NULL AND m.ctid = ANY (ARRAY(
            SELECT w.ctid FROM (
                SELECT c.ctid FROM kombu_message c WHERE c.queue_id = :id AND c.visible
                 LIMIT :limit FOR UPDATE SKIP LOCKED) AS w
            UNION ALL
            SELECT d.ctid FROM (
                SELECT c.ctid FROM kombu_message c
                 WHERE c.queue_id = :id AND c.available_at IS NOT NULL
                 LIMIT :limit FOR UPDATE SKIP LOCKED) AS d
             LIMIT :limit))
        RETURNING m.job_id, CAST(:name AS text) AS queue),
    noted AS (
        {note})
    SELECT count(*) FROM gone_messages

-- Dead consumers have their rows until a live one releases them. A delayed message that is due waits,
-- though only a consumer makes it visible.
-- name: all
WITH alive AS (SELECT id FROM pgbeat.consumers EXCEPT SELECT pgbeat.dead_consumers())
    SELECT q.name, coalesce(m.waiting, 0), coalesce(m.delayed, 0), coalesce(m.claimed, 0),
           coalesce(d.count, 0), coalesce(c.count, 0), clock_timestamp() - m.oldest, q.paused_at,
           q.auto_delete, q.owner
      FROM kombu_queue q
           LEFT JOIN (
               SELECT queue_id, count(*) FILTER (WHERE visible OR available_at <= now()) AS waiting,
                      count(*) FILTER (WHERE available_at > now()) AS delayed,
                      count(claimed_by) AS claimed, min(coalesce(available_at, enqueued_at))
                          FILTER (WHERE visible OR available_at <= now()) AS oldest
                 FROM kombu_message GROUP BY queue_id) m ON m.queue_id = q.id
           LEFT JOIN (
               SELECT queue, count(*) FROM kombu_message_dead GROUP BY queue) d ON d.queue = q.name
           LEFT JOIN (
               SELECT queue_id, count(*) FROM kombu_queue_consumer JOIN alive ON id = consumer_id
                GROUP BY queue_id) c ON c.queue_id = q.id
     ORDER BY q.name

-- As `all`, without reading the other queues: each number comes from a part of an index.
-- name: one
SELECT q.name, w.count,
           (SELECT count(*) FROM kombu_message m
             WHERE m.queue_id = :id AND m.available_at > now()),
           (SELECT count(*) FROM kombu_message m
             WHERE m.queue_id = :id AND m.claimed_by IS NOT NULL),
           (SELECT count(*) FROM kombu_message_dead d WHERE d.queue = :name),
           (SELECT count(*) FROM kombu_queue_consumer c
             WHERE c.queue_id = :id AND c.consumer_id IN (
                       SELECT id FROM pgbeat.consumers EXCEPT SELECT pgbeat.dead_consumers())),
           clock_timestamp() - w.oldest, q.paused_at, q.auto_delete, q.owner
      FROM kombu_queue q CROSS JOIN (
               SELECT count(*), min(m.since) AS oldest FROM (
                   SELECT enqueued_at AS since FROM kombu_message WHERE queue_id = :id AND visible
                    UNION ALL
                   SELECT available_at FROM kombu_message
                    WHERE queue_id = :id AND available_at <= now()) AS m) AS w
     WHERE q.id = :id
