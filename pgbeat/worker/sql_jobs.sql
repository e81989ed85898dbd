-- What may keep a login from running other people's statements: that it may become a role which is
-- not allowed ($1), or one that could change what pgbeat does, or do anything.
-- name: too_much
SELECT r.rolname
  FROM pg_catalog.pg_roles r
 WHERE pg_catalog.pg_has_role(session_user, r.oid, 'MEMBER')
   AND (r.rolsuper OR r.rolcreaterole OR r.rolreplication
        OR r.rolname IN ('pg_execute_server_program', 'pg_read_server_files',
                         'pg_write_server_files')
        OR (r.rolname <> session_user
            AND NOT EXISTS (SELECT FROM pg_catalog.pg_roles a
                             WHERE a.rolname = ANY (%s)
                               AND pg_catalog.pg_has_role(a.oid, r.oid, 'MEMBER')))
        OR EXISTS (SELECT FROM pg_catalog.pg_class c
                     JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
                    WHERE n.nspname = 'pgbeat' AND c.relkind IN ('r', 'p')
                      AND pg_catalog.has_table_privilege(r.oid, c.oid, 'INSERT, UPDATE, DELETE')))
 ORDER BY 1 LIMIT 1

-- A job, with the first of the jobs that it is a retry of, and what these and their other retries
-- have kept.
-- name: job
SELECT j.task, j.args, j.kwargs, j.state, j.checkpoint,
       j.cancel_requested_at IS NOT NULL AS is_cancelled, c.first, c.kept
  FROM pgbeat.jobs j
       CROSS JOIN LATERAL (
           SELECT (array_agg(o.id ORDER BY o.created_at, o.id))[1] AS first,
                  coalesce(jsonb_agg(o.checkpoint) FILTER (WHERE o.checkpoint IS NOT NULL), '[]') AS kept
             FROM pgbeat.jobs o
            WHERE o.id = j.id OR o.id IN (SELECT pgbeat.retry_chain(j.id))) AS c
 WHERE j.id = CAST(:id AS uuid)
