-- name: job
INSERT INTO pgbeat.jobs
       (id, schedule_id, schedule, trigger, due_at, task, args, kwargs, queue, state,
        job_source, created_by, is_system_job, created_at, dispatched_at, started_at,
        finished_at, worker, error)
SELECT :job_id, s.id, s.name, 'timetable', :at, :task, s.args, s.kwargs, 'celery', :state,
       'scheduled_task', 'system:scheduler:GenericLauncher', true, :at, :at, :started_at,
       :finished_at, :worker, :error
  FROM pgbeat.schedules s WHERE s.id = :schedule_id
