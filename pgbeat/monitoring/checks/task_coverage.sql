-- name: workers
SELECT w.name, w.tasks, w.queues FROM pgbeat.workers w
 WHERE coalesce(w.namespace, :namespace) = :namespace AND {alive}
 ORDER BY w.name
