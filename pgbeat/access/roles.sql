-- name: grantee
CAST(:role AS text)

-- The tables, and what the broker's are called here: those that a profile says something about. Partitions
-- by time are reached through their tables.
-- name: tables
SELECT format('%I.%I', 'pgbeat', c.relname) AS name, c.oid, c.relowner,
       CASE c.relkind WHEN 'v' THEN substring(CAST(:tables AS text) FROM '^(SELECT)?')
            ELSE coalesce(CAST(:others AS json) ->> c.relname, CAST(:tables AS text)) END AS rights
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = 'pgbeat' AND c.relkind IN ('r', 'p', 'v')
   AND (NOT c.relispartition OR pg_get_expr(c.relpartbound, c.oid) LIKE 'FOR VALUES IN%')
   AND c.relname !~ '_gone_[0-9]+$'  -- these are about to be dropped
UNION ALL
SELECT format('%I.%I', n.nspname, c.relname), c.oid, c.relowner,
       coalesce(CAST(:broker AS json) ->> c.relname,
                CASE c.relkind WHEN 'S' THEN CAST(:broker AS json) ->> 'sequences' END, '')
  FROM unnest(ARRAY['kombu_queue', 'kombu_message', 'kombu_message_dead', 'kombu_queue_exchange',
                    'kombu_queue_binding', 'kombu_queue_consumer', 'queue_id_sequence',
                    'message_id_sequence']) AS t (name)
       JOIN pg_class c ON c.oid = to_regclass(t.name) JOIN pg_namespace n ON n.oid = c.relnamespace

-- name: role
SELECT r.rolsuper,
       (SELECT string_agg(DISTINCT pg_get_userbyid(t.relowner), ', ') FROM ({tables}) AS t
         WHERE pg_has_role(r.oid, t.relowner, 'MEMBER')) AS owned_by,
       (SELECT string_agg(DISTINCT pg_get_userbyid(t.relowner), ', ') FROM ({tables}) AS t
         WHERE NOT pg_has_role(t.relowner, 'USAGE')) AS owned_by_others,
       EXISTS (SELECT FROM ({tables}) AS t WHERE t.name NOT LIKE 'pgbeat.%') AS has_broker
  FROM pg_roles r WHERE r.rolname = {grantee}

-- First everything is taken away. Column privileges go with those of the table.
-- name: statements
WITH t AS MATERIALIZED ({tables}),
broker AS (SELECT DISTINCT c.relnamespace::regnamespace AS schema FROM t JOIN pg_class c USING (oid)
            WHERE t.name NOT LIKE 'pgbeat.%'),
owner AS (SELECT quote_ident(pg_get_userbyid(nspowner)) AS name FROM pg_namespace
           WHERE nspname = 'pgbeat'),
statements (place, statement) AS (
    SELECT 1, format('REVOKE ALL ON SCHEMA pgbeat FROM %I', {grantee})
    UNION ALL
    SELECT 2, format('REVOKE ALL ON ALL %s IN SCHEMA pgbeat FROM %I', k.kind, {grantee})
      FROM unnest(ARRAY['TABLES', 'SEQUENCES', 'FUNCTIONS']) AS k (kind)
    UNION ALL
    SELECT 3, format('REVOKE ALL ON %s %s FROM %I',
                     CASE c.relkind WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END, t.name, {grantee})
      FROM t JOIN pg_class c USING (oid) WHERE t.name NOT LIKE 'pgbeat.%'
    UNION ALL
    SELECT 4, format('ALTER DEFAULT PRIVILEGES FOR ROLE %s IN SCHEMA pgbeat REVOKE ALL ON TABLES '
                     'FROM %I', owner.name, {grantee}) FROM owner
    UNION ALL
    SELECT 5, format('GRANT USAGE ON SCHEMA %s TO %I', s.schema, {grantee})
      FROM (SELECT 'pgbeat' AS schema UNION SELECT schema::text FROM broker
             WHERE CAST(:broker AS text) <> '{}') AS s
    UNION ALL
    SELECT 6, format('GRANT %s ON %s %s TO %I', t.rights, k.kind,
                     string_agg(t.name, ', ' ORDER BY t.name), {grantee})
      FROM t JOIN pg_class c USING (oid), LATERAL (
           SELECT CASE c.relkind WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END AS kind) AS k
     WHERE t.rights <> '' GROUP BY t.rights, k.kind
    UNION ALL
    SELECT 7, format('GRANT EXECUTE ON FUNCTION %s TO %I', p.oid::regprocedure, {grantee})
      FROM pg_proc p WHERE p.pronamespace = 'pgbeat'::regnamespace
       AND p.proname LIKE '%\_as\_owner' AND CAST(:submits AS boolean)
    UNION ALL
    SELECT 8, format('ALTER DEFAULT PRIVILEGES FOR ROLE %s IN SCHEMA pgbeat GRANT %s ON TABLES TO %I',
                     owner.name, CAST(:future AS text), {grantee}) FROM owner WHERE CAST(:future AS text) <> '')
SELECT statement FROM statements ORDER BY place, statement

-- What the role has, for a comparison.
-- name: granted
SELECT coalesce(array_agg(g.what ORDER BY g.what), '{}') FROM (
    SELECT format('%s %s', a.privilege_type, c.oid::regclass) AS what
      FROM pg_class c, aclexplode(c.relacl) AS a WHERE a.grantee = to_regrole(quote_ident({grantee}))
    UNION ALL
    SELECT format('%s %s.%s', x.privilege_type, a.attrelid::regclass, a.attname)
      FROM pg_attribute a, aclexplode(a.attacl) AS x
     WHERE x.grantee = to_regrole(quote_ident({grantee}))
    UNION ALL
    SELECT format('%s %s', a.privilege_type, p.oid::regprocedure)
      FROM pg_proc p, aclexplode(p.proacl) AS a WHERE a.grantee = to_regrole(quote_ident({grantee}))
    UNION ALL
    SELECT format('%s schema %s', a.privilege_type, n.nspname)
      FROM pg_namespace n, aclexplode(n.nspacl) AS a WHERE a.grantee = to_regrole(quote_ident({grantee}))
    UNION ALL
    SELECT format('%s tables to come', a.privilege_type)
      FROM pg_default_acl d, aclexplode(d.defaclacl) AS a
     WHERE a.grantee = to_regrole(quote_ident({grantee}))
       AND d.defaclnamespace = 'pgbeat'::regnamespace) AS g

-- Rights on whole tables, by whatever way, that differ from the profile's: by PUBLIC, or by another role.
-- name: differing
SELECT p.privilege, t.name, p.privilege = ANY (w.wanted) AS is_lacking
  FROM ({tables}) AS t JOIN pg_class c USING (oid),
       LATERAL (SELECT string_to_array(regexp_replace(t.rights, '[A-Z]+ \([^)]*\)', '', 'g'), ', ')
                    AS wanted) AS w,
       unnest(CASE c.relkind WHEN 'S' THEN ARRAY['USAGE']
              ELSE ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE'] END) WITH ORDINALITY AS p (privilege, position)
 WHERE (p.privilege = ANY (w.wanted))
       <> CASE c.relkind WHEN 'S' THEN has_sequence_privilege({grantee}, t.oid, p.privilege)
          ELSE has_table_privilege({grantee}, t.oid, p.privilege) END
 ORDER BY t.name, p.position
