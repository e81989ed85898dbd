-- One step into the index for each task that has run.
-- name: tasks
WITH RECURSIVE names (name) AS (
    (SELECT name FROM pgbeat.rollups WHERE namespace = :namespace AND kind = :kind
      ORDER BY name LIMIT 1)
    UNION ALL
    SELECT (SELECT r.name FROM pgbeat.rollups r
             WHERE r.namespace = :namespace AND r.kind = :kind AND r.name > names.name
             ORDER BY r.name LIMIT 1)
      FROM names WHERE names.name IS NOT NULL)
SELECT name FROM names WHERE name ILIKE :pattern
 ORDER BY name NOT ILIKE :beginning, length(name), name LIMIT :most
