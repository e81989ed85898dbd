-- A cron timetable may have several lines.

ALTER FUNCTION pgbeat.cron_problem(text) RENAME TO cron_line_problem;

-- Says what Python's check_cron says (pgbeat/timetables/cron_fields.py).
CREATE FUNCTION pgbeat.cron_problem(expression text) RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
DECLARE
    most    CONSTANT integer := 20;
    lines   text[];
    problem text;
BEGIN
    SELECT array_agg(line ORDER BY number) INTO lines
      FROM (SELECT btrim(line, E' \t\n\r\f\x0B') AS line, number
              FROM unnest(string_to_array(expression, E'\n')) WITH ORDINALITY AS u (line, number)
           ) AS trimmed
     WHERE line <> '';
    IF cardinality(lines) > most THEN
        RETURN format('it has %s lines, and may have %s; a cron expression is "minute hour day '
            'month weekday", for example "*/15 * * * *" or "0 2 * * mon-fri"', cardinality(lines),
            most);
    ELSIF lines IS NULL OR cardinality(lines) = 1 THEN
        RETURN pgbeat.cron_line_problem(coalesce(lines[1], ''));
    END IF;
    FOR i IN 1..cardinality(lines) LOOP
        problem := pgbeat.cron_line_problem(lines[i]);
        IF problem IS NOT NULL THEN
            RETURN format('line %s: %s', i, problem);
        END IF;
    END LOOP;
    RETURN NULL;
END
$$;
