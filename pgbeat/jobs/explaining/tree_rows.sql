-- From a job to the one at the top: of those that it retries, or that submitted it, and so on.
-- name: up
WITH RECURSIVE up AS (
    SELECT j.*, 1 AS number FROM (SELECT * FROM pgbeat.jobs WHERE id = :id LIMIT 1) AS j
    UNION ALL
    SELECT n.*, u.number + 1 FROM up u CROSS JOIN LATERAL (
           SELECT * FROM pgbeat.jobs WHERE id = coalesce(u.root_id, u.retry_of)
              AND namespace = u.namespace LIMIT 1) AS n
     WHERE u.number < 50)
SELECT {columns} FROM up j ORDER BY number DESC

-- A job that follows from others ends after they were made: older partitions are left out.
-- name: down
(SELECT {columns} FROM pgbeat.{table} j WHERE {key} AND namespace = :namespace
 {more} LIMIT :limit)
