"""Reads and repeats deliveries: events on their way to webhooks.

The database inserts them in the transaction in which the event happens. A delivery is `pending`
until the receiver has it (`delivered`) or has not accepted it in four attempts (`failed`).
`pgbeat.webhooks.outbox` makes the attempts.
"""

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import Connection, select, text, tuple_

from pgbeat.database import channels, sql
from pgbeat.database.tables import deliveries
from pgbeat.database.tables import webhooks as webhooks_table
from pgbeat.errors import InvalidJob, NotFound
from pgbeat.jobs.rows import ids
from pgbeat.names import NAMESPACE
from pgbeat.webhooks import model as webhooks


class Delivery(NamedTuple):
    """A row of `pgbeat.deliveries`."""

    id: UUID
    webhook_id: int
    event: str
    #: The JSON to send.
    payload: dict[str, Any]
    state: str
    #: Attempts begun since it was created, or last repeated.
    attempts: int
    #: When the leading beat makes an attempt, or gives up the current one; `None` at the end.
    next_at: datetime | None
    #: When the current attempt began.
    sent_at: datetime | None
    #: For each attempt `at`, and after it `status`, `error`, `ms`.
    log: list[dict[str, Any]]
    created_at: datetime
    finished_at: datetime | None


class Redelivered(NamedTuple):
    """Deliveries of a webhook that are repeated."""

    webhook: str
    number: int
    ids: Collection[UUID] = ()

    @property
    def audited(self) -> tuple[str, str, dict[str, Any]]:
        """Returns what the audit log records of it."""
        ids = [*map(str, self.ids)][:100] or None
        return "webhook", self.webhook, {"count": self.number, "deliveries": ids}


_COLUMNS = [deliveries.c[name] for name in Delivery._fields]


def listing(
    connection: Connection,
    webhook_id: int,
    *,
    state: str | None = None,
    before: tuple[datetime, UUID] | None = None,
    limit: int = 20,
) -> list[Delivery]:
    """Returns a webhook's deliveries, the newest first.

    For the next page, `before` is (`created_at`, `id`) of the last delivery.
    """
    query = select(*_COLUMNS).where(deliveries.c.webhook_id == webhook_id)
    if state is not None:
        query = query.where(deliveries.c.state == state)
    if before is not None:
        query = query.where(tuple_(deliveries.c.created_at, deliveries.c.id) < tuple_(*before))
    query = query.order_by(deliveries.c.created_at.desc(), deliveries.c.id.desc()).limit(limit)
    return [Delivery(*row) for row in connection.execute(query)]


def find(connection: Connection, beginning: str, *, namespace: str) -> UUID:
    """Returns the id of the delivery that begins so. Raises `NotFound` as `ids.find`."""
    of_namespace = select(webhooks_table.c.id).where(webhooks_table.c.namespace == namespace)
    which = deliveries.c.webhook_id.in_(of_namespace)
    about = (deliveries.c.event, deliveries.c.state)
    return ids.find(connection, deliveries, beginning, "delivery", which, about=about)


_COUNTS = text(sql.load("deliveries.sql", "counts"))


def counts(
    connection: Connection, *, namespace: str = NAMESPACE
) -> Mapping[str, Mapping[str, int]]:
    """Returns how many deliveries of each webhook are `pending`, `delivered` and `failed`."""
    return {
        name: {"pending": pending, "delivered": total - pending - failed, "failed": failed}
        for name, total, pending, failed in connection.execute(_COUNTS, {"namespace": namespace})
    }


_REPEAT = text(sql.load("deliveries.sql", "repeat"))
_FIND = text(
    """
    SELECT d.id, d.state, w.name, w.enabled
      FROM pgbeat.deliveries d JOIN pgbeat.webhooks w ON w.id = d.webhook_id
     WHERE d.id = ANY (CAST(:ids AS uuid[])) AND w.namespace = :namespace
    """
)
_NOTIFY = text("SELECT pg_notify(:channel, 'deliveries')").bindparams(channel=channels.SCHEDULES)


def redeliver(
    connection: Connection,
    delivery_ids: Collection[UUID],
    *,
    by: str,
    namespace: str = NAMESPACE,
    webhook: str | None = None,
) -> dict[str, list[UUID]]:
    """Repeats deliveries that were delivered or failed, with as many attempts as at first.

    Returns them by the names of their webhooks. Raises `NotFound`, also if one is not of the given
    `webhook`, and `InvalidJob` if one is pending or its webhook is disabled. Then none is repeated.
    """
    which = {"ids": [*map(str, delivery_ids)], "namespace": namespace}
    rows = {row.id: row for row in connection.execute(_FIND, which)}
    repeated: dict[str, list[UUID]] = {}
    for delivery_id in dict.fromkeys(delivery_ids):
        row = rows.get(delivery_id)
        if row is None or webhook not in (None, row.name):
            owner = "there is" if webhook is None else f"webhook {webhook!r} has"
            raise NotFound(f"{owner} no delivery {delivery_id}")
        if not row.enabled:
            raise InvalidJob(_disabled(row.name))
        if row.state == "pending":
            message = f"delivery {row.id} is pending: pgbeat tries it again"
            raise InvalidJob.of("", "pending", message)
        repeated.setdefault(row.name, []).append(delivery_id)
    _repeat(connection, {**which, "webhook_id": None, "by": by})
    return repeated


def redeliver_failed(connection: Connection, name: str, *, by: str, namespace: str) -> int:
    """Repeats all failed deliveries of a webhook, and returns how many.

    Raises `NotFound`, and `InvalidJob` if the webhook is disabled.
    """
    webhook = webhooks.get(connection, name, namespace=namespace)
    if not webhook.enabled:
        raise InvalidJob(_disabled(name))
    values = {"ids": [], "namespace": namespace, "webhook_id": webhook.id, "by": by}
    return _repeat(connection, values)


def _repeat(connection: Connection, values: Mapping[str, Any]) -> int:
    count = connection.execute(_REPEAT, values).rowcount
    if count:
        connection.execute(_NOTIFY)
    return count


def _disabled(name: str) -> str:
    return f"webhook {name!r} is disabled; `pgbeat webhooks enable` puts it back in service first"
