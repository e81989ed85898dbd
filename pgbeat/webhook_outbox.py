"""The way of a delivery: sent to the workers by the leading beat, tried by one, tried again.

`next_at` of a delivery is when beat sends it; from then on it is a lease: of one that nobody took,
or whose worker died, beat hears when that is over. No lock and no transaction is held while the
receiver is asked.
"""

import json
import logging
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

from sqlalchemy import Connection, TextClause, text

from pgbeat import db, webhook_delivery, webhook_signatures, webhooks
from pgbeat.config import Settings
from pgbeat.errors import ConfigError
from pgbeat.schedules import CHANNEL
from pgbeat.webhook_delivery import Answer

if TYPE_CHECKING:
    from pgbeat.publisher import Publisher

logger = logging.getLogger("celery.beat.pgbeat")

#: The Celery task that delivers one.
TASK = "pgbeat.deliver"
#: Seconds after which the first, the second and the third failure are followed by an attempt.
DELAYS = (5.0, 15.0, 45.0)
#: A receiver that names a time later than that is heard up to here, in seconds.
_LONGEST_DELAY = 3600.0
#: Seconds that an attempt may take before another worker may think that its worker is dead: the
#: request's own limit, and what a resolver takes at worst.
_LEASE = 60.0
#: Deliveries that are sent to the workers in one transaction, at most.
_BATCH = 500

# -- sent to the workers

# Those whose last attempt was never heard of; those of a webhook that somebody disabled meanwhile.
_GIVE_UP = text(
    """
    UPDATE pgbeat.deliveries d
       SET state = 'failed', finished_at = now(), next_at = NULL, sent_at = NULL,
           log = log || jsonb_build_object('at', now(), 'error', CASE WHEN w.enabled
               THEN 'nothing was heard of the last attempt: its worker was lost'
               ELSE 'the webhook was disabled' END)
      FROM pgbeat.webhooks w
     WHERE w.id = d.webhook_id AND d.state = 'pending' AND d.id = ANY (ARRAY(
           SELECT sent.id
             FROM pgbeat.webhooks v CROSS JOIN LATERAL (
                  SELECT id FROM pgbeat.deliveries u
                   WHERE u.webhook_id = v.id AND u.sent_at IS NOT NULL AND u.next_at <= now()
                     AND u.attempts >= :most) AS sent
            WHERE v.namespace = :namespace AND v.enabled
            UNION ALL
           SELECT waiting.id
             FROM pgbeat.webhooks v CROSS JOIN LATERAL (
                  SELECT id FROM pgbeat.deliveries u
                   WHERE u.webhook_id = v.id AND u.state = 'pending' AND u.next_at <= now()
                   LIMIT 1000) AS waiting
            WHERE v.namespace = :namespace AND NOT v.enabled))
    """
)
# Of each webhook, so many as it has slots: those that were sent and not heard of have theirs
# already. Each time that nobody takes one the lease is twice as long: where all workers are busy
# or away, no heap of messages is to grow.
_SEND = text(
    """
    WITH due AS (
        SELECT found.id
          FROM pgbeat.webhooks w CROSS JOIN LATERAL (
               (SELECT d.id, d.next_at FROM pgbeat.deliveries d
                 WHERE d.webhook_id = w.id AND d.sent_at IS NOT NULL AND d.next_at <= now()
                 ORDER BY d.next_at LIMIT w.slots)
               UNION ALL
               (SELECT d.id, d.next_at FROM pgbeat.deliveries d
                 WHERE d.webhook_id = w.id AND d.state = 'pending' AND d.sent_at IS NULL
                   AND d.next_at <= now()
                 ORDER BY d.next_at
                 LIMIT greatest(0, w.slots - (SELECT count(*) FROM pgbeat.deliveries u
                     WHERE u.webhook_id = w.id AND u.sent_at IS NOT NULL)))) found
         WHERE w.namespace = :namespace AND w.enabled
         ORDER BY found.next_at LIMIT :batch)
    UPDATE pgbeat.deliveries d
       SET sent_at = coalesce(d.sent_at, now()),
           next_at = now() + least(interval '1 hour',
               greatest(:lease * interval '1 second', now() - coalesce(d.sent_at, now())))
      FROM due WHERE d.id = due.id AND d.state = 'pending' AND d.next_at <= now()
    RETURNING d.id, d.attempts
    """
)


def send_due(connection: Connection, publisher: "Publisher", settings: Settings) -> int:
    """Sends the workers what is due to be delivered; how many. `connection` is in autocommit mode:
    the messages and the lease commit together.

    Where Celery can't make the message (there is no such queue, say), that is logged, and it is
    tried again when the lease is over.
    """
    options = {"queue": settings.webhook_queue} if settings.webhook_queue else {}
    where = {"namespace": settings.namespace}
    try:
        with db.transaction(connection):
            connection.execute(_GIVE_UP, {**where, "most": 1 + len(DELAYS)})
            values = {**where, "lease": _LEASE, "batch": _BATCH}
            due = [(str(each), attempts) for each, attempts in connection.execute(_SEND, values)]
            if due:
                try:
                    publisher.send(connection, TASK, due, options)
                except ConfigError as error:
                    logger.error("Webhooks can't be delivered: %s", error)
    finally:
        publisher.clear()
    return len(due)


# -- delivered by a worker


@dataclass(frozen=True)
class Attempt:
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


_BEGIN_SQL = """
    UPDATE pgbeat.deliveries d
       SET attempts = d.attempts + 1, sent_at = coalesce(d.sent_at, now()),
           next_at = now() + :lease * interval '1 second',
           log = d.log || jsonb_build_object('at', now(), 'worker', CAST(:worker AS text))
      FROM pgbeat.webhooks w
     WHERE {which} AND d.state = 'pending'
       AND w.id = d.webhook_id AND w.enabled
    RETURNING d.id, d.webhook_id, w.name, d.event, w.url, w.secret,
              CASE WHEN w.previous_until > now() THEN w.previous_secret END,
              d.payload::text, d.attempts, jsonb_array_length(d.log) - 1,
              floor(extract(epoch FROM now()))::bigint
"""
_BEGIN = text(_BEGIN_SQL.format(which="d.id = CAST(:id AS uuid) AND d.attempts = :attempts"))
_BEGIN_NEXT = text(
    _BEGIN_SQL.format(
        which="""d.id = (
           SELECT u.id FROM pgbeat.deliveries u
            WHERE u.webhook_id = :webhook_id AND u.state = 'pending' AND u.sent_at IS NULL
              AND u.next_at <= now() ORDER BY u.next_at LIMIT 1 FOR UPDATE SKIP LOCKED)"""
    )
)


_SECRETS = text(
    """
    SELECT secret, CASE WHEN previous_until > now() THEN previous_secret END
      FROM pgbeat.webhooks WHERE id = :id
    """
)


def secrets(connection: Connection, webhook_id: int) -> tuple[str, ...]:
    """What a webhook is signed with now: its secret, and for a day the one before."""
    row = connection.execute(_SECRETS, {"id": webhook_id}).one()
    return tuple(secret for secret in row if secret is not None)


def begin(
    connection: Connection, delivery_id: str, attempts: int, *, worker: str
) -> Attempt | None:
    """Begins an attempt at a delivery after so many; `None` where another worker did, or there is
    nothing to deliver any more."""
    values = {"id": delivery_id, "attempts": attempts}
    return _begun(connection, _BEGIN, worker, **values)


def _begun(
    connection: Connection, statement: TextClause, worker: str, **values: object
) -> Attempt | None:
    values |= {"worker": worker, "lease": _LEASE}
    row = connection.execute(statement, values).one_or_none()
    if row is None:
        return None
    key, webhook_id, name, event, url, secret, previous, payload, number, position, moment = row
    signed_with = tuple(each for each in (secret, previous) if each is not None)
    return Attempt(
        key, webhook_id, name, event, url, signed_with, payload.encode(), number, position, moment
    )


# A webhook that fails has one slot, and twice as many with each delivery that succeeds: a receiver
# that hangs keeps no more than one worker waiting.
_SLOTS = text(
    """
    UPDATE pgbeat.webhooks
       SET slots = CASE WHEN :delivered THEN least(slots * 2, :slots) ELSE 1 END
     WHERE id = :webhook_id AND slots <> CASE WHEN :delivered THEN :slots ELSE 1 END
    """
)
# Late is as good as in time for what was delivered; of failures only the newest attempt's counts.
_END = text(
    """
    UPDATE pgbeat.deliveries
       SET state = :state, sent_at = NULL,
           finished_at = CASE WHEN :state <> 'pending' THEN now() END,
           next_at = CASE WHEN :state = 'pending' THEN now() + :delay * interval '1 second' END,
           log = coalesce(jsonb_set(log, CAST(:path AS text[]),
               (log #> CAST(:path AS text[])) || CAST(:entry AS jsonb)), log)
     WHERE id = :id AND CASE WHEN :state = 'delivered' THEN state <> 'delivered'
                        ELSE state = 'pending' AND attempts = :number END
    RETURNING state
    """
)
_NEXT = text(
    f"""
    SELECT pg_notify('{CHANNEL}', 'deliveries')
     WHERE EXISTS (SELECT FROM pgbeat.deliveries
                    WHERE webhook_id = :webhook_id AND state = 'pending' AND sent_at IS NULL
                      AND next_at <= now())
    """  # noqa: S608
)


def end(
    connection: Connection, attempt: Attempt, answer: Answer, *, go_on: str | None = None
) -> tuple[str | None, Attempt | None]:
    """Writes how an attempt came out; the delivery's state from now on: `pending` when it is tried
    again, `None` where somebody else has decided on it meanwhile.

    With `go_on`, the name of a worker, and where it was delivered, also the attempt at the next
    that the webhook has waiting, begun in the slot of this one. A receiver that says 410 has its
    webhook disabled.
    """
    state, delay = "delivered", 0.0
    if not answer.is_delivered:
        is_last = answer.is_gone or attempt.number > len(DELAYS)
        state = "failed" if is_last else "pending"
        if not is_last:
            delay = max(DELAYS[attempt.number - 1], answer.retry_after or 0.0)
    which = {"webhook_id": attempt.webhook_id}
    # The webhook before its deliveries, as those do who disable or delete it.
    slots = {**which, "delivered": answer.is_delivered, "slots": webhooks.SLOTS}
    connection.execute(_SLOTS, slots)
    entry = {"status": answer.status, "error": answer.error, "ms": answer.ms}
    values = {
        "id": attempt.id,
        "state": state,
        "delay": min(delay, _LONGEST_DELAY),
        "path": [str(attempt.position)],
        "entry": json.dumps({name: value for name, value in entry.items() if value is not None}),
        "number": attempt.number,
    }
    written: str | None = connection.scalar(_END, values)
    if answer.is_gone:
        webhooks.disable(connection, attempt.webhook_id, "its receiver answered 410 Gone")
    following = None
    if go_on is not None and answer.is_delivered:
        following = _begun(connection, _BEGIN_NEXT, go_on, **which)
    if following is None:  # the slot is for beat to fill
        connection.execute(_NEXT, which)
    return written, following


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
