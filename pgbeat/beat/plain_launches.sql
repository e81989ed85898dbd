-- Launches plain schedules: locks their rows, advances them, and writes a tick, a job and a message for
-- each. All or nothing: if a row is locked, or was written to since it was read, if a due time has a
-- tick, or if a queue is missing, the statement fails and nothing has happened.
--
-- $1 schedules, $2 their versions, $3 job ids, $4 due times, $5 the due times before them, $6 next_run,
-- $7 due_at where next_run is another time, $8 missed due times, $9 notes on them, $10 the number of
-- each one's route, $11 payloads; of each route $12 queue, $13 priority, $14 milliseconds to live; $15
-- now, $16 max_attempts, $17 retry_base and $18 retry_cap in seconds. Texts have a line each.
WITH d AS (
    SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::uuid[], $4::timestamptz[], $5::timestamptz[],
                         $6::timestamptz[], $7::timestamptz[], $8::integer[],
                         string_to_array($9, E'\n', ''), $10::integer[],
                         string_to_array($11, E'\n'))
             WITH ORDINALITY AS d (id, version, job_id, due_at, interval_start, next_run,
                                   next_due_at, missed, note, route, payload, position)
), launch AS MATERIALIZED (
    SELECT d.*, q.id AS queue_id, q.name AS queue, s.namespace, s.name, s.launcher, s.task, s.args,
           s.kwargs, s.options, s.labels, $16::integer AS max_attempts,
           $17::float8 * interval '1 second' AS retry_base,
           $18::float8 * interval '1 second' AS retry_cap
      FROM d JOIN pgbeat.schedules s ON s.id = d.id AND s.xmin::text::bigint = d.version
             JOIN kombu_queue q ON q.name = (string_to_array($12, E'\n'))[d.route]
       FOR UPDATE OF s SKIP LOCKED
), advanced AS (
    UPDATE pgbeat.schedules s
       SET next_run = l.next_run, due_at = l.next_due_at, waiting_for = NULL, upstream_ended = 0,
           out_of_turn = false, run_count = s.run_count + 1, retry_count = 0, last_run = $15::timestamptz,
           last_success = $15::timestamptz
      FROM launch l WHERE s.id = l.id
), ticked AS (
    INSERT INTO pgbeat.ticks
           (schedule_id, schedule, trigger, due_at, decided_at, outcome, job_id, missed, note)
    SELECT id, name, 'timetable', due_at, clock_timestamp(), 'launched', job_id, missed, note
      FROM launch
), started AS (
    {jobs}
), sent AS (
    {insert}
      FROM (SELECT position, payload, job_id, queue_id, NULL::timestamptz AS available_at,
                   ($13::integer[])[route] AS priority, ($14::bigint[])[route] AS ttl
              FROM launch) d
      JOIN kombu_queue q ON q.id = d.queue_id
     ORDER BY d.position
)
SELECT pgbeat.require_all(count(*), cardinality($1::bigint[])) FROM launch
