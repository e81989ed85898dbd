-- A read takes AccessShareLock, which only a migration waits for.
-- name: find
SELECT a.pid, coalesce(a.application_name, ''),
       extract(epoch FROM clock_timestamp() - a.state_change)::float8,
       array_agg(DISTINCT c.relname ORDER BY c.relname)
  FROM pg_stat_activity a
       JOIN pg_locks l ON l.pid = a.pid AND l.granted AND l.locktype = 'relation'
            AND l.database = a.datid AND l.mode <> 'AccessShareLock'
       JOIN pg_class c ON c.oid = l.relation AND c.relkind IN ('r', 'p')
       JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE a.datname = current_database() AND a.state LIKE 'idle in transaction%'
   AND a.state_change < clock_timestamp() - make_interval(secs => :idle)
   AND (n.nspname = 'pgbeat' OR c.relname LIKE 'kombu%')
 GROUP BY a.pid, a.application_name, a.state_change
 ORDER BY a.state_change
