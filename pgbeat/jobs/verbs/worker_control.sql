-- name: names
SELECT DISTINCT w.name FROM pgbeat.workers w
 WHERE coalesce(w.namespace, :namespace) = :namespace AND {alive}
