-- The load of each queue, for autoscalers: they divide waiting + claimed by the slots that they want
-- to fill. What can't start doesn't wait: messages of a paused queue, and those whose ETA is to come.
-- One that is past waits, though only a worker makes its message visible: there may be none.

-- The broker's tables may come later than the schema, so that this is looked up when it is asked.
CREATE FUNCTION pgbeat.queue_load(
    OUT queue text, OUT waiting bigint, OUT claimed bigint, OUT slots bigint,
    OUT load double precision)
RETURNS SETOF record
LANGUAGE plpgsql STABLE ROWS 100 SET jit = off
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
BEGIN
    IF to_regclass('kombu_queue') IS NULL THEN
        RETURN;
    END IF;
    RETURN QUERY
    WITH living AS MATERIALIZED (
        SELECT w.queues, w.concurrency FROM pgbeat.workers w
         WHERE w.alive_until > now() OR EXISTS (
               SELECT FROM pg_locks l
                WHERE l.locktype = 'advisory' AND l.objsubid = 2 AND l.granted
                  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
                  AND l.classid = 1885823603 AND l.objid = w.id::oid)),
    due AS MATERIALIZED (
        SELECT queue_id, count(*) AS messages
          FROM (SELECT m.queue_id FROM kombu_message m
                 WHERE m.available_at <= now() ORDER BY m.available_at LIMIT 10000) AS n
         GROUP BY 1),
    counted AS (
        SELECT q.name,
               (SELECT count(*) FROM (
                   SELECT FROM kombu_message m
                    WHERE m.queue_id = q.id AND m.visible AND q.paused_at IS NULL
                    LIMIT 10000) AS n)
               + coalesce((SELECT d.messages FROM due d
                            WHERE d.queue_id = q.id AND q.paused_at IS NULL), 0) AS waiting,
               (SELECT count(*) FROM kombu_message m
                 WHERE m.queue_id = q.id AND m.claimed_by IS NOT NULL) AS claimed,
               (SELECT coalesce(sum(l.concurrency), 0)::bigint FROM living l
                 WHERE q.name = ANY (l.queues)) AS slots
          FROM kombu_queue q
         WHERE q.owner IS NULL)
    SELECT c.name::text, c.waiting, c.claimed, c.slots,
           (c.waiting + c.claimed)::float8 / nullif(c.slots, 0)
      FROM counted c;
END
$$;

CREATE VIEW pgbeat.queue_load AS SELECT * FROM pgbeat.queue_load();
