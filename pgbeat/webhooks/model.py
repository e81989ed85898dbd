"""Reads and disables webhooks: URLs to which events are posted.

The rows that this returns hold no secrets. Only `pgbeat.webhooks.outbox` reads those.
"""

from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Connection, case, func, select, text

from pgbeat.database import sql
from pgbeat.database.named_rows import NamedRows
from pgbeat.database.tables import EVENTS as EVENTS
from pgbeat.database.tables import incidents, webhooks
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
    #: Whether it gets the failures of an incident at growing intervals and its end, or else each.
    per_incident: bool
    #: What the events are of: all these labels, and globs of names. Empty ones filter nothing.
    labels: dict[str, str]
    schedules: list[str]
    tasks: list[str]
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
    #: How many incidents are open of which it was told.
    open_incidents: int

    @property
    def audited(self) -> tuple[str, str, dict[str, Any]]:
        """Returns what the audit log records of it."""
        return "webhook", self.name, {name: getattr(self, name) for name in _AUDITED}


_AUDITED = (
    "url",
    "events",
    "format",
    "per_incident",
    "labels",
    "schedules",
    "tasks",
    "enabled",
    "disabled_reason",
    "secret_hint",
    "previous_until",
    "created_by",
)
_ENDS = func.left(webhooks.c.secret, 6).op("||")("…").op("||")(func.right(webhooks.c.secret, 4))
_HINT = case((webhooks.c.format.in_(WITH_SECRET), _ENDS))
_OPEN = select(func.count()).where(incidents.c.webhook_id == webhooks.c.id).scalar_subquery()
_COMPUTED = {"secret_hint": _HINT, "open_incidents": _OPEN}
COLUMNS = [
    _COMPUTED[name].label(name) if name in _COMPUTED else webhooks.c[name]
    for name in Webhook._fields
]


_rows = NamedRows("webhook", Webhook, COLUMNS)
get, listing, is_webhook = _rows.get, _rows.listing, _rows.is_named


_DISABLE = text(
    """
    UPDATE pgbeat.webhooks SET enabled = false, disabled_reason = :reason, updated_at = now()
     WHERE id = :id AND enabled
    """
)
_STOP = text(sql.load("deliveries.sql", "stop"))
#: Part of a statement that has the deliveries `given_up`.
REOPEN = sql.load("deliveries.sql", "reopen")


def disable(connection: Connection, webhook_id: int, reason: str) -> bool:
    """Disables a webhook: its pending deliveries fail. Returns whether it was enabled."""
    values = {"id": webhook_id, "reason": reason}
    was_enabled = connection.execute(_DISABLE, values).rowcount > 0
    connection.execute(_STOP, {"id": webhook_id})
    return was_enabled
