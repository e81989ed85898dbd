-- name: find
SELECT {columns} FROM pgbeat.jobs j WHERE j.id = ANY (CAST(:ids AS uuid[]))
-- name: find_as_owner
SELECT {columns} FROM pgbeat.find_jobs_as_owner(CAST(:ids AS uuid[])) j
-- One row after the other, since the size of a large one takes long. Where `most` is NULL, all.
-- name: in_full
WITH RECURSIVE full_rows AS (
    SELECT 0 AS number, CAST(0 AS bigint) AS size, CAST(NULL AS uuid) AS id,
           CAST(NULL AS jsonb) AS args, CAST(NULL AS jsonb) AS kwargs,
           CAST(NULL AS jsonb) AS options, CAST(NULL AS jsonb) AS metadata
    UNION ALL
    SELECT r.number + 1, r.size + octet_length(concat(j.args, j.kwargs, j.options, j.metadata)),
           j.id, j.args, j.kwargs, j.options, j.metadata
      FROM full_rows r LEFT JOIN LATERAL (
           SELECT * FROM pgbeat.jobs WHERE id = (CAST(:ids AS uuid[]))[r.number + 1] LIMIT 1
           ) AS j ON true
     WHERE r.number < cardinality(CAST(:ids AS uuid[]))
       AND r.size <= coalesce(CAST(:most AS bigint), r.size))
SELECT id, args, kwargs, options, metadata FROM full_rows WHERE id IS NOT NULL
