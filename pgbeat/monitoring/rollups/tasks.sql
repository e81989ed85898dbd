-- name: range
namespace = :namespace AND kind = 'task'
   AND (step = 3600 AND at >= :since AND at < :middle OR step = 60 AND at >= :middle)
-- name: listing
WITH tracked AS (
    SELECT name, sum(completed) AS completed, sum(failed) AS failed,
           sum(cancelled) AS cancelled, sum(skipped) AS skipped
      FROM pgbeat.rollups WHERE {range} GROUP BY name),
untracked AS (
    SELECT task AS name, sum(number) AS number FROM pgbeat.untracked_tasks
     WHERE namespace = :namespace AND at >= :since GROUP BY task)
SELECT name, coalesce(t.completed, 0)::bigint AS completed, coalesce(t.failed, 0)::bigint,
       coalesce(t.cancelled, 0)::bigint, coalesce(t.skipped, 0)::bigint,
       coalesce(u.number, 0)::bigint AS untracked
  FROM tracked t FULL JOIN untracked u USING (name)
 WHERE name ILIKE :pattern
 ORDER BY coalesce(t.completed + t.failed + t.cancelled + t.skipped, 0)
          + coalesce(u.number, 0) DESC, name
 LIMIT :limit

-- name: histograms
SELECT name, completed, failed, cancelled, skipped, waiting, running, depth
  FROM pgbeat.rollups WHERE {range} AND name = ANY (CAST(:names AS text[]))
