-- name: insert
SELECT {result} FROM pgbeat.write_jobs(CAST(:batch AS json)) AS j

-- name: write
SELECT id, CAST(extract(epoch FROM made_at) * 1000000 AS bigint) AS made_at, place
  FROM pgbeat.write_job(CAST({fields} AS json), CAST({taken_for} AS interval),
                        CAST({payload} AS text), CAST({queue} AS text),
                        CAST({priority} AS smallint), CAST({is_awaited} AS boolean),
                        CAST({may_exist} AS boolean))

-- name: of_schedules
INSERT INTO pgbeat.unfinished_jobs
       (id, namespace, task, args, kwargs, job_source, created_by, is_system_job, dispatched_at,
        schedule_id, schedule, due_at, queue, options, max_attempts, retry_base, retry_cap,
        trigger, interval_start, labels)
SELECT job_id, namespace, task, args, kwargs, 'scheduled_task',
       'system:scheduler:' || launcher, true, now(), id, name, due_at, queue, options,
       max_attempts, retry_base, retry_cap, 'timetable', interval_start, labels
  FROM launch
