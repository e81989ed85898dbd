-- All that the schema and the broker's tables consist of, a row an object, in terms that are the
-- same in every database and on every version of Postgres. Partitions by time come and go: their
-- table stands for them, as it does for what other partitions inherit. The broker's tables may be
-- kombu's, adopted: their constraints are left out.
WITH mine AS (
    SELECT c.oid, c.relkind, format('%I.%I', 'pgbeat', c.relname) AS name, false AS is_broker,
           c.relispartition AS is_part
      FROM pg_class c
     WHERE c.relnamespace = to_regnamespace('pgbeat') AND c.relkind IN ('r', 'p', 'v')
       AND (NOT c.relispartition OR pg_get_expr(c.relpartbound, c.oid) LIKE 'FOR VALUES IN%')
    UNION ALL
    SELECT to_regclass(t.name), 'r', t.name, true, false
      FROM unnest(ARRAY['kombu_queue', 'kombu_message', 'kombu_queue_exchange',
                        'kombu_queue_binding', 'kombu_queue_consumer', 'kombu_message_dead'])
                AS t (name)
     WHERE to_regclass(t.name) IS NOT NULL
)
SELECT CASE m.relkind WHEN 'v' THEN 'view ' ELSE 'table ' END || m.name AS object, m.relkind::text AS definition FROM mine m
UNION ALL
SELECT format('column %s.%I', m.name, a.attname),
       concat_ws(' ', format_type(a.atttypid, a.atttypmod),
                 CASE WHEN a.attnotnull THEN 'not null' END, nullif(a.attidentity::text, ''))
  FROM mine m JOIN pg_attribute a ON a.attrelid = m.oid AND a.attnum > 0 AND NOT a.attisdropped
 WHERE NOT m.is_part
UNION ALL
SELECT format('constraint %s.%I', m.name, c.conname),
       -- One that was read from a dump has no parentheses around a BETWEEN that it begins with.
       regexp_replace(pg_get_constraintdef(c.oid),
                      '^CHECK \(\((\([^()]* >= [^()]*\) AND \([^()]* <= [^()]*\)) AND \(',
                      'CHECK (((\1) AND (')
  FROM mine m JOIN pg_constraint c ON c.conrelid = m.oid AND c.contype <> 'n'
 WHERE NOT m.is_broker AND c.conparentid = 0 AND (NOT m.is_part OR c.conislocal)
UNION ALL
SELECT format('index %s.%I', m.name, c.relname),
       concat_ws(' ', substr(pg_get_indexdef(i.indexrelid),
                             strpos(pg_get_indexdef(i.indexrelid), ' USING ') + 7),
                 CASE WHEN i.indisunique THEN 'unique' END,
                 CASE WHEN NOT i.indisvalid THEN 'invalid' END)
  FROM mine m JOIN pg_index i ON i.indrelid = m.oid JOIN pg_class c ON c.oid = i.indexrelid
 WHERE NOT (m.is_part AND c.relispartition)
   AND NOT EXISTS (SELECT FROM pg_constraint k WHERE k.conindid = i.indexrelid
                                                 AND k.contype IN ('p', 'u', 'x'))
UNION ALL
SELECT format('trigger %s.%I', m.name, t.tgname),
       concat_ws(' ', t.tgtype, t.tgenabled, t.tgoldtable, t.tgnewtable, t.tgdeferrable,
                 t.tgfoid::regproc::text, t.tgattr::text <> '',
                 substring(pg_get_triggerdef(t.oid) FROM 'WHEN .*$'),
                 (SELECT 'otherwise on partitions' FROM pg_partition_tree(m.oid) p
                    JOIN pg_trigger o ON o.tgrelid = p.relid AND o.tgname = t.tgname
                   WHERE p.level > 0 AND o.tgenabled <> t.tgenabled LIMIT 1))
  FROM mine m JOIN pg_trigger t ON t.tgrelid = m.oid AND NOT t.tgisinternal AND t.tgparentid = 0
UNION ALL
SELECT format('function pgbeat.%I(%s)', p.proname, pg_get_function_identity_arguments(p.oid)),
       concat_ws(' ', pg_get_function_result(p.oid), p.provolatile, p.prosecdef, p.procost,
                 p.prorows, p.proisstrict, array_to_string(p.proconfig, ' '),
                 pg_get_expr(p.proargdefaults, 0), p.prosrc, pg_get_function_sqlbody(p.oid),
                 CASE WHEN p.proname LIKE '%\_as\_owner'
                           AND has_function_privilege('public', p.oid, 'EXECUTE')
                      THEN 'for everybody' END)
  FROM pg_proc p WHERE p.pronamespace = to_regnamespace('pgbeat')
ORDER BY 1
