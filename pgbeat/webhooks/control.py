"""Control of webhooks: what people do with them, a function for each verb, in a unit of work."""

from collections.abc import Collection, Sequence
from uuid import UUID

from pgbeat.broker.publishing.unit_of_work import UnitOfWork
from pgbeat.errors import NotFound
from pgbeat.webhooks import deliveries, outbox
from pgbeat.webhooks import model as webhooks
from pgbeat.webhooks.deliveries import Redelivered
from pgbeat.webhooks.model import EVENTS, Webhook


def add(
    unit: UnitOfWork, name: str, url: str, events: Sequence[str], *, secret: str | None = None
) -> tuple[Webhook, str]:
    """Adds a webhook, for the events named, or `all`. Returns it, and its secret, which is random
    unless given and can't be read again. Raises `InvalidJob` or `AlreadyExists`."""
    row, secret = webhooks.add(
        unit.connection, name, url, _all(events), namespace=unit.namespace, secret=secret,
        created_by=unit.actor.name, private=unit.settings.webhook_private,
    )  # fmt: skip
    unit.record("create", None, row)
    return row, secret


def edit(
    unit: UnitOfWork,
    name: str,
    *,
    url: str | None = None,
    events: Sequence[str] | None = None,
    secret: str | None = None,
) -> Webhook:
    """Changes what is given. With another secret, the one before signs too for a day. Raises
    `InvalidJob` or `NotFound`."""
    before = _locked(unit, name)
    row = webhooks.edit(
        unit.connection, name, namespace=unit.namespace, url=url,
        events=None if events is None else _all(events), secret=secret,
        private=unit.settings.webhook_private,
    )  # fmt: skip
    unit.record("update", before, row)
    return row


def _all(events: Sequence[str]) -> Sequence[str]:
    return EVENTS if tuple(events) == ("all",) else events


def _locked(unit: UnitOfWork, name: str) -> Webhook:
    return webhooks.get(unit.connection, name, namespace=unit.namespace, for_update=True)


def remove(unit: UnitOfWork, name: str) -> None:
    """Deletes a webhook with its deliveries. Raises `NotFound`."""
    before = _locked(unit, name)
    webhooks.remove(unit.connection, name, namespace=unit.namespace)
    unit.record("delete", before, None)


def enable(unit: UnitOfWork, name: str) -> tuple[Webhook, bool]:
    """Has events posted to a webhook from now on. Returns it, and whether it was disabled. Raises
    `NotFound`."""
    before = _locked(unit, name)
    if before.enabled:
        return before, False
    row = webhooks.enable(unit.connection, name, namespace=unit.namespace)
    unit.record("enable", before, row)
    return row, True


def disable(unit: UnitOfWork, name: str, reason: str | None = None) -> tuple[Webhook, bool]:
    """Takes a webhook out of service: deliveries that were pending fail. Returns it, and whether it
    was enabled. Raises `NotFound`."""
    before = _locked(unit, name)
    why = f"disabled by {unit.actor.name}" + (f": {reason}" if reason else "")
    was_enabled = webhooks.disable(unit.connection, before.id, why)
    row = webhooks.get(unit.connection, name, namespace=unit.namespace)
    unit.record("disable", before, row)
    return row, was_enabled


def redeliver(unit: UnitOfWork, ids: Collection[UUID], *, webhook: str | None = None) -> int:
    """Delivers again what was delivered or failed; returns how many those are.

    Raises `NotFound`, also for one that is not of the `webhook`, and `InvalidJob`.
    """
    connection, namespace = unit.connection, unit.namespace
    if webhook is not None:
        row = webhooks.get(connection, webhook, namespace=namespace)
        for each in ids:
            if not deliveries.is_of(connection, each, row.id):
                raise NotFound(f"webhook {webhook!r} has no delivery {each}")
    by = unit.actor.name
    count = deliveries.redeliver(connection, [*map(str, ids)], by=by, namespace=namespace)
    for name, own in deliveries.webhooks_of(connection, ids, namespace=namespace).items():
        unit.record("redeliver", None, Redelivered(name, len(own), own))
    return count


def redeliver_failed(unit: UnitOfWork, name: str) -> int:
    """Delivers again all of a webhook's that failed; returns how many those are. Raises
    `NotFound` and `InvalidJob`."""
    count = deliveries.redeliver_failed(
        unit.connection, name, by=unit.actor.name, namespace=unit.namespace
    )
    if count:
        unit.record("redeliver", None, Redelivered(name, count))
    return count


def begin_test(unit: UnitOfWork, name: str) -> tuple[Webhook, tuple[str, ...]]:
    """Records a test of a webhook. Returns it with the secrets to sign with, for
    `outbox.send_test` after the commit. Raises `NotFound`."""
    row = webhooks.get(unit.connection, name, namespace=unit.namespace)
    unit.record_action("test", "webhook", name, None, {"url": row.url})
    return row, outbox.secrets(unit.connection, row.id)
