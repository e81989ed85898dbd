"""Reads and disables webhooks: URLs to which events are posted.

The rows that this returns hold no secrets. Only `pgbeat.webhooks.outbox` reads those.
"""

from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, case, func, select, text

from pgbeat.database.missing import missing
from pgbeat.database.tables import EVENTS as EVENTS
from pgbeat.database.tables import webhooks
from pgbeat.names import NAMESPACE
from pgbeat.webhooks.formats import WITH_SECRET

#: Deliveries of a webhook under way at once, while they succeed. After a failure, there is one.
SLOTS = 8


class Webhook(NamedTuple):
    """A row of `pgbeat.webhooks`, without its secret."""

    id: int
    namespace: str
    name: str
    url: str
    events: list[str]
    format: str
    enabled: bool
    #: By whom or what it was disabled, and why.
    disabled_reason: str | None
    #: Deliveries under way at once, at most.
    slots: int
    created_by: str | None
    created_at: datetime
    updated_at: datetime
    #: The beginning and the end of its secret; `None` if its format has none.
    secret_hint: str | None
    #: Until when the previous secret signs as well.
    previous_until: datetime | None

    @property
    def audited(self) -> tuple[str, str, dict[str, Any]]:
        """Returns what the audit log records of it."""
        return "webhook", self.name, {name: getattr(self, name) for name in _AUDITED}


_AUDITED = (
    "url",
    "events",
    "format",
    "enabled",
    "disabled_reason",
    "secret_hint",
    "previous_until",
    "created_by",
)
_ENDS = func.left(webhooks.c.secret, 6).op("||")("…").op("||")(func.right(webhooks.c.secret, 4))
_HINT = case((webhooks.c.format.in_(WITH_SECRET), _ENDS))
COLUMNS = [
    _HINT.label(name) if name == "secret_hint" else webhooks.c[name] for name in Webhook._fields
]


def _is_of(namespace: str) -> ColumnElement[bool]:
    """Returns the SQL condition that selects the webhooks that people made."""
    return (webhooks.c.namespace == namespace) & webhooks.c.schedule_id.is_(None)


def is_webhook(name: str, namespace: str) -> ColumnElement[bool]:
    """Returns the SQL condition that selects a webhook."""
    return (webhooks.c.name == name) & _is_of(namespace)


def get(
    connection: Connection, name: str, *, namespace: str = NAMESPACE, for_update: bool = False
) -> Webhook:
    """Returns the webhook with that name. Raises `NotFound`, with the most similar name."""
    query = select(*COLUMNS).where(is_webhook(name, namespace))
    row = connection.execute(query.with_for_update() if for_update else query).one_or_none()
    if row is None:
        raise missing(connection, "webhook", name, namespace=namespace)
    return Webhook(*row)


def listing(connection: Connection, *, namespace: str = NAMESPACE) -> list[Webhook]:
    """Returns all webhooks, by name."""
    query = select(*COLUMNS).where(_is_of(namespace)).order_by(webhooks.c.name)
    return [Webhook(*row) for row in connection.execute(query)]


_DISABLE = text(
    """
    UPDATE pgbeat.webhooks SET enabled = false, disabled_reason = :reason, updated_at = now()
     WHERE id = :id AND enabled
    """
)
_STOP = text(
    """
    UPDATE pgbeat.deliveries
       SET state = 'failed', finished_at = now(), next_at = NULL, sent_at = NULL,
           log = log || jsonb_build_object('at', now(), 'error', 'the webhook was disabled')
     WHERE webhook_id = :id AND state = 'pending'
    """
)


def disable(connection: Connection, webhook_id: int, reason: str) -> bool:
    """Disables a webhook: its pending deliveries fail. Returns whether it was enabled."""
    values = {"id": webhook_id, "reason": reason}
    was_enabled = connection.execute(_DISABLE, values).rowcount > 0
    connection.execute(_STOP, {"id": webhook_id})
    return was_enabled
