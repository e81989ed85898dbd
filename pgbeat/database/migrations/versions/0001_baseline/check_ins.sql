-- Check-ins: requests to a schedule's `check_in_url`, by which a monitor elsewhere learns that it
-- runs, and that beat does. Each is a delivery, written in the transaction of what it reports. So
-- they stop when beat does.

-- A URL has alternatives for the start, the success and the failure of a run, such as
-- `{/start,,/fail}`; `-` stands for no request. Without any, only successes are reported.
CREATE FUNCTION pgbeat.check_in_url_problem(url text) RETURNS text
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE
        WHEN url !~ '^[!-~]+$' OR length(url) > 2000
        THEN 'it must have 1 to 2000 printable ASCII characters'
        WHEN url !~ '^https?://[^/?#@{},]+([/?{]|$)'
        THEN 'it must begin with http:// or https:// and a host, without a user or password'
        WHEN regexp_replace(url, '\{id\}|\{[^{},]*,[^{},]*,[^{},]*\}', '', 'g') ~ '[{}]'
        THEN 'braces must have the start, success and failure of a run between them, such as '
             '{/start,,/fail}, or id'
    END
$$;

CREATE FUNCTION pgbeat.check_check_in_url() RETURNS trigger
LANGUAGE plpgsql AS $$
DECLARE
    problem text := pgbeat.check_in_url_problem(NEW.check_in_url);
BEGIN
    IF problem IS NOT NULL THEN
        PERFORM pgbeat.refuse_schedule(NEW.name, 'check_in_url', 'malformed',
            'check_in_url: ' || problem);
    END IF;
    RETURN NEW;
END
$$;

CREATE TRIGGER check_check_in_url
    BEFORE INSERT OR UPDATE OF check_in_url ON pgbeat.schedules FOR EACH ROW
    WHEN (NEW.check_in_url IS NOT NULL) EXECUTE FUNCTION pgbeat.check_check_in_url();

-- A schedule's check-ins have a webhook of their own, without events: one request at a time.
CREATE FUNCTION pgbeat.keep_check_ins() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.check_in_url IS NULL THEN
        DELETE FROM pgbeat.webhooks WHERE schedule_id = NEW.id;
    ELSE
        INSERT INTO pgbeat.webhooks (namespace, name, url, secret, events, slots, schedule_id)
        VALUES (NEW.namespace, 'check-in/' || NEW.id, NEW.check_in_url, '', '{}', 1, NEW.id)
        ON CONFLICT (schedule_id) WHERE schedule_id IS NOT NULL
        DO UPDATE SET url = excluded.url, namespace = excluded.namespace, updated_at = now(),
                      enabled = true, disabled_reason = NULL;
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER begin_check_ins AFTER INSERT ON pgbeat.schedules FOR EACH ROW
    WHEN (NEW.check_in_url IS NOT NULL) EXECUTE FUNCTION pgbeat.keep_check_ins();
CREATE TRIGGER change_check_ins AFTER UPDATE OF check_in_url, namespace ON pgbeat.schedules
    FOR EACH ROW
    WHEN (OLD.check_in_url IS DISTINCT FROM NEW.check_in_url
          OR NEW.check_in_url IS NOT NULL AND OLD.namespace <> NEW.namespace)
    EXECUTE FUNCTION pgbeat.keep_check_ins();

-- The alternative of a URL for `start`, `ok` or `fail`; NULL: no request is made.
CREATE FUNCTION pgbeat.check_in_address(url text, status text, id text) RETURNS text
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    part    text[];
    chosen  text;
BEGIN
    IF url !~ '\{[^{}]*,' AND status <> 'ok' THEN
        RETURN NULL;
    END IF;
    LOOP
        part := regexp_match(url, '\{([^{},]*),([^{},]*),([^{},]*)\}');
        EXIT WHEN part IS NULL;
        chosen := part[array_position(ARRAY['start', 'ok', 'fail'], status)];
        IF chosen = '-' THEN
            RETURN NULL;
        END IF;
        url := replace(url, '{' || array_to_string(part, ',') || '}', chosen);
    END LOOP;
    RETURN replace(url, '{id}', id);
END
$$;

-- Reports the run of a due time. Those that people start are left out: a monitor expects what the
-- timetable says. All requests for a run have the same id.
CREATE FUNCTION pgbeat.check_in(
    schedule_id bigint, trigger text, due_at timestamptz, status text
) RETURNS void
LANGUAGE sql AS $$
    INSERT INTO pgbeat.deliveries (webhook_id, event, payload)
    SELECT w.id, 'check-in.' || status, jsonb_build_object('status', status,
               'id', md5(format('%s %s', schedule_id, extract(epoch FROM due_at)))::uuid)
      FROM pgbeat.webhooks w
     WHERE w.schedule_id = check_in.schedule_id AND w.enabled
       AND trigger IN ('timetable', 'retry', 'after')
       AND pgbeat.check_in_address(w.url, status, '') IS NOT NULL
       FOR KEY SHARE OF w
$$;

-- A launch begins a run, a skip is a success (it was decided, and there was nothing to do), and a
-- failure is one.
CREATE FUNCTION pgbeat.check_in_ticks() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM pgbeat.webhooks WHERE schedule_id IS NOT NULL) THEN
        PERFORM pgbeat.check_in(t.schedule_id, t.trigger, t.due_at,
                    CASE t.outcome WHEN 'launched' THEN 'start' WHEN 'skipped' THEN 'ok'
                                   ELSE 'fail' END)
           FROM fresh t JOIN pgbeat.webhooks w ON w.schedule_id = t.schedule_id
          ORDER BY w.id;
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER check_in_ticks AFTER INSERT ON pgbeat.ticks REFERENCING NEW TABLE AS fresh
    FOR EACH STATEMENT EXECUTE FUNCTION pgbeat.check_in_ticks();
