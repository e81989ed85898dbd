-- Each sequence of an id, and the command that advances it if it is behind its column.
SELECT s.name, format(
           'SELECT setval(%1$L, max(%2$I)) FROM %3$s HAVING max(%2$I) > '
           '(SELECT last_value - CASE WHEN is_called THEN 0 ELSE 1 END FROM %1$s)',
           s.name, s.of_column, s.of_table) AS command
  FROM (SELECT pg_get_serial_sequence(c.oid::regclass::text, a.attname), a.attname, c.oid::regclass
          FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attidentity <> ''
         WHERE c.relnamespace = CAST('pgbeat' AS regnamespace) AND NOT c.relispartition
         UNION ALL
        VALUES ('message_id_sequence', 'id', to_regclass('kombu_message')),
               ('queue_id_sequence', 'id', to_regclass('kombu_queue')))
       AS s (name, of_column, of_table)
       JOIN pg_class c ON c.oid = to_regclass(s.name) AND pg_has_role(c.relowner, 'USAGE')
 WHERE s.of_table IS NOT NULL
 ORDER BY 1
