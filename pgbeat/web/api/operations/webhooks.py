"""`/webhooks`: webhooks and their deliveries."""

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, Field

from pgbeat.views import webhooks as views
from pgbeat.web.api.bodies import Body, Done, Json, Next, example, of_row
from pgbeat.web.api.paging import After, Limit, moment, read, split
from pgbeat.web.calls import AdminCall
from pgbeat.webhooks import control, deliveries
from pgbeat.webhooks import model as webhooks
from pgbeat.webhooks import outbox as webhook_outbox
from pgbeat.webhooks.formats import Format, is_signed
from pgbeat.webhooks.incidents import model as incidents
from pgbeat.webhooks.model import EVENTS

router = APIRouter(prefix="/webhooks", tags=["webhooks"])

WebhookName = Annotated[str, Path(max_length=200, examples=["ops"])]
DeliveryState = Literal["pending", "delivered", "failed"]
_NOUNS = ("schedules", "tasks")
_EVENTS = f"The events to deliver: {', '.join(EVENTS)}; or all."
_PER_INCIDENT = (
    "Send failures of one schedule or task at growing intervals, and when it is well again; "
    "otherwise each failure."
)
_SCHEDULES, _TASKS = (f"Globs: events of {noun} with such a name only." for noun in _NOUNS)
_LABELS = "Events of schedules and jobs with all these labels only."
_WRITTEN = "whsec_ and 24 to 64 bytes in base64."


class NewWebhook(Body):
    """A new webhook."""

    model_config = example(
        {"name": "ops", "url": "https://example.com/hook", "events": ["job.failed"]}
    )

    name: str = Field(min_length=1, max_length=200)
    url: str = Field(max_length=2000)
    events: list[str] = Field(description=_EVENTS, max_length=100)
    format: Format = Field(
        "standard", description="What is sent: the event, signed, or a message for people."
    )
    per_incident: bool | None = Field(
        None, description=f"{_PER_INCIDENT} By default, for formats other than standard."
    )
    labels: dict[str, str] | None = Field(None, description=_LABELS)
    schedules: list[str] | None = Field(None, description=_SCHEDULES)
    tasks: list[str] | None = Field(None, description=_TASKS)
    secret: str | None = Field(
        None,
        max_length=200,
        description=f"{_WRITTEN} By default, a random one. For pagerduty and opsgenie, "
        "the service's key.",
    )


class WebhookChanges(Body):
    """Changes of a webhook."""

    model_config = example({"events": ["all"]})

    url: str | None = Field(None, max_length=2000)
    events: list[str] | None = Field(None, description=_EVENTS, max_length=100)
    per_incident: bool | None = Field(None, description=_PER_INCIDENT)
    labels: dict[str, str] | None = Field(None, description=_LABELS)
    schedules: list[str] | None = Field(None, description=_SCHEDULES)
    tasks: list[str] | None = Field(None, description=_TASKS)
    secret: str | None = Field(None, max_length=200, description=_WRITTEN)
    new_secret: bool = Field(False, description="Replace the secret by a random one.")


class WebhookDisable(Body):
    """The reason to disable a webhook."""

    reason: str | None = Field(None, max_length=1000)


class DeliveryCounts(BaseModel):
    """How many deliveries are kept, by state."""

    pending: int
    delivered: int
    failed: int


@of_row(webhooks.Webhook, ("id", "slots"))
class FoundWebhook(BaseModel):
    """A webhook, without its secret."""

    format: Format
    is_failing: bool = Field(description="Its last delivery failed.")
    per_incident: bool = Field(description=_PER_INCIDENT)
    open_incidents: int = Field(description="What fails at present of which it was told.")
    secret_hint: str | None = Field(
        description="The beginning and end of its secret; null if its format has none."
    )
    previous_until: datetime | None = Field(
        description="When deliveries are no longer signed with the previous secret too."
    )


class WebhookDetail(FoundWebhook):
    """A webhook with counts of its deliveries."""

    deliveries: DeliveryCounts


class WebhookList(BaseModel):
    """All webhooks, by name."""

    webhooks: list[WebhookDetail]


class WebhookMade(FoundWebhook):
    """A webhook with its secret, which is not shown again."""

    secret: str | None = Field(description="Its new secret; null if there is none.")


@of_row(deliveries.Delivery, ("webhook_id",))
class FoundDelivery(BaseModel):
    """An event for a webhook, delivered or not."""

    state: DeliveryState
    sent_at: datetime | None = Field(description="When an attempt that is under way began.")
    log: list[Json] = Field(description="The time and outcome of each attempt.")


class DeliveryPage(BaseModel):
    """A page of a webhook's deliveries, the newest first."""

    deliveries: list[FoundDelivery]
    next: Next


@of_row(incidents.Incident, ("webhook_id", "made_at"))
class FoundIncident(BaseModel):
    """What fails at present, of which a webhook was told."""

    kind: incidents.Kind
    name: str = Field(description="Of the schedule, or of the task without one.")
    events: list[str] = Field(description="That were its failures.")
    failures: int = Field(description="How many there were.")
    alerts: int = Field(description="How many of these were sent.")
    failed_at: datetime = Field(description="When it last failed.")
    next_alert_at: datetime = Field(
        description="Failures before that are not sent, if the webhook gets one alert per incident."
    )


class IncidentPage(BaseModel):
    """A page of a webhook's open incidents, the oldest first."""

    incidents: list[FoundIncident]
    next: Next


class RedeliveryDone(Done):
    """Confirms how many events are delivered again."""

    count: int


class WebhookDeleted(Done):
    """Confirms a deletion."""

    open_incidents: int = Field(description="Those of whose end its receiver is not told.")


class WebhookTested(BaseModel):
    """The outcome of a test."""

    id: UUID
    delivered: bool
    status: int | None = Field(description="The status of the receiver's response.")
    error: str | None
    ms: float
    retry_after: float | None = Field(description="Seconds that the receiver asks for.")


# -- reading


@router.get("", summary="List webhooks")
def list_webhooks(call: AdminCall) -> WebhookList:
    """Lists all webhooks by name, with counts of their deliveries."""
    with call.backend.transaction() as connection:
        rows = webhooks.listing(connection, namespace=call.namespace)
        counts = deliveries.counts(connection, namespace=call.namespace)
    return WebhookList(
        webhooks=[
            WebhookDetail.model_validate(views.counted(row, counts[row.name])) for row in rows
        ]
    )


@router.get("/{name}", summary="Get a webhook")
def get_webhook(call: AdminCall, name: WebhookName) -> WebhookDetail:
    """Returns a webhook without its secret."""
    with call.backend.transaction() as connection:
        row = webhooks.get(connection, name, namespace=call.namespace)
        counts = deliveries.counts(connection, namespace=call.namespace)
    return WebhookDetail.model_validate(views.counted(row, counts[name]))


# -- changing


@router.post("", status_code=201, summary="Create a webhook")
def create_webhook(call: AdminCall, body: NewWebhook) -> WebhookMade:
    """Creates a webhook. Only this response has its secret, which the receiver needs."""
    with call.unit() as unit:
        row, secret = control.add(unit, **body.model_dump())
    shown = secret if is_signed(row.format) else None
    return WebhookMade.model_validate(views.webhook(row) | {"secret": shown})


@router.patch("/{name}", summary="Change a webhook")
def update_webhook(call: AdminCall, name: WebhookName, body: WebhookChanges) -> WebhookMade:
    """Changes the given fields. After a new secret, the previous one signs too for a day."""
    values = body.model_dump()
    changes = control.read_changes(renew_secret=values.pop("new_secret"), **values)
    with call.unit() as unit:
        row = control.edit(unit, name, **changes)
    return WebhookMade.model_validate(views.webhook(row) | {"secret": changes.get("secret")})


@router.delete("/{name}", summary="Delete a webhook")
def delete_webhook(call: AdminCall, name: WebhookName) -> WebhookDeleted:
    """Deletes a webhook with its deliveries. Its receiver is not told of the end of incidents."""
    with call.unit() as unit:
        row = control.remove(unit, name)
    message = f"Webhook '{name}' deleted {control.left_open(row)}".rstrip()
    return WebhookDeleted(message=message, open_incidents=row.open_incidents)


@router.post("/{name}/enable", summary="Enable a webhook")
def enable_webhook(call: AdminCall, name: WebhookName) -> Done:
    """Delivers events to a webhook again, from now on."""
    with call.unit() as unit:
        control.enable(unit, name)
    return Done(message=f"Webhook '{name}' enabled")


@router.post("/{name}/disable", summary="Disable a webhook")
def disable_webhook(call: AdminCall, name: WebhookName, body: WebhookDisable | None = None) -> Done:
    """Delivers no more events to a webhook. Pending deliveries fail."""
    with call.unit() as unit:
        control.disable(unit, name, body.reason if body else None)
    return Done(message=f"Webhook '{name}' disabled")


# -- deliveries


@router.get("/{name}/deliveries", summary="List a webhook's deliveries")
def list_deliveries(
    call: AdminCall,
    name: WebhookName,
    state: Annotated[DeliveryState | None, Query()] = None,
    limit: Limit = 50,
    after: After = None,
) -> DeliveryPage:
    """Lists a webhook's deliveries, the newest first, with their attempts."""
    before = read(after, moment, UUID)
    with call.backend.transaction() as connection:
        webhook = webhooks.get(connection, name, namespace=call.namespace)
        rows = deliveries.listing(
            connection, webhook.id, state=state, before=before, limit=limit + 1
        )
    page, following = split(rows, limit, "created_at", "id")
    shown = [FoundDelivery.model_validate(views.delivery(row)) for row in page]
    return DeliveryPage(deliveries=shown, next=following)


@router.get("/{name}/incidents", summary="List a webhook's open incidents")
def list_incidents(
    call: AdminCall, name: WebhookName, limit: Limit = 50, after: After = None
) -> IncidentPage:
    """Lists what fails at present of which a webhook was told, the oldest first."""
    last = read(after, moment, str, str)
    with call.backend.transaction() as connection:
        webhook = webhooks.get(connection, name, namespace=call.namespace)
        rows = incidents.listing(connection, webhook.id, after=last, limit=limit + 1)
    page, following = split(rows, limit, *incidents.ORDER)
    shown = [FoundIncident.model_validate(views.incident(row)) for row in page]
    return IncidentPage(incidents=shown, next=following)


@router.post("/{name}/redeliver", summary="Redeliver failed deliveries")
def redeliver_failed(call: AdminCall, name: WebhookName) -> RedeliveryDone:
    """Delivers all failed deliveries of a webhook again, with all their attempts."""
    with call.unit() as unit:
        count = control.redeliver_failed(unit, name)
    return _redelivered(count)


@router.post("/{name}/deliveries/{delivery_id}/redeliver", summary="Redeliver a delivery")
def redeliver_delivery(
    call: AdminCall, name: WebhookName, delivery_id: Annotated[UUID, Path()]
) -> RedeliveryDone:
    """Delivers a delivered or failed delivery again."""
    with call.unit() as unit:
        count = control.redeliver(unit, [delivery_id], webhook=name)
    return _redelivered(count)


def _redelivered(count: int) -> RedeliveryDone:
    what = "1 delivery is" if count == 1 else f"{count} deliveries are"
    return RedeliveryDone(message=f"{what} tried again", count=count)


@router.post("/{name}/test", summary="Send a test event")
def send_test(call: AdminCall, name: WebhookName) -> WebhookTested:
    """Sends a signed `webhook.test` event from this server, and waits for the response."""
    with call.unit() as unit:
        webhook, signed_with = control.begin_test(unit, name)
    key, answer = webhook_outbox.send_test(webhook, signed_with, call.backend.settings)
    return WebhookTested.model_validate(views.tested(key, answer))
