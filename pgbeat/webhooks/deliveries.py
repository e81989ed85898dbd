"""Deliveries: the outbox of webhooks. The database writes them in the transaction of what happened.

A delivery is `pending` until the receiver has it (`delivered`) or has not taken it after four
attempts (`failed`). How it gets there is `pgbeat.webhooks.outbox`'s.
"""

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import Connection, select, text, tuple_

from pgbeat.database import channels
from pgbeat.database.tables import deliveries
from pgbeat.errors import InvalidJob, NotFound
from pgbeat.names import NAMESPACE
from pgbeat.webhooks import model as webhooks


class Delivery(NamedTuple):
    """A row of `pgbeat.deliveries`."""

    id: UUID
    webhook_id: int
    event: str
    #: The JSON that is sent.
    payload: dict[str, Any]
    state: str
    #: Attempts begun, since it was last asked for.
    attempts: int
    #: When the leading beat tries it, or counts an attempt under way as lost; `None` when finished.
    next_at: datetime | None
    #: When the attempt that is under way began.
    sent_at: datetime | None
    #: Of each attempt: `at`, and `status`, `error`, `ms` when it is over.
    log: list[dict[str, Any]]
    created_at: datetime
    finished_at: datetime | None


class Redelivered(NamedTuple):
    """Deliveries of a webhook that are tried again."""

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
    """A webhook's deliveries, newest first. For the next page, `before` is (`created_at`, `id`) of
    the last one."""
    query = select(*_COLUMNS).where(deliveries.c.webhook_id == webhook_id)
    if state is not None:
        query = query.where(deliveries.c.state == state)
    if before is not None:
        query = query.where(tuple_(deliveries.c.created_at, deliveries.c.id) < tuple_(*before))
    query = query.order_by(deliveries.c.created_at.desc(), deliveries.c.id.desc()).limit(limit)
    return [Delivery(*row) for row in connection.execute(query)]


def is_of(connection: Connection, delivery_id: UUID, webhook_id: int) -> bool:
    """Returns whether there is that delivery, and it is that webhook's."""
    query = select(deliveries.c.webhook_id).where(deliveries.c.id == delivery_id)
    return connection.scalar(query) == webhook_id


_COUNTS = text(
    """
    SELECT w.name,
           (SELECT count(*) FROM pgbeat.deliveries d WHERE d.webhook_id = w.id),
           (SELECT count(*) FROM pgbeat.deliveries d
             WHERE d.webhook_id = w.id AND d.state = 'pending'),
           (SELECT count(*) FROM pgbeat.deliveries d
             WHERE d.webhook_id = w.id AND d.state = 'failed')
      FROM pgbeat.webhooks w WHERE w.namespace = :namespace
    """
)


def counts(
    connection: Connection, *, namespace: str = NAMESPACE
) -> Mapping[str, Mapping[str, int]]:
    """How many deliveries of each webhook (name) are `pending`, `delivered` and `failed`, of those
    that are kept."""
    return {
        name: {"pending": pending, "delivered": total - pending - failed, "failed": failed}
        for name, total, pending, failed in connection.execute(_COUNTS, {"namespace": namespace})
    }


# -- asked for again

_AGAIN = text(
    """
    UPDATE pgbeat.deliveries d
       SET state = 'pending', attempts = 0, next_at = now(), finished_at = NULL,
           log = log || jsonb_build_object('at', now(), 'redelivered_by', CAST(:by AS text))
      FROM pgbeat.webhooks w
     WHERE w.id = d.webhook_id AND w.namespace = :namespace AND d.state <> 'pending'
       AND (d.id = ANY (CAST(:ids AS uuid[]))
            OR d.webhook_id = CAST(:webhook_id AS bigint) AND d.state = 'failed')
    RETURNING d.id
    """
)
_FIND = text(
    """
    SELECT d.id, d.state, w.name, w.enabled
      FROM pgbeat.deliveries d JOIN pgbeat.webhooks w ON w.id = d.webhook_id
     WHERE d.id = ANY (CAST(:ids AS uuid[])) AND w.namespace = :namespace
    """
)
_TELL = text(f"SELECT pg_notify('{channels.SCHEDULES}', 'deliveries')")


def redeliver(
    connection: Connection, delivery_ids: Collection[str], *, by: str, namespace: str = NAMESPACE
) -> int:
    """Delivers again what was delivered, or failed, with its id and as many attempts as the first
    time; how many those are.

    Raises `NotFound` for an id that is none, `InvalidJob` for those that are being tried still and
    those of a webhook that is disabled. Nothing is changed then.
    """
    wanted = dict.fromkeys(_uuid(each) for each in delivery_ids)
    which = {"ids": [str(each) for each in wanted], "namespace": namespace}
    found = {row.id: row for row in connection.execute(_FIND, which)}
    missing = [str(each) for each in wanted if each not in found]
    if missing:
        raise NotFound(f"there is no delivery {', '.join(missing[:5])}")
    for row in found.values():
        if not row.enabled:
            raise InvalidJob(_disabled(row.name))
        if row.state == "pending":
            raise InvalidJob.of(
                "", "pending", f"delivery {row.id} is pending: it is tried again by itself"
            )
    return _again(connection, {**which, "webhook_id": None, "by": by})


def webhooks_of(
    connection: Connection, delivery_ids: Collection[UUID], *, namespace: str
) -> dict[str, list[UUID]]:
    """Returns the deliveries by their webhooks' names."""
    which = {"ids": [*map(str, delivery_ids)], "namespace": namespace}
    found: dict[str, list[UUID]] = {}
    for row in connection.execute(_FIND, which):
        found.setdefault(row.name, []).append(row.id)
    return found


def redeliver_failed(connection: Connection, name: str, *, by: str, namespace: str) -> int:
    """Delivers again all of a webhook's that failed; how many those are.

    Raises `NotFound`, and `InvalidJob` for a webhook that is disabled.
    """
    webhook = webhooks.get(connection, name, namespace=namespace)
    if not webhook.enabled:
        raise InvalidJob(_disabled(name))
    values = {"ids": [], "namespace": namespace, "webhook_id": webhook.id, "by": by}
    return _again(connection, values)


def _again(connection: Connection, values: Mapping[str, Any]) -> int:
    count = connection.execute(_AGAIN, values).rowcount
    if count:
        connection.execute(_TELL)
    return count


def _disabled(name: str) -> str:
    return f"webhook {name!r} is disabled; `pgbeat webhooks enable` puts it back in service first"


def _uuid(text: str) -> UUID:
    try:
        return UUID(str(text))
    except ValueError:
        raise NotFound(f"{text!r} is no delivery's id; ids are UUIDs") from None
