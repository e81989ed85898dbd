-- By the catalogue: asking for a table by name needs USAGE on its schema.
-- name: may
SELECT has_schema_privilege(n.oid, 'USAGE'), EXISTS (
           SELECT FROM pg_class c WHERE c.relnamespace = n.oid
              AND c.relkind IN ('r', 'p') AND has_table_privilege(c.oid, 'INSERT, UPDATE, DELETE'))
  FROM pg_namespace n WHERE n.nspname = 'pgbeat'

-- Tables that look empty to the role, without an error. Where there is a policy, the owner has chosen what it
-- sees. Partitions by time are reached through their tables, whose own policies hold then.
-- name: hidden
SELECT c.oid::regclass::text FROM pg_class c
 WHERE c.relkind IN ('r', 'p') AND row_security_active(c.oid)
   AND (c.relnamespace::regnamespace::text = 'pgbeat'
        OR c.relname LIKE 'kombu%' AND pg_table_is_visible(c.oid))
   AND (NOT c.relispartition OR pg_get_expr(c.relpartbound, c.oid) LIKE 'FOR VALUES IN%')
   AND NOT EXISTS (SELECT FROM pg_policy p WHERE p.polrelid = c.oid AND p.polpermissive)
 ORDER BY 1
