WITH gone_messages AS (
        DELETE FROM kombu_message m USING unnest(ARRAY(
            SELECT ctid FROM kombu_message WHERE expires_at <= now() AND claimed_by IS NULL
             ORDER BY expires_at LIMIT 5000 FOR UPDATE SKIP LOCKED)) AS e (tid)
         WHERE m.ctid = e.tid
        RETURNING m.job_id, (SELECT q.name FROM kombu_queue q WHERE q.id = m.queue_id) AS queue)
    {note}
