-- What living workers report: the roles as which statements may run, if there are some. One that has not
-- reported yet is silent.
-- name: allowed
SELECT w.versions ->> 'sql_roles' AS roles, w.versions IS NULL AS is_silent
  FROM pgbeat.workers w
 WHERE coalesce(w.namespace, :namespace) = :namespace AND {alive}

-- Schedules that launch statements, as their templates complete them; and templates of statements that
-- name a role.
-- name: used
SELECT 'schedule' AS noun, s.name, coalesce(
           s.kwargs -> 'role', t.kwargs -> 'role',
           CASE WHEN coalesce(s.args, '[]') = '[]' THEN t.args ELSE s.args END -> 1) #>> '{}' AS role
  FROM pgbeat.schedules s
       LEFT JOIN pgbeat.templates t
              ON t.namespace = s.namespace AND t.name = s.job_policy ->> 'template'
 WHERE s.namespace = :namespace AND s.enabled AND s.paused_at IS NULL AND s.task = :task
UNION ALL
SELECT 'template', t.name, coalesce(t.kwargs -> 'role', t.args -> 1) #>> '{}'
  FROM pgbeat.templates t
 WHERE t.namespace = :namespace AND t.task = :task
   AND coalesce(t.kwargs -> 'role', t.args -> 1) IS NOT NULL
 ORDER BY 1, 2
