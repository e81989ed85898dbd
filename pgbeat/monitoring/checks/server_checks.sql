-- By the catalogue: asking for a table by name needs USAGE on its schema.
-- name: may
SELECT has_schema_privilege(n.oid, 'USAGE'), EXISTS (
           SELECT FROM pg_class c WHERE c.relnamespace = n.oid
              AND c.relkind IN ('r', 'p') AND has_table_privilege(c.oid, 'INSERT, UPDATE, DELETE'))
  FROM pg_namespace n WHERE n.nspname = 'pgbeat'
