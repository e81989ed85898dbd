-- Lanes whose keys take turns: all jobs with one value of `lanes.fair_by` share a key.
--
-- The key is stored in the job's row, and stands before the position in the index of those that
-- wait. So the next key, and its first job, are found by one step into the index each, however many
-- jobs wait. Jobs of other lanes have no key ('').

-- Returns the key of a job in a lane that is fair by `fair_by`; jobs that lack it share one.
CREATE FUNCTION pgbeat.fair_key(fair_by text, job pgbeat.unfinished_jobs) RETURNS text
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    name  CONSTANT text := CASE WHEN starts_with(fair_by, 'kwargs.') THEN substr(fair_by, 8)
                                WHEN starts_with(fair_by, 'tag:') THEN 'tag' ELSE fair_by END;
    value CONSTANT text := CASE
        WHEN fair_by = 'task' THEN job.task
        WHEN fair_by = 'created_by' THEN job.created_by
        WHEN starts_with(fair_by, 'kwargs.') THEN job.kwargs ->> name
        ELSE (SELECT min(t COLLATE "C") FROM unnest(job.tags) AS t
               WHERE starts_with(t, substr(fair_by, 5))) END;
BEGIN
    RETURN CASE WHEN fair_by IS NULL THEN ''
                WHEN value IS NULL THEN 'no ' || name
                WHEN length(value) <= 200 THEN name || '=' || value
                ELSE name || '=' || left(value, 160) || '…' || md5(value) END;
END
$$;

-- Gives a job its key, and a place at the end, as it comes into its lane, or changes there.
CREATE FUNCTION pgbeat.set_fair_key() RETURNS trigger
LANGUAGE plpgsql AS $$
DECLARE
    own_by text;
BEGIN
    NEW.position := coalesce(NEW.position, extract(epoch FROM clock_timestamp()));
    SELECT l.fair_by INTO own_by FROM pgbeat.lanes l
     WHERE l.namespace = NEW.namespace AND l.name = NEW.lane;
    IF own_by IS NOT NULL OR NEW.fair_key <> '' THEN
        NEW.fair_key := pgbeat.fair_key(own_by, NEW);
    END IF;
    RETURN NEW;
END
$$;

CREATE TRIGGER set_fair_key BEFORE INSERT ON pgbeat.unfinished_jobs FOR EACH ROW
    WHEN (NEW.lane IS NOT NULL) EXECUTE FUNCTION pgbeat.set_fair_key();
CREATE TRIGGER change_fair_key BEFORE UPDATE OF lane, task, kwargs, tags, created_by
    ON pgbeat.unfinished_jobs FOR EACH ROW
    WHEN (NEW.lane IS NOT NULL OR NEW.fair_key <> '') EXECUTE FUNCTION pgbeat.set_fair_key();

-- Gives the unfinished jobs of a lane their keys as its setting changes. Those that are locked get
-- theirs at their turn.
CREATE FUNCTION pgbeat.set_fair_keys() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE pgbeat.unfinished_jobs j SET fair_key = pgbeat.fair_key(NEW.fair_by, j)
     WHERE j.id = ANY (ARRAY(
               SELECT w.id FROM pgbeat.unfinished_jobs w
                WHERE w.namespace = NEW.namespace AND w.lane = NEW.name
                  FOR UPDATE SKIP LOCKED));
    NEW.turns := '{}';
    RETURN NEW;
END
$$;

CREATE TRIGGER set_fair_keys BEFORE UPDATE OF fair_by ON pgbeat.lanes FOR EACH ROW
    WHEN (OLD.fair_by IS DISTINCT FROM NEW.fair_by) EXECUTE FUNCTION pgbeat.set_fair_keys();
CREATE TRIGGER set_first_fair_keys BEFORE INSERT ON pgbeat.lanes FOR EACH ROW
    WHEN (NEW.fair_by IS NOT NULL) EXECUTE FUNCTION pgbeat.set_fair_keys();

-- Returns the line of a fair lane in its order, up to `most` jobs without those that are `left_out`:
-- by priority, and within one priority a job of each key in turn, from the key after the one that
-- was served last. A key comes no more often than it has free slots if the line `is_limited`. Whatever
-- the statistics say of a table that grew within a minute, each step goes through the index that has
-- the line's order: no other one does without a sort.
--
-- With keys that `gained` room or jobs, the walk through a priority ends at the hundredth key without
-- a free slot, and these follow: otherwise each end of a job would read all keys of the lane. The next
-- walk must begin where this one ended: a row with that key, and no id, comes before these.
CREATE FUNCTION pgbeat.fair_line(
    own pgbeat.lanes, most integer, is_limited boolean, left_out uuid[] DEFAULT '{}',
    gained text[] DEFAULT NULL)
RETURNS TABLE (id uuid, priority smallint, fair_key text)
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
#variable_conflict use_variable
DECLARE
    limits CONSTANT boolean := is_limited AND own.max_per_key IS NOT NULL;
    used   jsonb := '{}';      -- slots in use, by key; as far as they are known
    seen   jsonb;              -- of each key the last job that was returned, by priority
    level  smallint;
    key    text;
    head  record;
    given  integer := 0;
    before integer;            -- how many were given when the round began
    wraps  boolean;            -- this round has begun at the first key
    skipped integer;            -- how many keys without a free slot the walk has met
    stop   text;               -- the key at which the walk ended early …
    place  integer;            -- … and then the place in `gained`
    slots  integer;
BEGIN
    IF limits AND gained IS NULL THEN
        SELECT coalesce(jsonb_object_agg(h.fair_key, h.number), '{}') INTO used FROM (
            SELECT j.fair_key, count(*) AS number FROM pgbeat.unfinished_jobs j
             WHERE j.namespace = own.namespace AND j.lane = own.name
               AND j.dispatched_at IS NOT NULL AND j.state IN ('pending', 'scheduled', 'running')
             GROUP BY j.fair_key) AS h;
    END IF;
    WHILE given < most LOOP
        SELECT j.priority INTO level FROM pgbeat.unfinished_jobs j
         WHERE j.namespace = own.namespace AND j.lane = own.name AND j.dispatched_at IS NULL
           AND j.state = 'pending' AND NOT j.is_blocked
           AND j.priority < coalesce(level::integer, 32768)
         ORDER BY j.priority DESC LIMIT 1;
        EXIT WHEN NOT FOUND;
        key := own.turns ->> level::text;
        wraps := key IS NULL;
        before := given;
        seen := '{}';
        skipped := 0;
        stop := NULL;
        place := 0;
        WHILE given < most LOOP
            IF stop IS NOT NULL THEN
                place := place + 1;
                IF place > cardinality(gained) THEN
                    EXIT WHEN given = before;
                    before := given;
                    place := 1;
                END IF;
                key := gained[place];
            ELSE
                IF key IS NULL THEN
                    SELECT j.fair_key INTO head FROM pgbeat.unfinished_jobs j
                     WHERE j.namespace = own.namespace AND j.lane = own.name
                       AND j.dispatched_at IS NULL AND j.state = 'pending' AND NOT j.is_blocked
                       AND j.priority = level
                     ORDER BY j.fair_key LIMIT 1;
                ELSE
                    SELECT j.fair_key INTO head FROM pgbeat.unfinished_jobs j
                     WHERE j.namespace = own.namespace AND j.lane = own.name
                       AND j.dispatched_at IS NULL AND j.state = 'pending' AND NOT j.is_blocked
                       AND j.priority = level AND j.fair_key > key
                     ORDER BY j.fair_key LIMIT 1;
                END IF;
                IF NOT FOUND THEN
                    EXIT WHEN wraps AND given = before;  -- a whole round without a job
                    key := NULL;
                    wraps := true;
                    before := given;
                    CONTINUE;
                END IF;
                key := head.fair_key;
            END IF;
            slots := coalesce((used ->> key)::integer, 0);
            IF limits THEN
                IF gained IS NOT NULL AND NOT used ? key THEN
                    SELECT count(*) INTO slots FROM pgbeat.unfinished_jobs j
                     WHERE j.namespace = own.namespace AND j.lane = own.name
                       AND j.fair_key = key AND j.dispatched_at IS NOT NULL
                       AND j.state IN ('pending', 'scheduled', 'running');
                END IF;
                IF slots >= own.max_per_key THEN
                    skipped := skipped + 1;
                    IF stop IS NULL AND gained IS NOT NULL AND skipped = 100 THEN
                        stop := key;
                        before := given;
                        id := NULL;
                        priority := level;
                        fair_key := stop;
                        RETURN NEXT;
                    END IF;
                    CONTINUE;
                END IF;
            END IF;
            SELECT j.id, j.position, j.created_at INTO head FROM pgbeat.unfinished_jobs j
             WHERE j.namespace = own.namespace AND j.lane = own.name AND j.dispatched_at IS NULL
               AND j.state = 'pending' AND NOT j.is_blocked
               AND j.priority = level AND j.fair_key = key AND j.id <> ALL (left_out)
               AND (NOT seen ? key OR (j.position, j.created_at, j.id) > (
                   (seen -> key ->> 0)::numeric, (seen -> key ->> 1)::timestamptz,
                   (seen -> key ->> 2)::uuid))
             ORDER BY j.position, j.created_at, j.id LIMIT 1;
            CONTINUE WHEN NOT FOUND;
            seen := seen || jsonb_build_object(key,
                jsonb_build_array(head.position, head.created_at, head.id));
            used := used || jsonb_build_object(key, slots + 1);
            given := given + 1;
            id := head.id;
            priority := level;
            fair_key := key;
            RETURN NEXT;
        END LOOP;
    END LOOP;
END
$$;

-- Corrects the keys of these jobs of a fair lane, and of up to 5,000 that wait with the same wrong
-- keys; returns how many it corrected. They came from a transaction that began before the lane's
-- setting changed. The lane must be locked.
CREATE FUNCTION pgbeat.correct_keys(own pgbeat.lanes, ids uuid[]) RETURNS integer
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    wrong  text[];
    number integer := 0;
BEGIN
    wrong := ARRAY(SELECT DISTINCT j.fair_key FROM pgbeat.unfinished_jobs j
                    WHERE j.id = ANY (ids) AND j.fair_key <> pgbeat.fair_key(own.fair_by, j));
    IF wrong <> '{}' THEN
        UPDATE pgbeat.unfinished_jobs j SET fair_key = pgbeat.fair_key(own.fair_by, j)
         WHERE j.id = ANY (ARRAY(
                   SELECT w.id FROM pgbeat.unfinished_jobs w
                    WHERE w.namespace = own.namespace AND w.lane = own.name
                      AND w.dispatched_at IS NULL AND w.state = 'pending'
                      AND NOT w.is_blocked AND w.fair_key = ANY (wrong)
                      AND w.fair_key <> pgbeat.fair_key(own.fair_by, w)
                    LIMIT 5000 FOR UPDATE SKIP LOCKED));
        GET DIAGNOSTICS number = ROW_COUNT;
    END IF;
    RETURN number;
END
$$;

-- Notes which keys were served last, in the order of `ids`, and the keys at which walks ended early.
CREATE FUNCTION pgbeat.note_turns(own pgbeat.lanes, ids uuid[], stops jsonb) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off AS $$
BEGIN
    UPDATE pgbeat.lanes l SET turns = l.turns || n.turns || stops
      FROM (SELECT coalesce(jsonb_object_agg(t.priority, t.fair_key), '{}') AS turns FROM (
                SELECT DISTINCT ON (j.priority) j.priority, j.fair_key
                  FROM unnest(ids) WITH ORDINALITY AS i (id, number) CROSS JOIN LATERAL (
                       SELECT u.priority, u.fair_key FROM pgbeat.unfinished_jobs u
                        WHERE u.id = i.id OFFSET 0) AS j
                 ORDER BY j.priority, i.number DESC) AS t) AS n
     WHERE l.namespace = own.namespace AND l.name = own.name;
END
$$;

-- Returns the keys of jobs that left their slots in the lane or came into its line: `gained` for
-- `fair_line`. NULL without jobs, and where keys have no limit.
CREATE FUNCTION pgbeat.gained_keys(own pgbeat.lanes, job_ids uuid[]) RETURNS text[]
LANGUAGE plpgsql STABLE SET enable_seqscan = off AS $$
BEGIN
    IF job_ids IS NULL OR own.max_per_key IS NULL THEN
        RETURN NULL;
    END IF;
    RETURN ARRAY(
        SELECT j.fair_key FROM pgbeat.unfinished_jobs j WHERE j.id = ANY (job_ids)
         UNION
        SELECT j.fair_key FROM pgbeat.ended_jobs j
         WHERE j.id = ANY (job_ids) AND j.finished_at > now() - interval '1 hour');
END
$$;

-- Gives free slots of a fair lane to the next jobs, up to `most`, and returns these in order. The lane
-- must be locked, and have no limits but on slots. Jobs that are locked are passed over. With `job_ids`, jobs
-- that left their slots or came into the line, doesn't look through all keys if many have no free slot.
CREATE FUNCTION pgbeat.take_turns(
    own pgbeat.lanes, most integer, job_ids uuid[] DEFAULT NULL)
RETURNS SETOF pgbeat.unfinished_jobs
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    chosen uuid[];
    served jsonb;    -- the last key of each priority
    taken  uuid[] := '{}';
    locked uuid[] := '{}';
    free   integer := most;
    gained CONSTANT text[] := pgbeat.gained_keys(own, job_ids);
BEGIN
    IF own.max_running IS NOT NULL THEN
        SELECT least(most, greatest(0, own.max_running - count(*))) INTO free
          FROM pgbeat.unfinished_jobs h
         WHERE h.namespace = own.namespace AND h.lane = own.name AND h.dispatched_at IS NOT NULL
           AND h.state IN ('pending', 'scheduled', 'running');
    END IF;
    FOR try IN 1..5 LOOP
        SELECT coalesce(array_agg(f.id ORDER BY f.number) FILTER (WHERE f.id IS NOT NULL), '{}'),
               jsonb_object_agg(f.priority, f.fair_key ORDER BY f.id IS NULL, f.number)
          INTO chosen, served
          FROM pgbeat.fair_line(own, free, true, locked, gained)
               WITH ORDINALITY AS f (id, priority, fair_key, number);
        EXIT WHEN served IS NULL;
        taken := ARRAY(SELECT j.id FROM pgbeat.unfinished_jobs j
                        WHERE j.id = ANY (chosen) AND j.dispatched_at IS NULL
                          AND j.state = 'pending' AND NOT j.is_blocked
                          AND j.fair_key = pgbeat.fair_key(own.fair_by, j)
                          FOR UPDATE SKIP LOCKED);
        CONTINUE WHEN cardinality(taken) < cardinality(chosen)
            AND pgbeat.correct_keys(own, chosen) > 0;
        RETURN QUERY
        WITH mine AS (
            UPDATE pgbeat.unfinished_jobs j SET dispatched_at = statement_timestamp()
             WHERE j.id = ANY (taken)
            RETURNING j.*)
        SELECT m.* FROM mine m ORDER BY array_position(chosen, m.id);
        UPDATE pgbeat.lanes l SET turns = l.turns || served
         WHERE l.namespace = own.namespace AND l.name = own.name
        RETURNING l.* INTO own;
        free := free - cardinality(taken);
        EXIT WHEN cardinality(taken) = cardinality(chosen);
        locked := locked || chosen;
    END LOOP;
END
$$;
