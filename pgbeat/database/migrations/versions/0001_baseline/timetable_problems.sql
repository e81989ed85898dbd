-- Each of these returns what is wrong with a timetable, in a sentence; NULL if nothing is.

-- Says what Python's parse_cron says (pgbeat/timetables/cron_fields.py).
CREATE FUNCTION pgbeat.cron_problem(expression text) RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
DECLARE
    example  CONSTANT text := 'a cron expression is "minute hour day month weekday", '
        'for example "*/15 * * * *" or "0 2 * * mon-fri"';
    labels   CONSTANT text[] := ARRAY['minute', 'hour', 'day of month', 'month', 'weekday',
        'second'];
    ranges   CONSTANT text[] := ARRAY['0-59', '0-23', '1-31', '1-12 or jan-dec',
        '0-7 or sun-sat', '0-59'];
    month    CONSTANT text := '(0*[1-9]|0*1[0-2]|jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)';
    weekday  CONSTANT text := '(0*[0-7]|sun|mon|tue|wed|thu|fri|sat)';
    numbers  CONSTANT text[] := ARRAY['0*[0-5]?[0-9]', '0*([0-9]|1[0-9]|2[0-3])',
        '0*([1-9]|[12][0-9]|3[01])', month, weekday, '0*[0-5]?[0-9]'];
    extras   CONSTANT text[] := ARRAY['', '', '|l', '', '|l0*[0-7]|' || weekday || '#[1-5]', ''];
    -- As in Python: what else may count as space differs between locales.
    spaces   CONSTANT text := E' \t\n\r\f\x0B';
    plain    CONSTANT text := lower(btrim(expression, spaces));
    fields   text[] := CASE WHEN plain = '' THEN '{}'
        ELSE regexp_split_to_array(plain, '[' || spaces || ']+') END;
    -- What may be meant as weekdays, and a digit that is a number.
    maybe    CONSTANT text := '[0-7](-[0-7])?(/[0-9]+)?';
    digit    CONSTANT text := '\y[0-7]\y';
    may_turn boolean := false;
    first    text;
    last     text;
    item     text;
    wrong    text;
    problem  text;
BEGIN
    IF plain ~ '^@(hourly|daily|midnight|weekly|monthly|yearly|annually)$' THEN
        RETURN NULL;
    ELSIF plain ~ '^@' THEN
        RETURN format('no such name; there are @hourly, @daily, @midnight, @weekly, @monthly, '
            '@yearly, @annually; %s', example);
    ELSIF cardinality(fields) NOT IN (5, 6) THEN
        RETURN format('it has %s fields, not 5 (or 6, with seconds last); %s', cardinality(fields),
            example);
    END IF;
    -- What is wrong with six, or may end in a weekday, is looked at again with the first one last:
    -- elsewhere seconds are first.
    IF cardinality(fields) = 6 THEN
        may_turn := CASE WHEN fields[6] = '*' THEN fields[1] <> '*'
            ELSE fields[1] !~ '^\*' AND fields[6] ~ ('^' || maybe || '(,' || maybe || ')*$') END;
    END IF;
    FOR attempt IN 1..2 LOOP
        wrong := NULL;
        <<each_field>>
        FOR i IN 1..cardinality(fields) LOOP
            CONTINUE WHEN fields[i] = '*' OR (i IN (3, 5) AND fields[i] = '?');
            FOREACH item IN ARRAY string_to_array(fields[i], ',') LOOP
                IF item !~ ('^((\*|' || numbers[i] || '(-' || numbers[i] || ')?)(/0*[1-9][0-9]*)?'
                        || extras[i] || ')$') THEN
                    wrong := format('%s %L is not valid: numbers are %s, with lists, ranges and '
                        'steps', labels[i], item, ranges[i]);
                    EXIT each_field;
                END IF;
            END LOOP;
        END LOOP;
        IF wrong IS NULL AND fields[5] ~ '[#l]' AND EXISTS (
            SELECT FROM unnest(string_to_array(fields[5], ',')) AS i (item)
             WHERE i.item !~ '[#l]')
        THEN
            wrong := format('weekday %L mixes weeks of the month (mon#1, l5) with every week',
                fields[5]);
        END IF;
        IF attempt = 1 THEN
            problem := wrong;
            EXIT WHEN cardinality(fields) = 5 OR (wrong IS NULL AND NOT may_turn);
            last := array_to_string(fields[1:5] || CASE WHEN fields[6] = '*' THEN '0-59'
                ELSE regexp_replace(fields[6], digit, '0\&', 'g') END, ' ');
            fields := fields[2:6] || fields[1];
        ELSIF wrong IS NULL THEN
            first := array_to_string(fields[1:5] || CASE WHEN fields[6] = '*' THEN '0-59'
                WHEN fields[6] <> '0' THEN regexp_replace(fields[6], digit, '0\&', 'g') END, ' ');
            problem := coalesce(problem || format('; seconds come last: %L', first),
                format('it is not evident whether seconds are first or, as here, last: '
                    'write %L if they are last, %L if they were first', last, first));
        END IF;
    END LOOP;
    RETURN problem || '; ' || example;
END
$$;

-- Says what Python's parse_solar says (pgbeat/timetables/solar.py).
CREATE FUNCTION pgbeat.solar_problem(solar text) RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
DECLARE
    example  CONSTANT text := 'a solar timetable is "event latitude longitude", '
        'for example "sunset 59.91 10.75"';
    events   CONSTANT text[] := ARRAY['dawn_astronomical', 'dawn_nautical', 'dawn_civil',
        'sunrise', 'solar_noon', 'sunset', 'dusk_civil', 'dusk_nautical', 'dusk_astronomical'];
    labels   CONSTANT text[] := ARRAY['', 'latitude', 'longitude'];
    limits   CONSTANT integer[] := ARRAY[0, 90, 180];
    spaces   CONSTANT text := E' \t\n\r\f\x0B';
    plain    CONSTANT text := lower(btrim(solar, spaces));
    parts    CONSTANT text[] := CASE WHEN plain = '' THEN '{}'
        ELSE regexp_split_to_array(plain, '[' || spaces || ']+') END;
BEGIN
    IF cardinality(parts) <> 3 THEN
        RETURN format('it has %s parts, not 3; %s', cardinality(parts), example);
    ELSIF parts[1] <> ALL (events) THEN
        RETURN format('event %L is not known; there are %s; %s', parts[1],
            array_to_string(events, ', '), example);
    END IF;
    FOR i IN 2..3 LOOP
        IF (CASE WHEN parts[i] ~ '^[+-]?[0-9]{1,3}(\.[0-9]{1,15})?$'
            THEN abs(parts[i]::numeric) > limits[i] ELSE true END)
        THEN
            RETURN format('%s %L is not a number of degrees from -%s to %s; %s', labels[i],
                parts[i], limits[i], limits[i], example);
        END IF;
    END LOOP;
    RETURN NULL;
END
$$;

-- Checks the shape of a recurrence rule. parse_rrule says the same in the same words, and more
-- (pgbeat/timetables/rrule_parts.py).
CREATE FUNCTION pgbeat.rrule_problem(rrule text) RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
DECLARE
    example     CONSTANT text := 'an rrule is KEY=VALUE;… as in RFC 5545, '
        'for example "FREQ=WEEKLY;BYDAY=MO,FR;BYHOUR=9"';
    frequencies CONSTANT text[] := ARRAY['SECONDLY', 'MINUTELY', 'HOURLY', 'DAILY', 'WEEKLY',
        'MONTHLY', 'YEARLY'];
    spaces      CONSTANT text := E' \t\n\r\f\x0B';
    frequency   text;
    line        text;
    part        text;
BEGIN
    IF rrule ~* 'tzid' THEN
        RETURN format('it names a zone (TZID); the zone is the schedule''s timezone; %s', example);
    END IF;
    FOREACH line IN ARRAY regexp_split_to_array(btrim(rrule, spaces), '[' || spaces || ']+') LOOP
        CONTINUE WHEN line = '';
        line := regexp_replace(line, '^rrule:', '', 'i');
        line := regexp_replace(line, '^dtstart:', 'DTSTART=', 'i');
        FOREACH part IN ARRAY regexp_split_to_array(regexp_replace(line, ';$', ''), ';') LOOP
            IF part !~ '^[A-Za-z-]+=[A-Za-z0-9+,-]+$' THEN
                RETURN format('part %L is not KEY=VALUE; %s', part, example);
            ELSIF frequency IS NULL AND part ~* '^freq=' THEN
                frequency := upper(split_part(part, '=', 2));
            END IF;
        END LOOP;
    END LOOP;
    IF frequency IS NULL THEN
        RETURN format('it has no FREQ; %s', example);
    ELSIF frequency <> ALL (frequencies) THEN
        RETURN format('FREQ %L is not known; there are %s; %s', frequency,
            array_to_string(frequencies, ', '), example);
    END IF;
    RETURN NULL;
END
$$;
