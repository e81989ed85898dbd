-- A schedule may come after several others: a name on each line of `after`.
ALTER TABLE pgbeat.schedules
    ADD COLUMN after_match text NOT NULL DEFAULT 'all',
    ADD COLUMN after_done text[] NOT NULL DEFAULT '{}',   -- ended since it was decided last
    ADD CONSTRAINT schedules_after_match CHECK (after_match IN ('all', 'any'));

CREATE INDEX schedules_after_several ON pgbeat.schedules
    USING gin (string_to_array(after, E'\n')) WHERE after LIKE E'%\n%';
CREATE INDEX schedules_with_several ON pgbeat.schedules (id) WHERE after LIKE E'%\n%';

-- Where no schedule has several, the end of a job looks no further: a look at the index of names
-- takes as long as all else here.
CREATE FUNCTION pgbeat.followers(schedule_id bigint) RETURNS SETOF bigint
LANGUAGE sql STABLE AS $$
    SELECT d.id FROM pgbeat.schedules s
      JOIN pgbeat.schedules d ON d.namespace = s.namespace AND d.after = s.name
     WHERE s.id = schedule_id
    UNION ALL
    SELECT d.id FROM pgbeat.schedules s
      JOIN pgbeat.schedules d ON d.namespace = s.namespace AND d.after LIKE E'%\n%'
           AND string_to_array(d.after, E'\n') @> ARRAY[s.name]
     WHERE s.id = schedule_id
       AND EXISTS (SELECT FROM pgbeat.schedules WHERE after LIKE E'%\n%')
$$;

-- Whether the end of a job of the schedule of that name makes it due.
CREATE FUNCTION pgbeat.is_due_after(d pgbeat.schedules, name text) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT d.after_match = 'any' OR d.after_done || name @> string_to_array(d.after, E'\n')
$$;

-- Before check_schedule, which knows circles of single names only.
CREATE FUNCTION pgbeat.check_after() RETURNS trigger
LANGUAGE plpgsql AS $$
DECLARE
    most  CONSTANT integer := 20;
    names text[];
    paths jsonb;   -- how each schedule is reached
    found jsonb;
BEGIN
    IF NEW.after_match NOT IN ('all', 'any') THEN
        PERFORM pgbeat.refuse_schedule(NEW.name, 'after_match', 'unknown',
            format('after_match is %L; it must be all or any', NEW.after_match));
    END IF;
    IF NEW.after LIKE E'%\n%' THEN
        SELECT string_agg(line, E'\n' ORDER BY number) INTO NEW.after
          FROM (SELECT btrim(line, E' \t\r\f\x0B') AS line, min(number) AS number
                  FROM unnest(string_to_array(NEW.after, E'\n')) WITH ORDINALITY AS u (line, number)
                 GROUP BY 1) AS trimmed
         WHERE line <> '';
    END IF;
    names := string_to_array(NEW.after, E'\n');
    IF cardinality(names) > most THEN
        PERFORM pgbeat.refuse_schedule(NEW.name, 'after', 'out_of_range',
            format('after has %s names, and may have %s', cardinality(names), most));
    ELSIF num_nonnulls(NEW.cron, NEW.every, NEW.once_at, NEW.solar, NEW.rrule) > 0  -- refused later
        OR TG_OP = 'UPDATE' AND (NEW.after, NEW.name, NEW.namespace)
            IS NOT DISTINCT FROM (OLD.after, OLD.name, OLD.namespace)
    THEN
        RETURN NEW;
    END IF;
    -- Two that close a circle at the same time come one after the other.
    PERFORM pg_advisory_xact_lock(hashtextextended('pgbeat.after', 0));
    SELECT jsonb_object_agg(n, quote_ident(NEW.name) || ' after ' || quote_ident(n)) INTO paths
      FROM unnest(names) AS n;
    found := paths;
    WHILE found IS NOT NULL AND NOT paths ? NEW.name LOOP
        SELECT jsonb_object_agg(n, (found ->> s.name) || ' after ' || quote_ident(n)) INTO found
          FROM pgbeat.schedules s CROSS JOIN unnest(string_to_array(s.after, E'\n')) AS n
         WHERE s.namespace = NEW.namespace AND s.id <> NEW.id AND s.after IS NOT NULL
           AND s.name = ANY (ARRAY(SELECT jsonb_object_keys(found))) AND NOT paths ? n;
        paths := paths || coalesce(found, '{}');
    END LOOP;
    IF paths ? NEW.name THEN
        PERFORM pgbeat.refuse_schedule(NEW.name, 'after', 'circle',
            format('after goes in a circle: %s', paths ->> NEW.name));
    END IF;
    RETURN NEW;
END
$$;

CREATE TRIGGER check_after
    BEFORE INSERT OR UPDATE OF after, after_match, name, namespace ON pgbeat.schedules
    FOR EACH ROW WHEN (NEW.after IS NOT NULL OR NEW.after_match NOT IN ('all', 'any'))
    EXECUTE FUNCTION pgbeat.check_after();

-- A decision uses up the ends that made it due. So does whatever else sets the count back, such as
-- check_schedule for a statement that names other columns: this comes after it, and names none.
CREATE FUNCTION pgbeat.forget_upstreams() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    NEW.after_done := '{}';
    RETURN NEW;
END
$$;

CREATE TRIGGER forget_upstreams BEFORE UPDATE ON pgbeat.schedules FOR EACH ROW
    WHEN (NEW.upstream_ended < OLD.upstream_ended AND OLD.after_done <> '{}')
    EXECUTE FUNCTION pgbeat.forget_upstreams();
