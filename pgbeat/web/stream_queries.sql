-- name: snapshot
WITH wanted AS (
    SELECT unnest(CAST(:ids AS uuid[])) AS id
     UNION
    SELECT id FROM (SELECT id FROM pgbeat.jobs
                     WHERE namespace = :namespace AND :with_all
                     ORDER BY created_at DESC, id DESC LIMIT :newest) AS newest
     UNION
    SELECT found.id
      FROM unnest(ARRAY['pending', 'scheduled', 'running', 'paused']) AS s (state)
           CROSS JOIN LATERAL (
               SELECT id FROM pgbeat.jobs
                WHERE namespace = :namespace AND state = s.state AND :with_all
                ORDER BY created_at DESC, id DESC LIMIT :newest) AS found
     UNION
    SELECT found.id
      FROM unnest(CAST(:people AS text[])) AS p (name)
           CROSS JOIN LATERAL (
               SELECT id FROM pgbeat.jobs
                WHERE namespace = :namespace AND created_by = p.name
                ORDER BY created_at DESC, id DESC LIMIT :newest) AS found)
SELECT now(), {job}, e.number, e.progress_done, e.progress_total, e.progress_message
  FROM wanted w
       JOIN pgbeat.jobs j ON j.id = w.id AND j.namespace = :namespace
       LEFT JOIN LATERAL (
           SELECT * FROM ({newest}) AS newest WHERE j.started_at IS NOT NULL) AS e ON true

-- The row, and the states of its newest jobs.
-- name: schedules
SELECT s.name, md5(concat(s::text, j.states))
  FROM unnest(CAST(:names AS text[])) AS n (name)
       JOIN pgbeat.schedules s ON s.namespace = :namespace AND s.name = n.name
       CROSS JOIN LATERAL (
           SELECT string_agg(newest.state, ',') AS states
             FROM (SELECT state FROM pgbeat.jobs WHERE schedule_id = s.id
                    ORDER BY created_at DESC LIMIT 25) AS newest) AS j

-- name: audit
SELECT max(id) FROM pgbeat.audit WHERE namespace = :namespace
-- name: ticks
SELECT max(id) FROM pgbeat.ticks
-- name: made
SELECT id FROM pgbeat.jobs WHERE namespace = :namespace
 ORDER BY created_at DESC, id DESC LIMIT 1
-- name: began
SELECT max(started_at) FROM pgbeat.executions
-- name: ended
SELECT max(recorded_at) FROM pgbeat.ended_executions
-- name: lanes
SELECT md5(string_agg(l::text, '' ORDER BY name)) FROM pgbeat.lanes l
 WHERE namespace = :namespace
-- name: direct
SELECT md5(string_agg(r::text, '' ORDER BY id)) FROM pgbeat.reservations r
 WHERE namespace = :namespace
-- name: webhooks
SELECT md5(string_agg(w.id || ':' || d.sent, ',' ORDER BY w.id))
  FROM pgbeat.webhooks w
       CROSS JOIN LATERAL (
           SELECT string_agg(concat_ws(' ', n.id, n.state, n.next_at), ',') AS sent
             FROM (SELECT id, state, next_at FROM pgbeat.deliveries
                    WHERE webhook_id = w.id
                    ORDER BY created_at DESC, id DESC LIMIT 25) AS n) AS d
 WHERE w.namespace = :namespace AND w.schedule_id IS NULL
-- name: beats
SELECT string_agg(pid || ' ' || granted, ',' ORDER BY pid) FROM pg_locks
 WHERE {of_leader}
-- The server's statistics, a second late, because the tables may be of any size.
-- name: messages
SELECT string_agg(concat_ws(' ', n_tup_ins, n_tup_upd, n_tup_del), ',' ORDER BY relid)
  FROM pg_stat_all_tables
 WHERE relid IN (to_regclass('kombu_message'), to_regclass('kombu_message_dead'),
                 to_regclass('kombu_queue'))
