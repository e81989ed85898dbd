-- name: runs
SELECT {columns}, left(e.metadata ->> 'steps_out_of_order', 500) AS note
  FROM unnest(CAST(:ids AS uuid[])) AS j (id) CROSS JOIN LATERAL (
       SELECT * FROM pgbeat.executions WHERE job_id = j.id
        ORDER BY number DESC LIMIT :limit) AS e
 ORDER BY e.started_at DESC, e.number DESC LIMIT :limit

-- Of a job with more parents than these, the end of the last may not be known.
-- name: blocked
SELECT j.id, greatest(
       (SELECT max(p.finished_at) FROM (
               SELECT parent_id FROM pgbeat.dependencies
                WHERE job_id = j.id AND outcome IS NOT NULL ORDER BY id DESC LIMIT 200) AS d
               JOIN pgbeat.jobs p ON p.id = d.parent_id),
       (SELECT max(m.finished_at) FROM pgbeat.groups g JOIN pgbeat.jobs m ON m.group_id = g.id
         WHERE g.id = j.group_id AND g.mode = 'sequential'
           AND m.group_position < j.group_position),
       (SELECT g.finished_at FROM pgbeat.groups g WHERE g.id = j.callback_of)) AS until
  FROM unnest(CAST(:ids AS uuid[])) AS i (id) CROSS JOIN LATERAL (
       SELECT * FROM pgbeat.jobs WHERE id = i.id LIMIT 1) AS j
