-- What ended has ended since the span began, which leaves out the partitions from before. The other
-- limit leaves out those to come: with empty ones, all rows were read and sorted. A run from before
-- the span is found if it is among the last few that began then. Jobs that failed are read beside
-- their executions: for those that never began, and for the time before the executions were cut.
-- name: pieces
WITH pieces AS MATERIALIZED (
    SELECT s.id, p.*
      FROM unnest(CAST(:ids AS bigint[])) AS s (id) CROSS JOIN LATERAL (
           (SELECT 'run' AS source, e.state AS kind, e.started_at AS begin,
                   e.finished_at AS until, e.job_id, e.error AS said
              FROM pgbeat.executions e
             WHERE e.schedule_id = s.id AND e.started_at >= :since
               AND (e.finished_at IS NULL OR e.finished_at BETWEEN :since AND :soon)
             ORDER BY e.started_at DESC LIMIT :most)
           UNION ALL
           SELECT 'before', b.* FROM (
               (SELECT e.state, e.started_at, e.finished_at, e.job_id, e.error
                  FROM pgbeat.running_executions e
                 WHERE e.schedule_id = s.id AND e.started_at < :since
                 ORDER BY e.started_at DESC LIMIT 3)
               UNION ALL
               (SELECT e.state, e.started_at, e.finished_at, e.job_id, e.error
                  FROM pgbeat.ended_executions e
                 WHERE e.schedule_id = s.id AND e.started_at < :since
                   AND e.finished_at BETWEEN :before AND :soon
                 ORDER BY e.started_at DESC LIMIT 3)) AS b
            WHERE b.finished_at IS NULL OR b.finished_at >= :since
           UNION ALL
           SELECT 'job', w.* FROM (
               SELECT 'waiting', greatest(j.created_at, :since), NULL::timestamptz, j.id,
                      CASE WHEN j.state = 'scheduled' AND j.dispatched_at IS NULL
                           THEN j.message #>> '{waits_for,key}' END
                 FROM pgbeat.unfinished_jobs j
                WHERE j.schedule_id = s.id AND j.state <> 'running'
                ORDER BY j.created_at DESC LIMIT 20) AS w
           UNION ALL
           SELECT CASE WHEN f.started_at IS NULL THEN 'unstarted' ELSE 'ended' END, f.state,
                  f.finished_at, NULL, f.id, f.error FROM (
               SELECT j.state, j.started_at, j.finished_at, j.id, j.error
                 FROM pgbeat.ended_jobs j
                WHERE j.state = 'failed' AND j.schedule_id = s.id AND j.retried_by IS NULL
                  AND j.finished_at BETWEEN :since AND :soon
                ORDER BY j.finished_at DESC LIMIT :failures) AS f
           UNION ALL
           SELECT 'tick', t.outcome, t.decided_at, NULL, t.job_id, t.said FROM (
               SELECT t.outcome, t.decided_at, t.due_at, t.job_id,
                      coalesce(t.reason, t.error) AS said
                 FROM pgbeat.ticks t
                WHERE t.schedule_id = s.id AND t.due_at BETWEEN :since AND :soon
                ORDER BY t.due_at DESC LIMIT :most) AS t
           ) AS p)
SELECT id, source, kind, count(*), min(begin), max(until), bool_or(until IS NULL),
       (array_agg(job_id))[1], (array_agg(left(said, 300)) FILTER (WHERE said IS NOT NULL))[1],
       (SELECT j.task FROM pgbeat.jobs j
         WHERE source <> 'tick' AND (j.finished_at IS NULL OR j.finished_at >= :before)
           AND j.id = (array_agg(job_id) FILTER (WHERE said IS NOT NULL))[1])
  FROM pieces
 GROUP BY id, source, kind,
          CASE WHEN source = 'tick' AND kind = 'launched' THEN 0
          ELSE floor(extract(epoch FROM begin - :since) / :step) END
 ORDER BY source = 'ended', id, min(begin)
