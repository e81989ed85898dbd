SELECT set_config('TimeZone', 'UTC', true), set_config('quote_all_identifiers', 'off', true),
       set_config('extra_float_digits', '1', true),
       set_config('search_path', coalesce(string_agg(quote_ident(s.name), ', ' ORDER BY s.n), ''), true)
  FROM unnest(current_schemas(false)) WITH ORDINALITY AS s (name, n) WHERE s.name <> 'pgbeat'
