-- name: begin
INSERT INTO pgbeat.counters (namespace, metric, label, kind, value)
SELECT '', 'mark', 'ticks', '', coalesce(max(id), 0) - :most FROM pgbeat.ticks
 UNION ALL
SELECT '', 'mark', 'executions', '', coalesce(extract(epoch FROM (
           SELECT recorded_at FROM pgbeat.ended_executions WHERE recorded_at IS NOT NULL
            ORDER BY recorded_at DESC OFFSET :most LIMIT 1)) * 1000000, 0)
 UNION ALL
SELECT '', 'mark', 'late', '', 0
ON CONFLICT DO NOTHING

-- The first names keep sums of their own for good: a sum that moved would be a jump.
-- name: add
known AS (
    SELECT DISTINCT namespace, label FROM pgbeat.counters WHERE metric = :metric),
admitted AS (
    SELECT namespace, label FROM known
     UNION ALL
    SELECT namespace, label FROM (
           SELECT n.namespace, n.label,
                  row_number() OVER (PARTITION BY n.namespace ORDER BY n.label)
                  + (SELECT count(*) FROM known k
                      WHERE k.namespace = n.namespace AND k.label <> :other) AS number
             FROM (SELECT DISTINCT namespace, label FROM summed WHERE metric = :metric
                   EXCEPT SELECT namespace, label FROM known) AS n) AS numbered
     WHERE number <= :named),
added AS (
    INSERT INTO pgbeat.counters AS t (namespace, metric, label, kind, value)
    SELECT s.namespace, s.metric,
           CASE WHEN s.label = '' OR a.label IS NOT NULL THEN s.label ELSE :other END,
           s.kind, sum(s.value)
      FROM summed s LEFT JOIN admitted a ON a.namespace = s.namespace AND a.label = s.label
     GROUP BY 1, 2, 3, 4
    ON CONFLICT (namespace, metric, label, kind)
    DO UPDATE SET value = t.value + excluded.value),
moved AS (
    UPDATE pgbeat.counters SET value = last.value
      FROM (SELECT max(place) AS value FROM fresh) AS last
     WHERE namespace = '' AND metric = 'mark' AND label = :metric AND kind = ''
       AND last.value IS NOT NULL)
SELECT count(*) FROM fresh

-- name: mark
WITH mark AS MATERIALIZED (
    SELECT value FROM pgbeat.counters
     WHERE namespace = '' AND metric = 'mark' AND label = :metric AND kind = ''
       FOR UPDATE SKIP LOCKED),
-- name: ticks
{mark}
fresh AS MATERIALIZED (
    SELECT id AS place, schedule_id, schedule, outcome,
           CASE WHEN trigger = 'timetable'
                THEN greatest(extract(epoch FROM decided_at - due_at), 0)::float8 END AS late
      FROM pgbeat.ticks
     WHERE id > (SELECT value::bigint FROM mark)
       AND decided_at < now() - make_interval(secs => :lag)
     ORDER BY id LIMIT :most),
owned AS MATERIALIZED (
    SELECT s.namespace, f.* FROM fresh f JOIN pgbeat.schedules s ON s.id = f.schedule_id),
summed AS MATERIALIZED (
    SELECT namespace, 'ticks' AS metric, schedule AS label, outcome AS kind,
           count(*)::float8 AS value
      FROM owned GROUP BY 1, 3, 4
     UNION ALL
    SELECT namespace, 'lateness', '', width_bucket(late, CAST(:bounds AS float8[]))::text,
           count(*)
      FROM owned WHERE late IS NOT NULL GROUP BY 1, 4
     UNION ALL
    SELECT namespace, 'lateness', '', :sum, sum(late)
      FROM owned WHERE late IS NOT NULL GROUP BY 1),
{add}

-- All that were recorded at one moment belong together. Jobs that ended a week before the first of
-- them are not looked up: each partition of them costs as much as the one that has the job.
-- name: executions
{mark}
since AS MATERIALIZED (
    SELECT to_timestamp(value / 1000000) AS at FROM mark),
fresh AS MATERIALIZED (
    SELECT (extract(epoch FROM recorded_at) * 1000000)::float8 AS place, job_id,
           CASE WHEN lost THEN 'lost' ELSE state END AS state,
           coalesce(duration_ms / 1000, extract(epoch FROM finished_at - started_at)) AS took
      FROM pgbeat.ended_executions
     WHERE recorded_at > (SELECT at FROM since)
       AND recorded_at < now() - make_interval(secs => :lag)
       AND recorded_at <= coalesce((
           SELECT recorded_at FROM pgbeat.ended_executions
            WHERE recorded_at > (SELECT at FROM since)
            ORDER BY recorded_at OFFSET :most LIMIT 1), 'infinity')),
owned AS MATERIALIZED (
    SELECT j.namespace, j.task, j.job_source, f.state, greatest(f.took, 0)::float8 AS took
      FROM fresh f CROSS JOIN LATERAL (
           SELECT namespace, task, job_source FROM pgbeat.unfinished_jobs WHERE id = f.job_id
            UNION ALL
           SELECT namespace, task, job_source FROM pgbeat.ended_jobs
            WHERE id = f.job_id AND finished_at > (SELECT at FROM since) - interval '7 days'
           OFFSET 0) AS j),
summed AS MATERIALIZED (
    SELECT namespace, 'executions' AS metric, task AS label, state || :by || job_source AS kind,
           count(*)::float8 AS value
      FROM owned GROUP BY 1, 3, 4
     UNION ALL
    SELECT namespace, 'duration', task, width_bucket(took, CAST(:bounds AS float8[]))::text,
           count(*)
      FROM owned WHERE state IN ('completed', 'failed') GROUP BY 1, 3, 4
     UNION ALL
    SELECT namespace, 'duration', task, :sum, sum(took)
      FROM owned WHERE state IN ('completed', 'failed') GROUP BY 1, 3),
{add}

-- A retry is late with the job that it retries, which counts.
-- name: late
{mark}
since AS MATERIALIZED (
    SELECT to_timestamp(value / 1000000) AS at FROM mark),
fresh AS MATERIALIZED (
    SELECT namespace, (extract(epoch FROM late_at) * 1000000)::float8 AS place,
           CASE WHEN late_at >= created_at THEN missed_deadlines[1] END AS deadline
      FROM pgbeat.jobs
     WHERE late_at > (SELECT at FROM since)
       AND late_at < now() - make_interval(secs => :lag)
       AND late_at <= coalesce((
           SELECT late_at FROM pgbeat.jobs WHERE late_at > (SELECT at FROM since)
            ORDER BY late_at OFFSET :most LIMIT 1), 'infinity')),
summed AS MATERIALIZED (
    SELECT namespace, 'late' AS metric, '' AS label, deadline AS kind, count(*)::float8 AS value
      FROM fresh WHERE deadline IS NOT NULL GROUP BY 1, 4),
{add}
