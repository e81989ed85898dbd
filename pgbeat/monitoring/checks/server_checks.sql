-- By the catalogue: asking for a table by name needs USAGE on its schema.
-- name: missing
SELECT 'USAGE on schema pgbeat' AS what, false AS may_only_read FROM pg_namespace
 WHERE nspname = 'pgbeat' AND NOT has_schema_privilege(oid, 'USAGE')
UNION ALL
(SELECT string_agg(p.privilege, ', ' ORDER BY p.position) || ' on pgbeat.' || c.relname,
        bool_and(p.privilege <> 'SELECT')
   FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace,
        unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) WITH ORDINALITY
            AS p (privilege, position)
  WHERE n.nspname = 'pgbeat' AND c.relkind IN ('r', 'p')
    AND c.relname !~ '_(kept|to_come|[0-9]{8})$'  -- these are reached through their tables
    AND c.relname !~ '_gone_[0-9]+$'              -- and these are about to be dropped
    AND (c.relname <> 'migrations' OR p.privilege = 'SELECT')
    AND NOT has_table_privilege(c.oid, p.privilege)
  GROUP BY c.relname ORDER BY c.relname)
