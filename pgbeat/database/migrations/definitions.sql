-- Statements that make an object of the schema again, separated as an array: whatever can be made
-- without its rows. Objects are named as in contents.sql.
SELECT format('function pgbeat.%I(%s)', p.proname, pg_get_function_identity_arguments(p.oid))
           AS object,
       pg_get_functiondef(p.oid) || CASE WHEN p.proacl IS NULL OR EXISTS (
               SELECT FROM aclexplode(p.proacl) a WHERE a.grantee = 0) THEN '{}'::text[]
           ELSE ARRAY[format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', p.oid::regprocedure)]
       END AS statements
  FROM pg_proc p WHERE p.pronamespace = 'pgbeat'::regnamespace
UNION ALL
SELECT 'view ' || c.oid::regclass,
       ARRAY[format('DROP VIEW IF EXISTS %s', c.oid::regclass),
             format('CREATE VIEW %s AS %s', c.oid::regclass, pg_get_viewdef(c.oid))]
  FROM pg_class c WHERE c.relnamespace = 'pgbeat'::regnamespace AND c.relkind = 'v'
UNION ALL
SELECT format('constraint %s.%I', t.name, c.conname),
       ARRAY[format('ALTER TABLE %s DROP CONSTRAINT IF EXISTS %I', t.name, c.conname),
             format('ALTER TABLE %s ADD CONSTRAINT %I %s', t.name, c.conname,
                    pg_get_constraintdef(c.oid))]
  FROM pg_constraint c, LATERAL (SELECT c.conrelid::regclass::text AS name) t
 WHERE c.connamespace = 'pgbeat'::regnamespace AND c.contype <> 'n'
UNION ALL
SELECT format('index %s.%I', i.indrelid::regclass, c.relname),
       ARRAY[format('DROP INDEX IF EXISTS pgbeat.%I', c.relname),
             replace(pg_get_indexdef(c.oid), ' ON ONLY ', ' ON ')]  -- of partitions too
  FROM pg_class c JOIN pg_index i ON i.indexrelid = c.oid
 WHERE c.relnamespace = 'pgbeat'::regnamespace
UNION ALL
SELECT format('trigger %s.%I', t.tgrelid::regclass, t.tgname),
       ARRAY[format('DROP TRIGGER IF EXISTS %I ON %s', t.tgname, t.tgrelid::regclass),
             pg_get_triggerdef(t.oid)]
  FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
 WHERE c.relnamespace = 'pgbeat'::regnamespace AND NOT t.tgisinternal
