"""`/console/webhooks`: webhooks and their deliveries."""

import json
from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

from fastapi import APIRouter, Response

from pgbeat.errors import NotFound, PgbeatError
from pgbeat.web.api import webhooks as api
from pgbeat.web.api.bodies import Done
from pgbeat.web.api.paging import moment, read, split
from pgbeat.web.pages import forms, summaries
from pgbeat.web.pages.forms import Form, FormField
from pgbeat.web.pages.render import AdminVisit, Fields, Name, PageRoute, Visit, path, unknown_verb
from pgbeat.webhooks import deliveries
from pgbeat.webhooks import model as webhooks
from pgbeat.webhooks.model import EVENTS

router = APIRouter(route_class=PageRoute)

_PAGE = 25
_STATES = ("pending", "delivered", "failed")
_NAME = FormField("name", "Name", hint="such as ops; without a slash")
_URL = FormField("url", "URL", hint="https, where the receiver listens", is_wide=True)
_NO_EVENTS = {"events": "choose one or more"}
#: The events in words.
SAID = {
    "job.run.completed": "an attempt at a job has completed",
    "job.run.failed": "an attempt at a job has failed",
    "job.run.skipped": "an attempt at a job was skipped",
    "job.failed": "a job has failed for good",
    "job.late": "a job has missed a deadline",
    "group.ended": "the last job of a group has ended",
    "schedule.disabled": "a schedule was disabled",
    "schedule.paused": "a schedule was paused",
    "tick.failed": "a schedule could not be launched",
    "tick.skipped": "a schedule was skipped, once an hour at most",
}


@router.get("/console/webhooks")
def webhooks_page(visit: AdminVisit) -> Response:
    """Shows all webhooks."""
    with visit.reading() as connection:
        rows = webhooks.listing(connection, namespace=visit.namespace)
        found = summaries.deliveries(connection, [row.id for row in rows])
    return visit.page("webhooks.html", "webhooks", rows=rows, deliveries=found, most=summaries.MOST)


# -- new


@router.get("/console/new/webhook")
def new_webhook_page(visit: AdminVisit) -> Response:
    """Shows the form."""
    return _new(visit, Form({}), ["job.failed", "schedule.disabled"])


def _new(visit: Visit, form: Form, events: list[str]) -> Response:
    return visit.page(
        "new_webhook.html",
        "webhooks",
        form=form,
        fields=(_NAME, _URL),
        events=events,
        said_of=SAID,
    )


@router.post("/console/new/webhook")
def make_webhook(visit: AdminVisit, posted: Fields) -> Response:
    """Creates the webhook and shows its secret, only here, or the form with its mistakes."""
    written, events = forms.given((_NAME, _URL), posted), _events(posted)
    try:
        errors = {key: f"the {key} is missing" for key, value in written.items() if not value}
        if not events:
            errors |= _NO_EVENTS
        if errors:
            raise forms.Mistakes(errors)
        body = api.NewWebhook.model_validate({**written, "events": events})
        made = api.create_webhook(*visit.who, body)
    except forms.REFUSED as error:
        nothing = "No webhook was created"
        form = forms.refused(visit.request, error, written, nothing, fields=("events",))
        return _new(visit, form, events)
    return _show(visit, made.name, secret=made.secret, status=201)


def _events(posted: Mapping[str, str]) -> list[str]:
    """Returns the events whose boxes are ticked."""
    return [each for each in EVENTS if posted.get(f"event:{each}")]


# -- one


@router.get("/console/webhooks/{name}")
def webhook_page(visit: AdminVisit, name: Name, state: str = "", after: str = "") -> Response:
    """Shows a webhook with its deliveries."""
    return _show(visit, name, state=state, after=after)


def _show(
    visit: Visit,
    name: str,
    *,
    state: str = "",
    after: str = "",
    form: Form | None = None,
    events: list[str] | None = None,
    secret: str | None = None,
    status: int = 200,
    error: Exception | None = None,
) -> Response:
    state = state if state in _STATES else ""
    before = read(after or None, moment, UUID)
    with visit.reading() as connection:
        row = webhooks.get(connection, name, namespace=visit.namespace)
        summary = summaries.deliveries(connection, [row.id])[row.id]
        found = deliveries.listing(
            connection, row.id, state=state or None, before=before, limit=_PAGE + 1
        )
    rows, following = split(found, _PAGE, "created_at", "id")
    written = {"url": row.url}
    return visit.page(
        "webhook.html",
        "webhooks",
        status=status,
        form=form or Form(written, before=json.dumps(written | {"events": row.events})),
        error=error,
        row=row,
        deliveries=summary,
        rows=rows,
        next=following,
        state=state,
        states=_STATES,
        after=after,
        events=row.events if events is None else events,
        fields=(_URL,),
        said_of=SAID,
        secret=secret,
    )


@router.post("/console/webhooks/{name}")
def change_webhook(visit: AdminVisit, name: Name, posted: Fields) -> Response:
    """Does what the form's `do` says."""
    verb = posted.get("do", "")
    here = path("webhooks", name)
    try:
        if verb == "edit":
            return _edit(visit, name, posted)
        if verb == "secret":
            made = api.update_webhook(
                *visit.who, name, api.WebhookChanges.model_validate({"new_secret": True})
            )
            return _show(visit, name, secret=made.secret)
        if verb == "test":
            tried = api.send_test(*visit.who, name)
            return visit.redirect(here, _tested(tried), is_good=tried.delivered)
        if verb == "delete":
            said = api.delete_webhook(*visit.who, name).message
            return visit.redirect(path("webhooks"), f"{said}.")
        if verb in _VERBS:
            said = _VERBS[verb](visit, name, posted).message
            return visit.redirect(here, f"{said[0].upper()}{said[1:]}.")
    except PgbeatError as error:
        return _show(visit, name, error=error)
    raise unknown_verb(posted)


def _disable(visit: Visit, name: str, posted: Mapping[str, str]) -> Done:
    body = api.WebhookDisable(reason=posted.get("reason", "").strip()[:500] or None)
    return api.disable_webhook(*visit.who, name, body)


def _redeliver(visit: Visit, name: str, posted: Mapping[str, str]) -> Done:
    try:
        delivery_id = UUID(posted.get("id", ""))
    except ValueError:
        raise NotFound(f"{posted.get('id', '')[:80]!r} is not a delivery's id") from None
    return api.redeliver_delivery(*visit.who, name, delivery_id)


_VERBS: dict[str, Callable[[Visit, str, Mapping[str, str]], Done]] = {
    "enable": lambda visit, name, _: api.enable_webhook(*visit.who, name),
    "disable": _disable,
    "redeliver": _redeliver,
    "redeliver-all": lambda visit, name, _: api.redeliver_failed(*visit.who, name),
}


def _tested(tried: api.WebhookTested) -> str:
    if tried.delivered:
        return f"The receiver accepted the test: status {tried.status}, in {tried.ms:.0f} ms."
    return f"The receiver did not accept the test: {tried.error or f'status {tried.status}'}."


def _edit(visit: Visit, name: str, posted: Mapping[str, str]) -> Response:
    written, events = forms.given((_URL,), posted), _events(posted)
    before = forms.before(posted)
    now: dict[str, Any] = {**written, "events": events}
    changes = {key: value for key, value in now.items() if value != before.get(key)}
    if not changes:
        return visit.redirect(path("webhooks", name), "Nothing was changed.")
    try:
        if not events:
            raise forms.Mistakes(_NO_EVENTS)
        body = api.WebhookChanges.model_validate(changes)
        api.update_webhook(*visit.who, name, body)
    except forms.REFUSED as error:
        form = forms.refused(
            visit.request,
            error,
            written,
            "Nothing was changed",
            before=posted["before"],
            fields=("events",),
        )
        return _show(visit, name, form=form, events=events)
    return visit.redirect(path("webhooks", name), f"Webhook '{name}' was changed.")
