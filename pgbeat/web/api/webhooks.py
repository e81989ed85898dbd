"""`/webhooks`: who is told of what happens, and whether it got there."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, ConfigDict, Field

from pgbeat.errors import InvalidJob
from pgbeat.web.api.bodies import Body, Json
from pgbeat.web.api.paging import After, Limit, cursor, moment, read
from pgbeat.web.backend import TheBackend
from pgbeat.web.identity import TheAdmin
from pgbeat.webhooks import control, deliveries
from pgbeat.webhooks import model as webhooks
from pgbeat.webhooks import outbox as webhook_outbox
from pgbeat.webhooks.deliveries import Delivery
from pgbeat.webhooks.model import EVENTS, Webhook
from pgbeat.webhooks.signing import new_secret

router = APIRouter(prefix="/webhooks", tags=["webhooks"])

WebhookName = Annotated[str, Path(max_length=200, examples=["ops"])]
_EVENTS = "Of which it is told: " + ", ".join(EVENTS) + "; or all."
_WRITTEN = "As whsec_ and base64, 24 to 64 bytes of it."


class NewWebhook(Body):
    """A webhook that is to be made."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"name": "ops", "url": "https://example.com/hook", "events": ["job.failed"]}
            ]
        }
    )

    name: str = Field(min_length=1, max_length=200)
    url: str = Field(max_length=2000)
    events: list[str] = Field(description=_EVENTS, max_length=100)
    secret: str | None = Field(
        None, max_length=200, description=f"{_WRITTEN} Made at random, if not given."
    )


class WebhookChanges(Body):
    """What is to be changed; what isn't given stays."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"events": ["all"]}]})

    url: str | None = Field(None, max_length=2000)
    events: list[str] | None = Field(None, description=_EVENTS, max_length=100)
    secret: str | None = Field(None, max_length=200, description=_WRITTEN)
    new_secret: bool = Field(False, description="Make another one, at random.")


class WebhookDisable(Body):
    """Why it is taken out of service."""

    reason: str | None = Field(None, max_length=1000)


class DeliveryCounts(BaseModel):
    """How many deliveries are kept, by state."""

    pending: int
    delivered: int
    failed: int


class FoundWebhook(BaseModel):
    """A webhook, without its secret."""

    name: str
    url: str
    events: list[str]
    enabled: bool
    disabled_reason: str | None
    is_failing: bool = Field(description="Its last delivery failed.")
    secret_hint: str = Field(description="How its secret begins and ends.")
    previous_until: datetime | None = Field(
        description="Until when the secret before this one signs too."
    )
    created_by: str | None
    created_at: datetime
    updated_at: datetime


class WebhookDetail(FoundWebhook):
    """A webhook, and how it fares."""

    deliveries: DeliveryCounts


class WebhookList(BaseModel):
    """All webhooks, by name."""

    webhooks: list[WebhookDetail]


class WebhookMade(FoundWebhook):
    """A webhook with its secret, which is not shown again."""

    secret: str | None = Field(description="Its new secret; null where it stays.")


class WebhookDone(BaseModel):
    """That it was done."""

    success: bool = True
    message: str = Field(examples=["Webhook 'ops' enabled"])


class FoundDelivery(BaseModel):
    """An event that is, or was, to be delivered."""

    id: UUID
    event: str
    payload: Json
    state: Literal["pending", "delivered", "failed"]
    attempts: int
    next_at: datetime | None
    log: list[Json] = Field(description="Of each attempt: when, and what came of it.")
    created_at: datetime
    finished_at: datetime | None


class DeliveryPage(BaseModel):
    """A page of a webhook's deliveries, the newest first."""

    deliveries: list[FoundDelivery]
    next: str | None = Field(description="For the next page; null on the last one.")


class Redelivered(BaseModel):
    """How many are delivered again."""

    success: bool = True
    message: str
    count: int


class WebhookTested(BaseModel):
    """What came of a test."""

    id: UUID
    delivered: bool
    status: int | None = Field(description="What the receiver answered.")
    error: str | None
    ms: float


def _shown(row: Webhook) -> Json:
    return row._asdict() | {"is_failing": row.enabled and row.slots == 1}


def _detail(row: Webhook, count: Mapping[str, int]) -> WebhookDetail:
    return WebhookDetail.model_validate(_shown(row) | {"deliveries": dict(count)})


# -- looked at


@router.get("", summary="List webhooks")
def list_webhooks(backend: TheBackend, caller: TheAdmin) -> WebhookList:
    """All webhooks, by name, with how many deliveries are pending or failed."""
    with backend.transaction() as connection:
        rows = webhooks.listing(connection, namespace=backend.namespace)
        counts = deliveries.counts(connection, namespace=backend.namespace)
    return WebhookList(webhooks=[_detail(row, counts[row.name]) for row in rows])


@router.get("/{name}", summary="Get a webhook")
def get_webhook(backend: TheBackend, caller: TheAdmin, name: WebhookName) -> WebhookDetail:
    """A webhook, without its secret."""
    with backend.transaction() as connection:
        row = webhooks.get(connection, name, namespace=backend.namespace)
        counts = deliveries.counts(connection, namespace=backend.namespace)
    return _detail(row, counts[name])


# -- changed


@router.post("", status_code=201, summary="Make a webhook")
def create_webhook(backend: TheBackend, caller: TheAdmin, body: NewWebhook) -> WebhookMade:
    """Makes a webhook. Its secret is in this answer alone: the receiver needs it."""
    with backend.unit(caller) as unit:
        row, secret = control.add(unit, body.name, body.url, body.events, secret=body.secret)
    return WebhookMade.model_validate(_shown(row) | {"secret": secret})


@router.patch("/{name}", summary="Change a webhook")
def update_webhook(
    backend: TheBackend, caller: TheAdmin, name: WebhookName, body: WebhookChanges
) -> WebhookMade:
    """Changes what is given. With another secret, the one before signs too for a day."""
    if body.new_secret and body.secret is not None:
        raise InvalidJob.of("new_secret", "conflict", "secret and new_secret exclude each other")
    secret = new_secret() if body.new_secret else body.secret
    given: dict[str, Any] = {"url": body.url, "events": body.events, "secret": secret}
    if all(value is None for value in given.values()):
        raise InvalidJob.of(
            "", "required", "there is nothing to change; give url, events, secret or new_secret"
        )
    with backend.unit(caller) as unit:
        row = control.edit(unit, name, **given)
    return WebhookMade.model_validate(_shown(row) | {"secret": secret})


@router.delete("/{name}", summary="Delete a webhook")
def delete_webhook(backend: TheBackend, caller: TheAdmin, name: WebhookName) -> WebhookDone:
    """Deletes a webhook with its deliveries."""
    with backend.unit(caller) as unit:
        control.remove(unit, name)
    return WebhookDone(message=f"Webhook '{name}' deleted")


@router.post("/{name}/enable", summary="Enable a webhook")
def enable_webhook(backend: TheBackend, caller: TheAdmin, name: WebhookName) -> WebhookDone:
    """Has it told of what happens from now on."""
    with backend.unit(caller) as unit:
        control.enable(unit, name)
    return WebhookDone(message=f"Webhook '{name}' enabled")


@router.post("/{name}/disable", summary="Disable a webhook")
def disable_webhook(
    backend: TheBackend,
    caller: TheAdmin,
    name: WebhookName,
    body: WebhookDisable | None = None,
) -> WebhookDone:
    """Has it told of nothing more: what was to be delivered fails."""
    with backend.unit(caller) as unit:
        control.disable(unit, name, None if body is None else body.reason)
    return WebhookDone(message=f"Webhook '{name}' disabled")


# -- deliveries


@router.get("/{name}/deliveries", summary="List a webhook's deliveries")
def list_deliveries(
    backend: TheBackend,
    caller: TheAdmin,
    name: WebhookName,
    state: Annotated[Literal["pending", "delivered", "failed"] | None, Query()] = None,
    limit: Limit = 50,
    after: After = None,
) -> DeliveryPage:
    """A webhook's deliveries, the newest first, with what came of each attempt."""
    before = None if after is None else read(after, moment, UUID)
    with backend.transaction() as connection:
        webhook = webhooks.get(connection, name, namespace=backend.namespace)
        rows = deliveries.listing(
            connection, webhook.id, state=state, before=before, limit=limit + 1
        )
    last = rows[limit - 1] if len(rows) > limit else None
    return DeliveryPage(
        deliveries=[FoundDelivery.model_validate(_delivery(row)) for row in rows[:limit]],
        next=None if last is None else cursor(last.created_at, last.id),
    )


def _delivery(row: Delivery) -> Json:
    return row._asdict()


@router.post("/{name}/redeliver", summary="Deliver again what failed")
def redeliver_failed(backend: TheBackend, caller: TheAdmin, name: WebhookName) -> Redelivered:
    """Delivers again all of a webhook's that failed, with as many attempts as the first time."""
    with backend.unit(caller) as unit:
        count = control.redeliver_failed(unit, name)
    return _redelivered(count)


@router.post("/{name}/deliveries/{delivery_id}/redeliver", summary="Deliver again")
def redeliver_delivery(
    backend: TheBackend,
    caller: TheAdmin,
    name: WebhookName,
    delivery_id: Annotated[UUID, Path()],
) -> Redelivered:
    """Delivers one again that was delivered, or failed."""
    with backend.unit(caller) as unit:
        count = control.redeliver(unit, [delivery_id], webhook=name)
    return _redelivered(count)


def _redelivered(count: int) -> Redelivered:
    what = "1 delivery is" if count == 1 else f"{count} deliveries are"
    return Redelivered(message=f"{what} tried again", count=count)


@router.post("/{name}/test", summary="Send a test event")
def send_test(backend: TheBackend, caller: TheAdmin, name: WebhookName) -> WebhookTested:
    """Sends a signed `webhook.test` event from here, at once, and waits for the answer."""
    with backend.unit(caller) as unit:
        webhook, signed_with = control.begin_test(unit, name)
    key, answer = webhook_outbox.send_test(webhook, signed_with, backend.settings)
    return WebhookTested(
        id=UUID(key),
        delivered=answer.is_delivered,
        status=answer.status,
        error=answer.error,
        ms=answer.ms,
    )
