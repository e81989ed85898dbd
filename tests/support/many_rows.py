"""Fills a database with a month of jobs, and all that belongs to them."""

from typing import Any

import psycopg

from tests.support.partitions import make_partitions, turn_off_autovacuum

#: Tables that grow with what is launched: no statement may go through one.
BIG = {"jobs", "executions", "ticks", "deliveries", "groups"}

# A month's jobs, the newest last: most are schedules', one in twenty a person's.
_BEFORE = """
INSERT INTO pgbeat.schedules (name, task, every, next_run)
SELECT 's' || i, 'shop.task' || i % 40, '1 hour', now() + interval '1 hour'
  FROM generate_series(1, {schedules}) AS i;

INSERT INTO pgbeat.lanes (name, max_running) SELECT 'lane' || i, 10 FROM generate_series(0, 9) i;
UPDATE pgbeat.lanes SET rate_limit = 1000, rate_period = '1 hour' WHERE name = 'lane4';
INSERT INTO pgbeat.workers (id, name, pid) SELECT i, 'w' || i, i FROM generate_series(1, 10) AS i;
INSERT INTO pgbeat.webhooks (id, name, url, secret, events)
SELECT i, 'w' || i, 'http://127.0.0.1:9/', 's', '{{job.run.failed}}'
  FROM generate_series(1, 2) AS i;
"""
_ROWS = """
INSERT INTO pgbeat.groups (id, mode, job_source, created_by, created_at, state, finished_at)
SELECT md5('g' || i)::uuid, CASE WHEN i % 2 = 0 THEN 'sequential' ELSE 'parallel' END, 'user_api',
       'user:' || i % 50, at, CASE WHEN {is_new} THEN 'running' ELSE 'completed' END,
       CASE WHEN NOT {is_new} THEN at END
  FROM generate_series({first} / 200, {last} / 200 - 1) AS i, LATERAL (
       SELECT now() - ({rows} - i * 200) * interval '31 days' / {rows} AS at) AS l;

INSERT INTO pgbeat.jobs
       (id, schedule_id, schedule, due_at, task, args, kwargs, queue, state, job_source, created_by,
        is_system_job, created_at, started_at, finished_at, dispatched_at, run_at, worker, error,
        template, lane, position, attempt, max_attempts, retry_of, retried_by, group_id,
        group_position, unique_key)
SELECT md5(i::text)::uuid, CASE WHEN NOT persons THEN 1 + i % {schedules} END,
       CASE WHEN NOT persons THEN 's' || 1 + i % {schedules} END, at, 'shop.task' || i % 40,
       '[]', '{{}}', 'celery', state, CASE WHEN persons THEN 'user_api' ELSE 'scheduled_task' END,
       CASE WHEN persons THEN 'user:' || i / 20 % 50 ELSE 'system:scheduler:GenericLauncher' END,
       NOT persons, at, CASE WHEN state NOT IN ('pending', 'scheduled', 'paused') THEN at END,
       CASE WHEN state NOT IN ('pending', 'scheduled', 'running', 'paused') THEN at END,
       CASE WHEN state NOT IN ('pending', 'scheduled', 'paused') OR i % 16 = 8 THEN at END,
       CASE WHEN state = 'scheduled' THEN now() + (i % 1000 - 5) * interval '1 minute' END, 'w',
       CASE WHEN state = 'failed' THEN 'ValueError: no' END,
       CASE WHEN i % 3000 = 0 THEN 'report' END,
       CASE WHEN i % 16 = 0 AND state <> 'running' OR i % 800 = 2 THEN 'lane' || i / 16 % 10 END,
       i, CASE WHEN i % 50 = 1 THEN 2 ELSE 1 END, 2,
       CASE WHEN i % 50 = 1 THEN md5((i - 1)::text)::uuid END,
       CASE WHEN i % 50 = 0 AND state = 'failed' THEN md5((i + 1)::text)::uuid END,
       CASE WHEN i % 200 < 10 THEN md5('g' || i / 200)::uuid END,
       CASE WHEN i % 200 < 10 THEN i % 200 END, CASE WHEN i % 10 = 0 THEN 'key' || i END
  FROM (SELECT i, i % 20 = 0 AS persons, now() - ({rows} - i) * interval '31 days' / {rows} AS at,
               CASE WHEN {is_new} THEN CASE
                        WHEN i % 4 = 0 THEN 'pending' WHEN i % 4 = 1 THEN 'scheduled'
                        WHEN i % 100 = 3 THEN 'paused' WHEN i % 4 = 2 THEN 'running'
                        ELSE 'completed' END
                    WHEN i % 25 = 0 THEN 'failed' WHEN i % 100 = 1 THEN 'cancelled'
                    WHEN i % 100 = 2 THEN 'skipped' ELSE 'completed' END AS state
          FROM generate_series({first}, {last} - 1) AS i) AS j;

INSERT INTO pgbeat.executions
       (id, job_id, schedule_id, number, state, worker, worker_id, started_at, finished_at,
        duration_ms)
SELECT md5('e' || id)::uuid, id, schedule_id, 1, state, 'w', 1 + schedule_id % 10, started_at,
       finished_at, 5
  FROM pgbeat.jobs
 WHERE started_at IS NOT NULL AND position >= {first} ORDER BY position;

INSERT INTO pgbeat.ticks (schedule_id, schedule, due_at, decided_at, outcome, job_id, reason)
SELECT schedule_id, schedule, due_at, created_at,
       CASE WHEN position % 10 = 0 THEN 'skipped' ELSE 'launched' END,
       CASE WHEN position % 10 <> 0 THEN id END, CASE WHEN position % 10 = 0 THEN 'no work' END
  FROM pgbeat.jobs WHERE schedule_id IS NOT NULL AND position >= {first} ORDER BY position;

INSERT INTO pgbeat.deliveries (webhook_id, event, payload, state, next_at, created_at, finished_at)
SELECT 1, 'job.run.failed', '{{}}', CASE WHEN {is_new} THEN 'pending' ELSE 'delivered' END,
       CASE WHEN {is_new} THEN now() END, at, CASE WHEN NOT {is_new} THEN at END
  FROM (SELECT now() - ({rows} - i) * interval '31 days' / {rows} AS at
          FROM generate_series({first}, {last} - 1, 4) AS i) AS d;

INSERT INTO kombu_message (visible, payload, queue_id, job_id)
SELECT true, '{{}}', (SELECT min(id) FROM kombu_queue), id FROM pgbeat.jobs
 WHERE state = 'pending' AND dispatched_at IS NOT NULL;
"""
# Of some, what fails has become well again.
_INCIDENTS = """
INSERT INTO pgbeat.incidents (webhook_id, kind, name, events, failures, alerts, began_at, failed_at,
                              made_at, next_alert_at)
SELECT 2, kind, name, '{{job.failed}}', 9, 2, at - interval '1 day', at, at - interval '1 hour', at
  FROM (SELECT 'schedule' AS kind, 's' || i AS name, i FROM generate_series(1, {schedules}) AS i
         UNION ALL
        SELECT 'task', 'shop.task' || i, i FROM generate_series(0, 39) AS i) AS failing, LATERAL (
       SELECT now() - CASE WHEN i % 3 = 0 THEN interval '20 days'
                           ELSE interval '15 minutes' END) AS l (at)
"""
#: The share of jobs that have not ended.
_NEW = 0.03


def fill(dsn: str, rows: int) -> None:
    """Jobs, and as many executions and ticks; a quarter as many deliveries.

    The newest have not ended, and the statistics that plans are made by know nothing of them: so it
    is when much is launched at once.
    """
    schedules, new = max(100, rows // 1000), round(rows * (1 - _NEW) / 200) * 200
    values: dict[str, Any] = {"rows": rows, "schedules": schedules}
    with psycopg.connect(dsn, autocommit=True) as connection:
        make_partitions(connection, 31, 7)
        turn_off_autovacuum(connection)
        # An earlier test may have been lent the database.
        connection.execute(
            "DELETE FROM pg_statistic s USING pg_class c "
            "WHERE c.oid = s.starelid AND c.relnamespace = 'pgbeat'::regnamespace"
        )
        _run(connection, _BEFORE, **values)
        _run(connection, _ROWS, **values, first=0, last=new, is_new="false")
        _run(connection, _INCIDENTS, **values)
        connection.execute("VACUUM ANALYZE")
        _run(connection, _ROWS, **values, first=new, last=rows, is_new="true")


def fill_newest(connection: "psycopg.Connection[Any]", schedules: int, rows: int) -> None:
    """Makes schedules and the jobs of the last minute, of which most have not ended."""
    values = {"rows": 10**9, "schedules": schedules}
    _run(connection, _BEFORE, **values)
    _run(connection, _ROWS, **values, first=10**9 - rows, last=10**9, is_new="true")


_LEFT = """
INSERT INTO pgbeat.unfinished_jobs (id, task, args, kwargs, job_source, created_by, is_system_job)
SELECT gen_random_uuid(), 't', '[]', '{{}}', 'system', 'test', true FROM generate_series(1, {rows});
INSERT INTO pgbeat.running_executions (job_id, number, worker)
SELECT id, 1, 'w' FROM pgbeat.unfinished_jobs;
DELETE FROM pgbeat.running_executions
 WHERE ctid < (SELECT max(ctid) FROM pgbeat.running_executions);
DELETE FROM pgbeat.unfinished_jobs WHERE ctid < (SELECT max(ctid) FROM pgbeat.unfinished_jobs)
"""


def leave_pages(dsn: str, rows: int) -> None:
    """Leaves jobs and executions as when so many have ended, and a vacuum found almost none.

    In two sessions: one reports the rows that it has deleted when it ends.
    """
    with psycopg.connect(dsn, autocommit=True) as connection:
        turn_off_autovacuum(connection)
        _run(connection, _LEFT, rows=rows)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE pgbeat.unfinished_jobs, pgbeat.running_executions")


def _run(connection: "psycopg.Connection[Any]", script: str, **values: Any) -> None:
    for statement in script.format(**values).split(";\n"):
        if statement.strip():
            connection.execute(statement.encode())
