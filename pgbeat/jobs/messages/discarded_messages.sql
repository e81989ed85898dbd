-- name: discarded
SELECT e.job_id, e.how, e.queue
  FROM pgbeat.message_ends e JOIN pgbeat.unfinished_jobs j ON j.id = e.job_id
 WHERE e.how <> 'accepted' AND j.state IN ('pending', 'scheduled')
   AND j.dispatched_at <= e.ended_at
   AND NOT EXISTS (SELECT FROM pgbeat.message_ends n
                    WHERE n.job_id = e.job_id AND n.id > e.id)

-- name: waiting
{discarded} AND j.namespace = :namespace ORDER BY e.id LIMIT 2000
-- name: among
{discarded} AND e.job_id = ANY (CAST(:jobs AS uuid[]))

-- Rows that the open transaction has written.
-- name: own
{discarded} AND e.xmin = pg_current_xact_id()::xid
       AND j.lane IS NULL AND j.group_id IS NULL AND j.message IS NULL
       AND NOT EXISTS (SELECT FROM pgbeat.dependencies d
                        WHERE d.parent_id = j.id AND d.outcome IS NULL)
