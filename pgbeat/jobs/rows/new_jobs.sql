-- name: insert
INSERT INTO pgbeat.unfinished_jobs AS j
       (id, namespace, task, args, kwargs, job_source, created_by, is_system_job, dispatched_at,
        state, schedule_id, schedule, due_at, queue, options, template, run_at, lane, priority,
        tags, resources, max_attempts, retry_base, retry_cap, retry_of, group_id,
        group_position, is_blocked, unfinished_parents, unique_key, awaits_approval,
        requires_approval, checkpoint, trigger, interval_start, interval_end, description,
        labels, metadata, run_key, must_start_by, must_end_by, next_deadline, root_id,
        parent_id, callback_of)
SELECT id, namespace, task, args, kwargs, job_source, created_by, is_system_job,
       CASE WHEN is_dispatched THEN now() END,
       state, schedule_id, schedule, due_at, queue, coalesce(options, '{}'), template, run_at,
       lane, coalesce(priority, 0), coalesce(tags, '{}'), coalesce(resources, '{}'),
       coalesce(max_attempts, 1), coalesce(retry_base, 60) * interval '1 second',
       coalesce(retry_cap, 3600) * interval '1 second', retry_of, group_id, group_position,
       coalesce(is_blocked, false), coalesce(unfinished_parents, 0), unique_key,
       coalesce(awaits_approval, false),
       coalesce(awaits_approval, false), checkpoint, trigger, interval_start, interval_end,
       description, coalesce(labels, '{}'), coalesce(metadata, '{}'), run_key,
       base + must_start_within * interval '1 second',
       base + must_end_within * interval '1 second',
       base + least(must_start_within, must_end_within) * interval '1 second',
       root_id, parent_id, callback_of
  FROM json_to_recordset(CAST(:batch AS json)) AS d (
           id uuid, namespace text, task text, args jsonb, kwargs jsonb, job_source text,
           created_by text, is_system_job boolean, is_dispatched boolean, state text,
           schedule_id bigint, schedule text, due_at timestamptz, queue text, options jsonb,
           template text, run_at timestamptz, lane text, priority smallint, tags text[],
           resources jsonb, max_attempts integer, retry_base float8, retry_cap float8,
           retry_of uuid, group_id uuid, group_position integer, is_blocked boolean,
           unfinished_parents integer, unique_key text, awaits_approval boolean,
           checkpoint jsonb, trigger text, interval_start timestamptz,
           interval_end timestamptz, description text, labels jsonb, metadata jsonb,
           run_key text, must_start_within float8, must_end_within float8, root_id uuid,
           parent_id uuid, callback_of uuid),
       coalesce(CASE WHEN trigger IS DISTINCT FROM 'backfill' THEN due_at END, run_at, now())
           AS base
ON CONFLICT DO NOTHING

-- name: of_schedules
INSERT INTO pgbeat.unfinished_jobs
       (id, namespace, task, args, kwargs, job_source, created_by, is_system_job, dispatched_at,
        schedule_id, schedule, due_at, queue, options, max_attempts, retry_base, retry_cap,
        trigger, interval_start, labels)
SELECT job_id, namespace, task, args, kwargs, 'scheduled_task',
       'system:scheduler:' || launcher, true, now(), id, name, due_at, queue, options,
       max_attempts, retry_base, retry_cap, 'timetable', interval_start, labels
  FROM launch
