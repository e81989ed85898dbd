-- Deliveries whose last attempt had no outcome, and those of a webhook that was disabled.
-- name: give_up
WITH given_up AS (
UPDATE pgbeat.deliveries d
   SET state = 'failed', finished_at = now(), next_at = NULL, sent_at = NULL,
       log = log || jsonb_build_object('at', now(), 'error', CASE WHEN w.enabled
           THEN 'nothing was heard of the last attempt: its beat was lost'
           ELSE 'the webhook was disabled' END)
  FROM pgbeat.webhooks w
 WHERE w.id = d.webhook_id AND d.id = ANY (ARRAY(
       SELECT u.id FROM pgbeat.deliveries u JOIN pgbeat.webhooks x ON x.id = u.webhook_id
        WHERE u.state = 'pending' AND u.id = ANY (ARRAY(
           SELECT sent.id
             FROM pgbeat.webhooks_with_deliveries(:namespace) v CROSS JOIN LATERAL (
                  SELECT id FROM pgbeat.deliveries
                   WHERE webhook_id = v.id AND sent_at IS NOT NULL AND next_at <= now()
                     AND attempts >= :most) AS sent
            WHERE v.enabled
            UNION ALL
           SELECT waiting.id
             FROM pgbeat.webhooks_with_deliveries(:namespace) v CROSS JOIN LATERAL (
                  SELECT id FROM pgbeat.deliveries
                   WHERE webhook_id = v.id AND state = 'pending' AND next_at <= now()
                   LIMIT 1000) AS waiting
            WHERE NOT v.enabled))
          FOR KEY SHARE OF x SKIP LOCKED FOR NO KEY UPDATE OF u SKIP LOCKED))
RETURNING d.webhook_id, d.event, d.incident, d.state, d.payload -> 'data' AS data, {end_at})
{reopen}

-- When an end that was given up is sent again: an incident of a receiver must not stay open for ever.
-- name: end_at
now() + interval '1 hour' AS end_at

-- As many of each webhook as it has free slots. Attempts under way have theirs, also after the end
-- of the lease. Webhooks with the fewest attempts under way come first. A host has a limit, and
-- beyond the `shared` ones only webhooks with no attempt under way have one begun: so neither
-- receivers that begin to hang at the same moment nor a host of many webhooks keep others waiting.
-- A schedule's check-ins go one after the other, in their order, and so does what is sent of an
-- incident: else a retry of an alert, after the end was sent, would open it again for good.
-- name: claim
WITH hooks AS (
    SELECT w.id, w.slots, w.schedule_id, u.taken, u.under_way, host,
           sum(u.under_way) OVER (PARTITION BY host) AS host_under_way
      FROM pgbeat.webhooks_with_deliveries(:namespace) w
     CROSS JOIN LATERAL lower(substring(w.url FROM '^https?://([^/?#]*)')) AS host
     CROSS JOIN LATERAL (
           SELECT count(*) AS taken, count(*) FILTER (WHERE d.next_at > now()) AS under_way
             FROM pgbeat.deliveries d
            WHERE d.webhook_id = w.id AND d.sent_at IS NOT NULL) u
     WHERE w.enabled),
found AS (
    SELECT each.id, each.next_at, h.host, h.host_under_way, h.under_way
           + row_number() OVER (PARTITION BY h.id ORDER BY each.next_at) AS turn
      FROM hooks h
     CROSS JOIN LATERAL (
           (SELECT d.id, d.next_at FROM pgbeat.deliveries d
             WHERE d.webhook_id = h.id AND d.sent_at IS NOT NULL AND d.next_at <= now()
             ORDER BY d.next_at LIMIT h.slots)
           UNION ALL
           (SELECT d.id, d.next_at FROM pgbeat.deliveries d
             WHERE d.webhook_id = h.id AND d.state = 'pending' AND d.sent_at IS NULL
               AND d.next_at <= now()
               AND (d.incident IS NULL OR d.turn IS NOT NULL AND NOT EXISTS (
                    SELECT FROM pgbeat.deliveries e
                     WHERE e.webhook_id = d.webhook_id AND e.incident = d.incident
                       AND e.state = 'pending' AND e.turn < d.turn))
               AND (h.schedule_id IS NULL OR d.id = (pgbeat.next_check_in(h.id)).id)
             ORDER BY d.next_at LIMIT greatest(0, h.slots - h.taken))) each),
in_host AS (
    SELECT *, host_under_way
           + row_number() OVER (PARTITION BY host ORDER BY turn, next_at) AS host_turn
      FROM found),
placed AS (
    SELECT *, row_number() OVER (ORDER BY turn, next_at) AS place
      FROM in_host WHERE host_turn <= :per_host),
due AS (
    SELECT id FROM placed WHERE turn = 1 OR place <= :shared
     ORDER BY place LIMIT :limit),
free AS (
    SELECT d.id FROM pgbeat.deliveries d
     WHERE d.id = ANY (ARRAY(SELECT id FROM due)) AND d.state = 'pending'
       AND d.next_at <= now()
       FOR NO KEY UPDATE SKIP LOCKED)
UPDATE pgbeat.deliveries d
   SET attempts = d.attempts + 1, sent_at = now(),
       next_at = now() + :lease * interval '1 second',
       log = d.log || jsonb_build_object('at', now(), 'worker', CAST(:worker AS text))
  FROM free, pgbeat.webhooks w
 WHERE d.id = free.id AND w.id = d.webhook_id
RETURNING d.id, d.webhook_id,
          coalesce((SELECT name FROM pgbeat.schedules WHERE id = w.schedule_id), w.name),
          d.event,
          CASE WHEN w.schedule_id IS NULL THEN w.url ELSE coalesce(pgbeat.check_in_address(
              w.url, d.payload ->> 'status', d.payload ->> 'id'), w.url) END,
          w.secret, CASE WHEN w.previous_until > now() THEN w.previous_secret END,
          CASE WHEN w.schedule_id IS NULL THEN d.payload::text END, w.format, d.attempts,
          jsonb_array_length(d.log) - 1, floor(extract(epoch FROM now()))::bigint

-- A webhook that fails has one slot, and twice as many after each delivery: a receiver that hangs
-- occupies one thread.
-- name: slots
UPDATE pgbeat.webhooks w SET slots = changed.slots
  FROM (SELECT v.id, n.slots
          FROM json_to_recordset(CAST(:counted AS json))
               AS c (id bigint, delivered integer, has_failed boolean)
          JOIN pgbeat.webhooks v ON v.id = c.id
         CROSS JOIN LATERAL (SELECT CASE WHEN c.has_failed THEN 1 ELSE
               least(v.slots::bigint << least(c.delivered, 16), :slots) END::int AS slots) n
         WHERE v.slots <> n.slots AND v.schedule_id IS NULL
           FOR NO KEY UPDATE OF v SKIP LOCKED) changed
 WHERE w.id = changed.id

-- name: outcomes
SELECT * FROM json_to_recordset(CAST(:outcomes AS json)) AS o (
    id uuid, number integer, position integer, state text, delay double precision, entry jsonb)

-- A delivery counts even if it is late. A failure counts only if it is of the newest attempt.
-- name: is_wanted
CASE WHEN o.state = 'delivered' THEN d.state <> 'delivered'
     ELSE d.state = 'pending' AND d.attempts = o.number END
-- Then the webhook is locked before the delivery: an incident that is open again refers to it.
-- name: may_end
(o.state = 'failed' AND d.incident IS NOT NULL)
-- name: finish
WITH o AS ({outcomes}), locked AS MATERIALIZED (
    SELECT w.id FROM pgbeat.webhooks w
     WHERE w.id IN (SELECT d.webhook_id FROM pgbeat.deliveries d JOIN o USING (id) WHERE {may_end})
       FOR KEY SHARE SKIP LOCKED),
free AS (
    SELECT d.id FROM pgbeat.deliveries d JOIN o USING (id)
     WHERE {is_wanted} AND (NOT {may_end} OR d.webhook_id IN (SELECT id FROM locked))
       FOR NO KEY UPDATE OF d SKIP LOCKED),
given_up AS (
UPDATE pgbeat.deliveries d
   SET state = o.state, sent_at = NULL,
       finished_at = CASE WHEN o.state <> 'pending' THEN now() END,
       next_at = CASE WHEN o.state = 'pending' THEN now() + o.delay * interval '1 second' END,
       log = coalesce(jsonb_set(d.log, ARRAY[o.position::text],
           (d.log -> o.position) || o.entry), d.log)
  FROM o JOIN free USING (id) WHERE d.id = o.id
RETURNING d.id, d.webhook_id, d.event, d.incident, d.state, d.payload -> 'data' AS data, {end_at}),
reopened AS ({reopen})
SELECT id FROM given_up

-- name: left
WITH o AS ({outcomes})
SELECT d.id FROM pgbeat.deliveries d JOIN o USING (id)
 WHERE {is_wanted} AND d.id <> ALL (CAST(:written AS uuid[]))
