-- An incident: a schedule, or a task without one, fails, and is told of to a webhook as one thing.
--
-- A failure is recorded as before, a delivery for each webhook, so that no end of a job waits for
-- another. The leading beat takes these one after the other: it opens or continues the incident, and
-- sends the delivery or deletes it. It also looks whether what failed is well again. A job that ends
-- well reads and writes none of this.
ALTER TABLE pgbeat.webhooks
    ADD COLUMN per_incident boolean NOT NULL DEFAULT false,
    ADD COLUMN labels jsonb NOT NULL DEFAULT '{}',        -- events of what has all these only,
    ADD COLUMN schedules text[] NOT NULL DEFAULT '{}',    -- of schedules and tasks with such
    ADD COLUMN tasks text[] NOT NULL DEFAULT '{}',        -- names: globs
    ADD CONSTRAINT webhooks_labels CHECK (jsonb_typeof(labels) = 'object');

ALTER TABLE pgbeat.deliveries
    ADD COLUMN incident text,                             -- whose alert or end it is
    ADD COLUMN turn timestamptz;                          -- when beat took it: they go in this order
CREATE INDEX deliveries_of_incidents ON pgbeat.deliveries (created_at, id)
    WHERE incident IS NOT NULL AND turn IS NULL AND state = 'pending';
CREATE INDEX deliveries_in_turn ON pgbeat.deliveries (webhook_id, incident, turn)
    WHERE turn IS NOT NULL AND state = 'pending';

CREATE TABLE pgbeat.incidents (
    webhook_id  bigint NOT NULL REFERENCES pgbeat.webhooks ON DELETE CASCADE,
    kind        text NOT NULL,
    name        text NOT NULL,                            -- of the schedule or task
    events      text[] NOT NULL,                          -- that were its failures
    failures    integer NOT NULL,
    alerts      integer NOT NULL,                         -- how many of these were sent
    began_at    timestamptz NOT NULL,
    failed_at   timestamptz NOT NULL,                     -- last
    made_at     timestamptz,                              -- the last job that failed
    next_alert_at timestamptz NOT NULL,                   -- failures before that are not sent
    end_at      timestamptz,                              -- nor its end: it was refused
    PRIMARY KEY (webhook_id, kind, name),
    CONSTRAINT incidents_kind CHECK (kind IN ('schedule', 'task'))
);

CREATE FUNCTION pgbeat.is_like(name text, globs text[]) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT coalesce(bool_or(name LIKE replace(replace(replace(replace(replace(
               g, '\', '\\'), '%', '\%'), '_', '\_'), '*', '%'), '?', '_')), false)
      FROM unnest(globs) AS g
$$;

-- Whether an event of this schedule and task passes the filters. A job has its schedule's labels, too.
CREATE FUNCTION pgbeat.passes_filters(
    w pgbeat.webhooks, schedule text, task text, labels jsonb) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT (w.schedules = '{}' OR pgbeat.is_like(schedule, w.schedules))
       AND (w.tasks = '{}' OR pgbeat.is_like(task, w.tasks))
       AND (w.labels = '{}' OR w.labels <@ (coalesce((
               SELECT s.labels FROM pgbeat.schedules s
                WHERE s.namespace = w.namespace AND s.name = schedule), '{}')
           || coalesce(labels, '{}')))
$$;

CREATE FUNCTION pgbeat.event_message(event text, data jsonb) RETURNS jsonb
LANGUAGE sql VOLATILE AS $$
    SELECT jsonb_build_object(
        'type', event,
        'timestamp', to_char(
            clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
        'data', data)
$$;

-- As before, but for what waits for an earlier alert, or end, of its incident.
CREATE OR REPLACE FUNCTION pgbeat.next_delivery(namespace text) RETURNS timestamptz
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT min(CASE WHEN w.schedule_id IS NOT NULL THEN (pgbeat.next_check_in(w.id)).next_at
           WHEN w.enabled AND w.slots <= (
               SELECT count(*) FROM pgbeat.deliveries d
                WHERE d.webhook_id = w.id AND d.sent_at IS NOT NULL)
           THEN (SELECT min(d.next_at) FROM pgbeat.deliveries d
                  WHERE d.webhook_id = w.id AND d.sent_at IS NOT NULL)
           ELSE (SELECT d.next_at FROM pgbeat.deliveries d
                  WHERE d.webhook_id = w.id AND d.state = 'pending'
                    AND (d.turn IS NULL OR NOT EXISTS (
                         SELECT FROM pgbeat.deliveries e
                          WHERE e.webhook_id = d.webhook_id AND e.incident = d.incident
                            AND e.state = 'pending' AND e.turn < d.turn))
                  ORDER BY d.next_at LIMIT 1) END)
      FROM pgbeat.webhooks_with_deliveries(next_delivery.namespace) w);
END
$$;

-- As before, and for webhooks that learn when failures are over: these get them, too.
CREATE OR REPLACE FUNCTION pgbeat.record_event(namespace text, event text, data jsonb) RETURNS void
LANGUAGE sql AS $$
    INSERT INTO pgbeat.deliveries (webhook_id, event, payload, incident)
    SELECT w.id, record_event.event, pgbeat.event_message(record_event.event, record_event.data),
           CASE WHEN w.per_incident OR w.events && ARRAY['schedule.recovered', 'job.recovered'] THEN
                CASE WHEN NOT about.is_failure THEN NULL
                     WHEN about.schedule IS NOT NULL THEN 'schedule:' || about.schedule
                     ELSE 'task:' || about.task END END
      FROM (SELECT coalesce(d.data ->> 'schedule',
                       CASE WHEN record_event.event LIKE 'schedule.%' THEN d.data ->> 'name' END),
                   d.data ->> 'task', d.data -> 'labels',
                   record_event.event IN ('job.run.failed', 'job.failed', 'job.late',
                       'schedule.disabled', 'schedule.paused', 'schedule.stale', 'tick.failed')
              FROM (SELECT coalesce(record_event.data -> 'job', record_event.data)) AS d (data)
           ) AS about (schedule, task, labels, is_failure),
           pgbeat.webhooks w
     WHERE w.enabled AND w.schedule_id IS NULL AND w.namespace = record_event.namespace
       AND (record_event.event = ANY (w.events)
            OR record_event.event IN ('job.failed', 'tick.failed', 'schedule.stale')
               AND CASE WHEN about.schedule IS NULL THEN 'job.recovered'
                        ELSE 'schedule.recovered' END = ANY (w.events))
       AND pgbeat.passes_filters(w, about.schedule, about.task, about.labels)
       FOR KEY SHARE OF w
$$;
