-- name: workers
SELECT w.name, w.tasks FROM pgbeat.workers w
 WHERE coalesce(w.namespace, :namespace) = :namespace AND {alive}
 ORDER BY w.name
