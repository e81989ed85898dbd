"""Claims deliveries that are due, makes attempts, and writes their outcomes.

The leading beat's `Deliverer` claims deliveries, which begins an attempt at each, and writes the
outcomes. A delivery is due at its `next_at`. During an attempt (`sent_at` is set), this is the end
of a lease: if it passes, the beat has died and the next attempt is due. No lock and no transaction
is held during the request. Rows that another transaction has locked are left for later.
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
from pgbeat.database import connections, sql
from pgbeat.webhooks import formats, http, signing
from pgbeat.webhooks import model as webhooks
from pgbeat.webhooks.http import Reply
from pgbeat.webhooks.incidents import alerts

#: Seconds between the first, second and third failure and the next attempt.
DELAYS = (5.0, 15.0, 45.0)
# Seconds, at most, for a longer delay that the receiver asks for.
_LONGEST_DELAY = 3600.0
# Seconds for an attempt before its beat counts as dead: the timeout of the request, and the time
# that resolving a name takes at worst.
_LEASE = 60.0

_GIVE_UP = text(sql.load("outbox.sql", "give_up", reopen=webhooks.REOPEN))
_CLAIM = text(sql.load("outbox.sql", "claim"))


@dataclass(frozen=True)
class DeliveryAttempt:
    """An attempt that has begun: what to send, and with which secrets to sign it."""

    id: UUID
    webhook_id: int
    #: Its name; of check-ins, the name of their schedule.
    webhook: str
    event: str
    url: str = field(repr=False)
    secrets: tuple[str, ...] = field(repr=False)
    #: The event as JSON. `None`: a check-in, which is a GET request.
    payload: bytes | None = field(repr=False)
    origin: "Origin" = field(repr=False)
    format: str
    #: 1 for the first attempt.
    number: int
    #: The index of its entry in the delivery's log.
    position: int
    #: The time of the attempt, in seconds since 1970.
    timestamp: int

    def request(self) -> tuple[str, dict[str, str], bytes | None]:
        """Returns the URL, the headers and the body to send."""
        if self.payload is None:
            return self.url, {}, None
        return self.origin.request(
            self.url, str(self.id), self.timestamp, self.payload, self.format, self.secrets
        )


class Origin(NamedTuple):
    """Whose events these are."""

    namespace: str
    #: The console's address; empty if nobody said it.
    console: str

    def request(
        self,
        url: str,
        key: str,
        timestamp: int,
        payload: bytes,
        format: str,
        secrets: Sequence[str],
    ) -> tuple[str, dict[str, str], bytes]:
        """Returns URL, headers and body of an event: signed, or in a format of others'."""
        if formats.is_signed(format):
            return url, signing.headers(key, timestamp, payload, secrets), payload
        return formats.request(
            format, json.loads(payload), url=url, secret=secrets[0], **self._asdict()
        )


class DeliveryRoom(NamedTuple):
    """The numbers of attempts that may begin, or be under way."""

    limit: int
    #: How many of these may be of webhooks that have others under way.
    shared: int
    #: Those under way at one host included.
    per_host: int


def claim(
    connection: Connection, *, origin: Origin, worker: str, room: DeliveryRoom
) -> list[DeliveryAttempt]:
    """Begins attempts at deliveries that are due, while there is room, and returns the attempts.

    `worker` names this process in the deliveries' logs. Deliveries whose last attempt was lost
    fail, and failures of known incidents are not sent.
    """
    where = {"namespace": origin.namespace}
    alerts.take(connection, origin.namespace)
    connection.execute(_GIVE_UP, {**where, "most": 1 + len(DELAYS)})
    values = {**where, **room._asdict(), "worker": worker, "lease": _LEASE}
    batch = []
    for row in connection.execute(_CLAIM, values):
        key, webhook_id, name, event, url, secret, previous, payload, *rest = row
        signed_with = tuple(filter(None, (secret, previous)))
        event_json = None if payload is None else payload.encode()
        batch.append(
            DeliveryAttempt(
                key, webhook_id, name, event, url, signed_with, event_json, origin, *rest
            )
        )
    return batch


_SECRETS = text(
    """
    SELECT secret, CASE WHEN previous_until > now() THEN previous_secret END
      FROM pgbeat.webhooks WHERE id = :id
    """
)


def secrets(connection: Connection, webhook_id: int) -> tuple[str, ...]:
    """Returns the secret of a webhook, and for a day after a change the previous one."""
    row = connection.execute(_SECRETS, {"id": webhook_id}).one()
    return tuple(secret for secret in row if secret is not None)


_HAS_SECRET = text("SELECT secret = :secret FROM pgbeat.webhooks WHERE id = :id")


def has_secret(connection: Connection, webhook_id: int, secret: str) -> bool:
    """Returns whether that is the secret of a webhook, which is not read."""
    values = {"id": webhook_id, "secret": secret}
    return bool(connection.execute(_HAS_SECRET, values).scalar_one())


class Outcome(NamedTuple):
    """An attempt and its result."""

    attempt: DeliveryAttempt
    reply: Reply

    @property
    def delay(self) -> float | None:
        """Returns the seconds until the next attempt; `None` without one."""
        attempt, reply = self
        if reply.is_delivered or reply.is_gone or attempt.number > len(DELAYS):
            return None
        return min(max(DELAYS[attempt.number - 1], reply.retry_after or 0.0), _LONGEST_DELAY)

    @property
    def state(self) -> str:
        """Returns the new state of the delivery."""
        if self.reply.is_delivered:
            return "delivered"
        return "failed" if self.delay is None else "pending"


class _Finished(NamedTuple):
    """An outcome as a parameter of the statements."""

    id: UUID
    number: int
    position: int
    state: str
    delay: float | None
    entry: dict[str, Any]


class _Counted(NamedTuple):
    """The outcomes for one webhook."""

    id: int
    delivered: int
    has_failed: bool


_SLOTS = text(sql.load("outbox.sql", "slots"))
_FINISH = text(sql.load("outbox.sql", "finish", reopen=webhooks.REOPEN))
_LEFT = text(sql.load("outbox.sql", "left"))


def finish(connection: Connection, outcomes: Sequence[Outcome]) -> Collection[UUID]:
    """Writes the outcomes of attempts at different deliveries, in the open transaction.

    Disables a webhook whose receiver answered 410. Returns the deliveries whose rows another
    transaction has locked: the caller must write their outcomes later.
    """
    outcomes, later = _lock_gone(connection, outcomes)
    counted: dict[int, _Counted] = {}
    for attempt, reply in outcomes:
        before = counted.get(attempt.webhook_id, _Counted(attempt.webhook_id, 0, False))
        delivered = before.delivered + reply.is_delivered
        has_failed = before.has_failed or not reply.is_delivered
        counted[attempt.webhook_id] = _Counted(attempt.webhook_id, delivered, has_failed)
    # Webhooks are locked before their deliveries, as by those who disable or delete them.
    slots = {"counted": connections.recordset(counted.values()), "slots": webhooks.SLOTS}
    connection.execute(_SLOTS, slots)
    values = {"outcomes": connections.recordset([_finished(outcome) for outcome in outcomes])}
    written = {str(delivery_id) for delivery_id in connection.scalars(_FINISH, values)}
    for attempt, reply in outcomes:
        if reply.is_gone and str(attempt.id) in written:
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


def _lock_gone(
    connection: Connection, outcomes: Sequence[Outcome]
) -> tuple[list[Outcome], list[UUID]]:
    """Locks the webhooks to disable.

    Returns the outcomes that can be written now, and the deliveries of the others, whose webhooks
    another transaction has locked.
    """
    gone = {attempt.webhook_id for attempt, reply in outcomes if reply.is_gone}
    if not gone:
        return list(outcomes), []
    gone -= set(connection.scalars(_LOCK, {"ids": list(gone)}))
    now: list[Outcome] = []
    later: list[Outcome] = []
    for outcome in outcomes:
        is_later = outcome.reply.is_gone and outcome.attempt.webhook_id in gone
        (later if is_later else now).append(outcome)
    return now, [outcome.attempt.id for outcome in later]


def _finished(outcome: Outcome) -> _Finished:
    attempt, reply = outcome
    entry = {"status": reply.status, "error": reply.error, "ms": reply.ms}
    return _Finished(
        attempt.id,
        attempt.number,
        attempt.position,
        outcome.state,
        outcome.delay,
        {name: value for name, value in entry.items() if value is not None},
    )


def send_test(
    webhook: webhooks.Webhook, signed_with: tuple[str, ...], settings: Settings
) -> tuple[str, Reply]:
    """Posts a `webhook.test` event from this process at once; returns its id and the reply.

    No transaction must be open: it takes as long as the receiver needs.
    """
    moment = datetime.fromtimestamp(time.time(), UTC)
    message = {
        "type": "webhook.test",
        "timestamp": moment.isoformat().replace("+00:00", "Z"),
        "data": {"webhook": webhook.name, "namespace": settings.namespace},
    }
    key, origin = str(uuid4()), Origin(settings.namespace, settings.web_url)
    sent = origin.request(
        webhook.url,
        key,
        int(moment.timestamp()),
        json.dumps(message).encode(),
        webhook.format,
        signed_with,
    )
    return key, http.post(*sent, private=settings.webhook_private)
