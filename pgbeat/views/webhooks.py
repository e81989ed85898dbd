"""Webhooks and their deliveries."""

from collections.abc import Iterator, Mapping
from datetime import datetime

from pgbeat.views import View
from pgbeat.webhooks.deliveries import Delivery
from pgbeat.webhooks.http import Reply
from pgbeat.webhooks.incidents.model import Incident
from pgbeat.webhooks.model import Webhook


def webhook(row: Webhook) -> View:
    """Returns a webhook, which fails if its last delivery did."""
    columns = {name: value for name, value in row._asdict().items() if name not in ("id", "slots")}
    return columns | {"is_failing": row.enabled and row.slots == 1}


def filters(row: Webhook) -> Iterator[str]:
    """Yields what the events are of, in words; nothing if they are of everything."""
    if row.schedules:
        yield f"schedules {', '.join(row.schedules)}"
    if row.tasks:
        yield f"tasks {', '.join(row.tasks)}"
    if row.labels:
        yield f"labels {', '.join(f'{name}={value}' for name, value in row.labels.items())}"


def counted(row: Webhook, count: Mapping[str, int]) -> View:
    """Returns a webhook with counts of its deliveries."""
    return webhook(row) | {"deliveries": dict(count)}


def delivery(row: Delivery) -> View:
    """Returns a delivery."""
    columns = {name: value for name, value in row._asdict().items() if name != "webhook_id"}
    return columns | {"log": [e | {"at": datetime.fromisoformat(e["at"])} for e in row.log]}


def incident(row: Incident) -> View:
    """Returns an open incident of a webhook."""
    hidden = ("webhook_id", "made_at")
    return {name: value for name, value in row._asdict().items() if name not in hidden}


def tested(key: str, answer: Reply) -> View:
    """Returns the outcome of a test."""
    return {"id": key, "delivered": answer.is_delivered} | answer._asdict()
