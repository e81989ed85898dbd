-- name: guarded
UPDATE pgbeat.unfinished_jobs j SET {changes}
 WHERE id = :id AND {of_known} AND {also}
RETURNING {columns}
