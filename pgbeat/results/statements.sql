-- name: columns
task_id, status, body, content_type, content_encoding, traceback, children, group_id,
    parent_id, date_done, task, worker, queue, retries, request, expires_at

-- Invariant: a stored success stays, and neither a revocation nor a retry replaces an end: what was sent
-- for the retry may have failed by then, or the task was cancelled as it asked for one. Nothing
-- replaces the revocation of a job that was cancelled before its worker recorded that it began it, and
-- that ran to its end all the same.
-- Waiting programs are notified in the same transaction.
-- name: store
WITH {first}
     stored AS (
     INSERT INTO pgbeat.results AS r ({columns})
     SELECT $1, $2, $3::bytea, $4, $5, $6, $7::jsonb, $8, $9,
            CASE WHEN {is_ready} THEN clock_timestamp() END,
            $10, $11, $12, $13::integer, $14::bytea,
            clock_timestamp() + make_interval(secs => $15::double precision)
      WHERE ($16::text IS NULL OR set_config('synchronous_commit', $16, true) IS NOT NULL)
        AND {only_if}
     ON CONFLICT (task_id) DO UPDATE SET ({columns}) = ROW (excluded.*)
      WHERE r.status <> 'SUCCESS'
        AND NOT (r.status IN ('FAILURE', 'REVOKED') AND excluded.status IN ('REVOKED', 'RETRY'))
        AND NOT (r.status = 'REVOKED' AND pgbeat.was_cancelled($1))),
     waiting AS ({waiting})
{then}
-- name: waiting
DELETE FROM pgbeat.result_waits WHERE task_id = $1 RETURNING waiter
-- name: waiters
SELECT waiter FROM pgbeat.result_waits WHERE task_id = $1
-- name: notify
pg_notify('{channel}' || waiter, left($1, 7000))
-- name: then
SELECT {notify} FROM waiting
-- name: acknowledged_first
gone AS (
     DELETE FROM kombu_message WHERE id = $17::bigint AND claimed_by = $18::integer RETURNING 1),
-- name: acknowledged_only_if
EXISTS (SELECT FROM gone)
-- name: acknowledged_waiting
DELETE FROM pgbeat.result_waits
      WHERE task_id = $1 AND EXISTS (SELECT FROM gone) RETURNING waiter
-- name: acknowledged_then
SELECT EXISTS (SELECT FROM gone), (SELECT count({notify}) FROM waiting)
-- name: store_same
WITH stored AS (
     INSERT INTO pgbeat.results AS r
            (task_id, status, body, content_type, content_encoding, date_done, expires_at)
     SELECT id, $2, $3::bytea, $4, $5, clock_timestamp(),
            clock_timestamp() + make_interval(secs => $6::double precision)
       FROM json_array_elements_text($1::json) AS id ORDER BY id
     ON CONFLICT (task_id) DO UPDATE
        SET (status, body, content_type, content_encoding, date_done, expires_at) = ROW (
                excluded.status, excluded.body, excluded.content_type,
                excluded.content_encoding, excluded.date_done, excluded.expires_at)
      WHERE r.status NOT IN ('SUCCESS', 'FAILURE', 'REVOKED')),
     waiting AS (
     DELETE FROM pgbeat.result_waits
      WHERE task_id IN (SELECT json_array_elements_text($1::json)) RETURNING task_id, waiter)
SELECT pg_notify('{channel}' || waiter, left(task_id, 7000)) FROM waiting

-- name: read
SELECT task_id, status, body, content_type, content_encoding, traceback, children, group_id,
       parent_id, to_char(date_done AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"+00:00"'),
       task, worker, queue, retries, request
  FROM pgbeat.results
 WHERE {which} AND (expires_at IS NULL OR expires_at > now())
-- name: among
task_id IN (SELECT json_array_elements_text($1::json))
-- name: among_ready
{among} AND status IN (SELECT json_array_elements_text($2::json))

-- Invariant: a part counts once, however often its task runs. The row of the chord stays locked
-- until the transaction ends, so one part is the last. Each part renews the chord, which expires
-- once no part has returned for so long.
-- name: return_part
WITH part AS (
     INSERT INTO pgbeat.chord_parts
            (group_id, position, task_id, status, body, content_type, content_encoding)
     SELECT $1, $2::integer, $3, $4, $5::bytea, $6, $7
      WHERE NOT EXISTS (SELECT FROM pgbeat.chords WHERE group_id = $1 AND ended)
        AND ($9::text IS NULL OR set_config('synchronous_commit', $9, true) IS NOT NULL)
     ON CONFLICT DO NOTHING
     RETURNING 1)
INSERT INTO pgbeat.chords AS c (group_id, done, expires_at)
SELECT $1, 1, clock_timestamp() + make_interval(secs => $8::double precision) FROM part
ON CONFLICT (group_id) DO UPDATE SET done = c.done + 1, expires_at = excluded.expires_at
 WHERE NOT c.ended
RETURNING done, size + added
