-- A worker's first report says where it runs.
-- name: workers
SELECT w.pid FROM pgbeat.workers w
 WHERE w.pid = ANY (%(pids)s) AND coalesce(w.host, %(host)s) = %(host)s AND {alive}
 ORDER BY 1

-- The only locks of that kind that a beat waits for are its namespace's.
-- name: beats
SELECT a.application_name, bool_or(l.granted)
  FROM pg_stat_activity a JOIN pg_locks l USING (pid)
 WHERE a.application_name = ANY (%(names)s) AND l.locktype = 'advisory' AND l.objsubid = 1
   AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
 GROUP BY 1
