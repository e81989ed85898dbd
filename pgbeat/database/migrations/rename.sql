-- What is there of a table's old and new name, and the command that renames it.
SELECT t.old, to_regclass(:new) AS new,
       EXISTS (SELECT FROM pg_attribute WHERE attrelid = t.old AND attname = 'claimed_by')
           AS is_adopted,
       format('ALTER TABLE %s RENAME TO %I', t.old, CAST(:new AS text)) AS command
  FROM to_regclass(quote_ident(:old)) AS t (old)
