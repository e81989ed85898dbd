-- name: of_database
locktype = 'advisory'
   AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
-- name: held
SELECT CAST(objid AS bigint) AS id FROM pg_locks
 WHERE {of_database} AND objsubid = 2 AND granted AND classid = {kind}
-- name: of_leader
{of_database} AND objsubid = 1
   AND (CAST(classid AS bigint) << 32) | CAST(objid AS bigint) = :leader_key
-- name: holders
SELECT a.pid, l.granted, a.application_name, host(a.client_addr), a.backend_start, a.query_start
  FROM pg_locks l JOIN pg_stat_activity a USING (pid)
 WHERE {of_leader} ORDER BY l.granted DESC, a.backend_start
