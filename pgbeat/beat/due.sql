-- Queried at every idle pass: straight to the driver, which has it prepared.
-- Seconds are subtracted, not times, one of which may be infinite.
-- name: snapshot
SELECT statement_timestamp(),
       (SELECT min(next_run) FROM pgbeat.schedules
         WHERE namespace = %(namespace)s AND enabled AND paused_at IS NULL
           AND id <> ALL (%(held)s::bigint[])),
       EXISTS (SELECT FROM pgbeat.schedules
         WHERE namespace = %(namespace)s AND enabled AND paused_at IS NULL
           AND next_run IS NULL AND after IS NULL AND id <> ALL (%(held)s::bigint[])),
       (SELECT min(probe_at) FROM pgbeat.schedules
         WHERE namespace = %(namespace)s AND NOT enabled AND probe_at IS NOT NULL),
       (extract(epoch FROM least(
           (SELECT min(run_at) FROM pgbeat.unfinished_jobs
             WHERE namespace = %(namespace)s AND state = 'scheduled'
               AND dispatched_at IS NULL AND NOT is_blocked),
           (SELECT min(next_deadline) FROM pgbeat.unfinished_jobs
             WHERE namespace = %(namespace)s AND next_deadline IS NOT NULL),
           (SELECT min(stale_at) FROM pgbeat.schedules
             WHERE namespace = %(namespace)s AND stale_at IS NOT NULL),
           pgbeat.next_delivery(%(namespace)s))) - extract(epoch FROM statement_timestamp())
       )::float8,
       EXISTS (SELECT FROM pgbeat.unfinished_jobs j
                WHERE {own} = %(namespace)s AND {is_member})

-- name: advance
UPDATE pgbeat.schedules s
   SET next_run = d.next_run, due_at = d.due_at, failed_due_at = d.failed_due_at,
       waiting_for = d.waiting_for, upstream_ended = d.upstream_ended, out_of_turn = d.out_of_turn,
       run_count = s.run_count + d.runs, retry_count = d.retry_count,
       last_run = CASE WHEN d.outcome = 'waiting' THEN s.last_run ELSE :now END,
       last_success = CASE WHEN d.outcome = 'launched' THEN :now ELSE s.last_success END,
       last_failure = CASE WHEN d.outcome = 'failed' THEN :now ELSE s.last_failure END,
       last_error = coalesce(d.error, s.last_error),
       cursor = CASE WHEN d.cursor IS NULL THEN s.cursor
                     ELSE nullif(CAST(d.cursor AS jsonb), 'null') END
  FROM json_to_recordset(CAST(:batch AS json)) AS d (
           id bigint, outcome text, next_run timestamptz, retry_count integer, error text,
           cursor text, due_at timestamptz, failed_due_at timestamptz, waiting_for uuid,
           upstream_ended integer, out_of_turn boolean, runs integer)
 WHERE s.id = d.id

-- name: set_next
WITH given AS (
    SELECT * FROM unnest(CAST(:id AS bigint[]), CAST(:version AS bigint[]),
                         CAST(:next_run AS timestamptz[]), CAST(:due_at AS timestamptz[]))
               AS d (id, version, next_run, due_at)),
locked AS (
    SELECT s.id FROM pgbeat.schedules s JOIN given USING (id)
     WHERE s.xmin::text::bigint = given.version FOR UPDATE OF s SKIP LOCKED)
UPDATE pgbeat.schedules s
   SET next_run = given.next_run, due_at = given.due_at, out_of_turn = false
  FROM given JOIN locked USING (id) WHERE s.id = given.id
RETURNING s.id

-- name: follow_zone
WITH before AS MATERIALIZED (
    SELECT timezone FROM pgbeat.namespaces WHERE name = :namespace FOR UPDATE),
noted AS (
    INSERT INTO pgbeat.namespaces (name, timezone) VALUES (:namespace, :timezone)
    ON CONFLICT (name) DO UPDATE SET timezone = excluded.timezone
     WHERE namespaces.timezone <> excluded.timezone)
UPDATE pgbeat.schedules SET next_run = NULL, due_at = NULL
 WHERE namespace = :namespace AND timezone IS NULL AND enabled AND paused_at IS NULL
   AND next_run > now() AND retry_count = 0 AND waiting_for IS NULL
   AND (cron IS NOT NULL OR rrule IS NOT NULL OR every >= interval '1 day')
   AND EXISTS (SELECT FROM before WHERE timezone <> :timezone)

-- name: rows
SELECT {columns}, xmin::text::bigint
  FROM pgbeat.schedules
 WHERE namespace = %(namespace)s AND enabled AND paused_at IS NULL
   AND id <> ALL (%(held)s::bigint[])
-- name: oldest
AND next_run <= %(now)s ORDER BY next_run LIMIT %(limit)s
-- name: due
{rows} {oldest}
-- name: due_plain
{rows} AND launcher = 'GenericLauncher' AND condition_sql IS NULL AND args IS NOT NULL {oldest}
-- name: new
{rows} AND next_run IS NULL AND after IS NULL LIMIT %(limit)s
