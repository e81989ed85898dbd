-- name: newest
SELECT {columns}
  FROM unnest(CAST(:ids AS uuid[])) AS j (id) CROSS JOIN LATERAL ({newest}) AS e
