"""What becomes of deliveries: which are due, what an attempt sends, how it came out.

The leading beat's `webhook_deliverer` claims deliveries, which begins an attempt at each, and
writes the outcomes. `next_at` of a delivery is when it is due; while an attempt is under way
(`sent_at` is set) it is a lease: when that runs out, the beat died, and the next attempt is due. No
lock and no transaction is held while the receiver is asked. Rows that others hold locked are left
for later.
"""

import json
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from sqlalchemy import Connection, text

from pgbeat.config import Settings
from pgbeat.database import connections
from pgbeat.webhooks import http as webhook_delivery
from pgbeat.webhooks import model as webhooks
from pgbeat.webhooks import signing as webhook_signatures
from pgbeat.webhooks.http import Answer

#: Seconds after which the first, the second and the third failure are followed by an attempt.
DELAYS = (5.0, 15.0, 45.0)
#: A receiver that names a time later than that is heard up to here, in seconds.
_LONGEST_DELAY = 3600.0
#: Seconds that an attempt may take before its beat counts as dead: the request's own limit, and
#: what a resolver takes at worst.
_LEASE = 60.0

# -- claimed

# Deliveries whose last attempt was never heard of, and those of a webhook that was disabled.
_GIVE_UP = text(
    """
    UPDATE pgbeat.deliveries d
       SET state = 'failed', finished_at = now(), next_at = NULL, sent_at = NULL,
           log = log || jsonb_build_object('at', now(), 'error', CASE WHEN w.enabled
               THEN 'nothing was heard of the last attempt: its beat was lost'
               ELSE 'the webhook was disabled' END)
      FROM pgbeat.webhooks w
     WHERE w.id = d.webhook_id AND d.id = ANY (ARRAY(
           SELECT u.id FROM pgbeat.deliveries u WHERE u.state = 'pending' AND u.id = ANY (ARRAY(
               SELECT sent.id
                 FROM pgbeat.webhooks v CROSS JOIN LATERAL (
                      SELECT id FROM pgbeat.deliveries
                       WHERE webhook_id = v.id AND sent_at IS NOT NULL AND next_at <= now()
                         AND attempts >= :most) AS sent
                WHERE v.namespace = :namespace AND v.enabled
                UNION ALL
               SELECT waiting.id
                 FROM pgbeat.webhooks v CROSS JOIN LATERAL (
                      SELECT id FROM pgbeat.deliveries
                       WHERE webhook_id = v.id AND state = 'pending' AND next_at <= now()
                       LIMIT 1000) AS waiting
                WHERE v.namespace = :namespace AND NOT v.enabled))
           FOR NO KEY UPDATE SKIP LOCKED))
    """
)
# Of each webhook as many as it has slots: attempts under way have theirs, also those whose lease
# ran out. Where not all can be had, those of webhooks with the fewest under way come first.
_CLAIM = text(
    """
    WITH due AS (
        SELECT found.id
          FROM pgbeat.webhooks w
         CROSS JOIN LATERAL (
               SELECT count(*) AS taken, count(*) FILTER (WHERE u.next_at > now()) AS under_way
                 FROM pgbeat.deliveries u
                WHERE u.webhook_id = w.id AND u.sent_at IS NOT NULL) busy
         CROSS JOIN LATERAL (
               SELECT each.id, each.next_at,
                      busy.under_way + row_number() OVER (ORDER BY each.next_at) AS turn
                 FROM ((SELECT d.id, d.next_at FROM pgbeat.deliveries d
                         WHERE d.webhook_id = w.id AND d.sent_at IS NOT NULL
                           AND d.next_at <= now()
                         ORDER BY d.next_at LIMIT w.slots)
                       UNION ALL
                       (SELECT d.id, d.next_at FROM pgbeat.deliveries d
                         WHERE d.webhook_id = w.id AND d.state = 'pending' AND d.sent_at IS NULL
                           AND d.next_at <= now()
                         ORDER BY d.next_at LIMIT greatest(0, w.slots - busy.taken))) each) found
         WHERE w.namespace = :namespace AND w.enabled
         ORDER BY found.turn, found.next_at LIMIT :limit),
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
    RETURNING d.id, d.webhook_id, w.name, d.event, w.url, w.secret,
              CASE WHEN w.previous_until > now() THEN w.previous_secret END,
              d.payload::text, d.attempts, jsonb_array_length(d.log) - 1,
              floor(extract(epoch FROM now()))::bigint
    """
)


@dataclass(frozen=True)
class DeliveryAttempt:
    """One attempt at a delivery, begun; what is sent, and with which secrets it is signed."""

    id: UUID
    webhook_id: int
    webhook: str
    event: str
    url: str = field(repr=False)
    secrets: tuple[str, ...] = field(repr=False)
    #: The body, byte for byte.
    body: bytes = field(repr=False)
    #: Which attempt it is, from 1 on.
    number: int
    #: Where its entry is in the delivery's log.
    position: int
    #: The time of the attempt: seconds since 1970.
    timestamp: int

    def send(self, *, private: bool) -> Answer:
        """Asks the receiver, with no transaction open. What goes wrong is in the answer."""
        headers = webhook_signatures.headers(str(self.id), self.timestamp, self.body, self.secrets)
        return webhook_delivery.post(self.url, headers, self.body, private=private)


def claim(
    connection: Connection, *, namespace: str, worker: str, limit: int
) -> list[DeliveryAttempt]:
    """Begins an attempt at up to `limit` deliveries that are due; returns the attempts.

    `worker` names this process in their logs. Deliveries whose last attempt was lost have failed.
    """
    where = {"namespace": namespace}
    connection.execute(_GIVE_UP, {**where, "most": 1 + len(DELAYS)})
    values = {**where, "limit": limit, "worker": worker, "lease": _LEASE}
    found = []
    for row in connection.execute(_CLAIM, values):
        key, webhook_id, name, event, url, secret, previous, payload, *rest = row
        signed_with = tuple(each for each in (secret, previous) if each is not None)
        found.append(
            DeliveryAttempt(key, webhook_id, name, event, url, signed_with, payload.encode(), *rest)
        )
    return found


_SECRETS = text(
    """
    SELECT secret, CASE WHEN previous_until > now() THEN previous_secret END
      FROM pgbeat.webhooks WHERE id = :id
    """
)


def secrets(connection: Connection, webhook_id: int) -> tuple[str, ...]:
    """Returns what a webhook is signed with now: its secret, and for a day the one before."""
    row = connection.execute(_SECRETS, {"id": webhook_id}).one()
    return tuple(secret for secret in row if secret is not None)


# -- finished


class Outcome(NamedTuple):
    """How an attempt came out."""

    attempt: DeliveryAttempt
    answer: Answer

    @property
    def delay(self) -> float | None:
        """Seconds after which the delivery is tried again; `None` if it is not."""
        attempt, answer = self
        if answer.is_delivered or answer.is_gone or attempt.number > len(DELAYS):
            return None
        return min(max(DELAYS[attempt.number - 1], answer.retry_after or 0.0), _LONGEST_DELAY)

    @property
    def state(self) -> str:
        """The delivery's state from now on."""
        if self.answer.is_delivered:
            return "delivered"
        return "failed" if self.delay is None else "pending"


class _Finished(NamedTuple):
    """An outcome as the statements take it."""

    id: UUID
    number: int
    position: int
    state: str
    delay: float | None
    entry: dict[str, Any]


class _Counted(NamedTuple):
    """What came of one webhook's attempts."""

    id: int
    delivered: int
    has_failed: bool


# A webhook that fails has one slot, and twice as many with each delivery that succeeds: a receiver
# that hangs takes the time of one thread.
_SLOTS = text(
    """
    UPDATE pgbeat.webhooks w SET slots = changed.slots
      FROM (SELECT v.id, n.slots
              FROM json_to_recordset(CAST(:counted AS json))
                   AS c (id bigint, delivered integer, has_failed boolean)
              JOIN pgbeat.webhooks v ON v.id = c.id
             CROSS JOIN LATERAL (SELECT CASE WHEN c.has_failed THEN 1 ELSE
                   least(v.slots::bigint << least(c.delivered, 16), :slots) END::int AS slots) n
             WHERE v.slots <> n.slots
               FOR NO KEY UPDATE OF v SKIP LOCKED) changed
     WHERE w.id = changed.id
    """
)
_OUTCOMES = """
    SELECT * FROM json_to_recordset(CAST(:outcomes AS json)) AS o (
        id uuid, number integer, position integer, state text, delay double precision, entry jsonb)
"""
# Late is as good as in time for what was delivered; of failures only the newest attempt's counts.
_IS_WANTED = """
    CASE WHEN o.state = 'delivered' THEN d.state <> 'delivered'
         ELSE d.state = 'pending' AND d.attempts = o.number END
"""
_FINISH = text(
    f"""
    WITH o AS ({_OUTCOMES}), free AS (
        SELECT d.id FROM pgbeat.deliveries d JOIN o USING (id)
         WHERE {_IS_WANTED} FOR NO KEY UPDATE OF d SKIP LOCKED)
    UPDATE pgbeat.deliveries d
       SET state = o.state, sent_at = NULL,
           finished_at = CASE WHEN o.state <> 'pending' THEN now() END,
           next_at = CASE WHEN o.state = 'pending' THEN now() + o.delay * interval '1 second' END,
           log = coalesce(jsonb_set(d.log, ARRAY[o.position::text],
               (d.log -> o.position) || o.entry), d.log)
      FROM o JOIN free USING (id) WHERE d.id = o.id
    RETURNING d.id
    """  # noqa: S608
)
_LEFT = text(
    f"""
    WITH o AS ({_OUTCOMES})
    SELECT d.id FROM pgbeat.deliveries d JOIN o USING (id)
     WHERE {_IS_WANTED} AND d.id <> ALL (CAST(:written AS uuid[]))
    """  # noqa: S608
)


def finish(connection: Connection, outcomes: Sequence[Outcome]) -> Collection[UUID]:
    """Writes outcomes of attempts at different deliveries, in one transaction.

    Returns the deliveries whose rows are locked elsewhere: their outcomes are to be written later.
    A receiver that answered 410 has its webhook disabled.
    """
    outcomes, later = _disabling(connection, outcomes)
    counted: dict[int, _Counted] = {}
    for attempt, answer in outcomes:
        before = counted.get(attempt.webhook_id, _Counted(attempt.webhook_id, 0, False))
        delivered = before.delivered + answer.is_delivered
        has_failed = before.has_failed or not answer.is_delivered
        counted[attempt.webhook_id] = _Counted(attempt.webhook_id, delivered, has_failed)
    # Webhooks before their deliveries, in the order of those who disable or delete them.
    slots = {"counted": connections.recordset(counted.values()), "slots": webhooks.SLOTS}
    connection.execute(_SLOTS, slots)
    values = {"outcomes": connections.recordset([_finished(outcome) for outcome in outcomes])}
    written = {str(each) for each in connection.scalars(_FINISH, values)}
    for attempt, answer in outcomes:
        if answer.is_gone and str(attempt.id) in written:
            webhooks.disable(connection, attempt.webhook_id, "its receiver answered 410 Gone")
    if len(written) == len(outcomes):
        return later
    return [*later, *connection.scalars(_LEFT, {**values, "written": list(written)})]


_LOCK = text(
    """
    SELECT id FROM pgbeat.webhooks WHERE id = ANY (CAST(:ids AS bigint[])) ORDER BY id
       FOR NO KEY UPDATE SKIP LOCKED
    """
)


def _disabling(
    connection: Connection, outcomes: Sequence[Outcome]
) -> tuple[list[Outcome], list[UUID]]:
    """Locks the webhooks that are to be disabled; returns the outcomes without those whose webhook
    is locked elsewhere, and the deliveries of these."""
    gone = {attempt.webhook_id for attempt, answer in outcomes if answer.is_gone}
    if not gone:
        return list(outcomes), []
    gone -= set(connection.scalars(_LOCK, {"ids": list(gone)}))
    now: list[Outcome] = []
    later: list[Outcome] = []
    for outcome in outcomes:
        is_later = outcome.answer.is_gone and outcome.attempt.webhook_id in gone
        (later if is_later else now).append(outcome)
    return now, [outcome.attempt.id for outcome in later]


def _finished(outcome: Outcome) -> _Finished:
    attempt, answer = outcome
    entry = {"status": answer.status, "error": answer.error, "ms": answer.ms}
    return _Finished(
        attempt.id,
        attempt.number,
        attempt.position,
        outcome.state,
        outcome.delay,
        {name: value for name, value in entry.items() if value is not None},
    )


# -- tried from here


def send_test(
    webhook: webhooks.Webhook, signed_with: tuple[str, ...], settings: Settings
) -> tuple[str, Answer]:
    """Sends a signed `webhook.test` event from this process, at once: its id, and what came of it.
    With no transaction open: it takes as long as the receiver does."""
    moment = datetime.fromtimestamp(time.time(), UTC)
    message = {
        "type": "webhook.test",
        "timestamp": moment.isoformat().replace("+00:00", "Z"),
        "data": {"webhook": webhook.name, "namespace": settings.namespace},
    }
    body = json.dumps(message).encode()
    key = str(uuid4())
    headers = webhook_signatures.headers(key, int(moment.timestamp()), body, signed_with)
    answer = webhook_delivery.post(webhook.url, headers, body, private=settings.webhook_private)
    return key, answer
