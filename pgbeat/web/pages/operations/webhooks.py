"""`/console/webhooks`: webhooks and their deliveries."""

import json
from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

from fastapi import APIRouter, Response

from pgbeat.broker.publishing.unit_of_work import UnitOfWork
from pgbeat.errors import PgbeatError
from pgbeat.jobs.rows import ids
from pgbeat.views import webhooks as views
from pgbeat.web.api.paging import moment, read, split
from pgbeat.web.pages import forms, summaries
from pgbeat.web.pages.forms import Form, FormField, choice, wide
from pgbeat.web.pages.render import AdminVisit, Name, PageRoute, Visit, path
from pgbeat.webhooks import control, deliveries, outbox
from pgbeat.webhooks import model as webhooks
from pgbeat.webhooks.events import EVENTS
from pgbeat.webhooks.formats import FORMATS, is_signed
from pgbeat.webhooks.http import Reply
from pgbeat.webhooks.incidents import model as incidents

router = APIRouter(route_class=PageRoute)

_PAGE = 25
_STATES = ("pending", "delivered", "failed")
_NAME = FormField("name", "Name", hint="such as ops; without a slash")
_URL = wide("url", "URL", hint="https, where the receiver listens")
_FORMAT = choice("format", "What is sent", FORMATS, "standard: the event itself, signed")
_KEY = FormField("secret", "Key", hint="of the service, for pagerduty and opsgenie")
_PER_INCIDENT = FormField(
    "per_incident",
    "One alert per incident",
    "flag",
    "no: each failure is sent",
    open="yes, except for standard",
)
_FILTERS = (
    FormField("schedules", "Only of schedules", "list", "such as nightly-*, report"),
    FormField("tasks", "Only of tasks", "list", "such as shop.*"),
    wide("labels", "Only with labels", "json", 'a JSON object: {"team": "billing"}'),
)
_NEW = (_NAME, _URL, _FORMAT, _KEY, _PER_INCIDENT, *_FILTERS)
_EDITED = (_URL, _PER_INCIDENT._replace(open=None), *_FILTERS)
#: What a field means that was cleared.
_EMPTY: dict[str, Any] = {"url": "", "schedules": [], "tasks": [], "labels": {}}
_NO_EVENTS = {"events": "choose one or more"}
#: The events in words.
_WHEN = {name: event.when.replace("`", "") for name, event in EVENTS.items()}


@router.get("/console/webhooks")
def webhooks_page(visit: AdminVisit) -> Response:
    """Shows all webhooks."""
    with visit.reading() as connection:
        rows = webhooks.listing(connection, namespace=visit.namespace)
        counts = summaries.deliveries(connection, [row.id for row in rows])
    return visit.page(
        "webhooks.html", "webhooks", rows=rows, deliveries=counts, most=summaries.MOST
    )


# -- new


@router.get("/console/new/webhook")
def new_webhook_page(visit: AdminVisit) -> Response:
    """Shows the form."""
    return _new(visit, Form({"format": "standard"}), ["job.failed", "schedule.disabled"])


def _new(visit: Visit, form: Form, events: list[str]) -> Response:
    return visit.page(
        "new_webhook.html", "webhooks", form=form, fields=_NEW, events=events, said_of=_WHEN
    )


@router.post("/console/new/webhook")
def make_webhook(visit: AdminVisit) -> Response:
    """Creates the webhook and shows its secret, only here, or the form with its mistakes."""
    written, events = visit.given(_NEW), _events(visit.posted)
    try:
        needed = (_NAME.name, _URL.name)
        errors = {key: f"the {key} is missing" for key in needed if not written[key]}
        if not events:
            errors |= _NO_EVENTS
        if errors:
            raise forms.Mistakes(errors)
        values = forms.read(_NEW, {key: value for key, value in written.items() if value})
        with visit.unit() as unit:
            row, secret = control.add(unit, events=events, **values)
    except forms.REFUSED as error:
        nothing = "No webhook was created"
        written["secret"] = ""
        form = visit.refused(error, written, nothing, fields=("events",))
        return _new(visit, form, events)
    if not is_signed(row.format):
        return visit.redirect(path("webhooks", row.name), f"Webhook '{row.name}' was created.")
    return _show(visit, row.name, secret=secret, status=201)


def _events(posted: Mapping[str, str]) -> list[str]:
    """Returns the events whose boxes are ticked."""
    return [event for event in EVENTS if posted.get(f"event:{event}")]


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
    **more: Any,
) -> Response:
    state = state if state in _STATES else ""
    before = read(after or None, moment, UUID)
    with visit.reading() as connection:
        row = webhooks.get(connection, name, namespace=visit.namespace)
        summary = summaries.deliveries(connection, [row.id])[row.id]
        open_incidents = incidents.listing(connection, row.id)
        page = deliveries.listing(
            connection, row.id, state=state or None, before=before, limit=_PAGE + 1
        )
    rows, following = split(page, _PAGE, "created_at", "id")
    written = _written(row)
    return visit.page(
        "webhook.html",
        "webhooks",
        form=form or Form(written, before=json.dumps(written | {"events": row.events})),
        row=row,
        deliveries=summary,
        rows=rows,
        next=following,
        state=state,
        states=_STATES,
        after=after,
        events=row.events if events is None else events,
        fields=_EDITED,
        filters=list(views.filters(row)),
        incidents=open_incidents,
        left_open=control.left_open(row),
        said_of=_WHEN,
        is_signed=is_signed(row.format),
        **{"secret": None} | more,
    )


def _written(row: webhooks.Webhook) -> dict[str, str]:
    """Returns the fields of the form."""
    return {field.name: forms.text(field.kind, getattr(row, field.name)) for field in _EDITED}


@router.post("/console/webhooks/{name}")
def change_webhook(visit: AdminVisit, name: Name) -> Response:
    """Does what the form's `do` says."""
    verb = visit.posted.get("do", "")
    here = path("webhooks", name)
    try:
        if verb == "edit":
            return _edit(visit, name)
        if verb == "secret":
            changes = control.read_changes(renew_secret=True)
            with visit.unit() as unit:
                control.edit(unit, name, **changes)
            return _show(visit, name, secret=changes["secret"])
        if verb == "test":
            with visit.unit() as unit:
                webhook, signed_with = control.begin_test(unit, name)
            _, answer = outbox.send_test(webhook, signed_with, visit.backend.settings)
            return visit.redirect(here, _tested(answer), is_good=answer.is_delivered)
        if verb in ("redeliver", "redeliver-all"):
            with visit.unit() as unit:
                count = _redeliver(unit, name, visit)
            what = "1 delivery is" if count == 1 else f"{count} deliveries are"
            return visit.redirect(here, f"{what} tried again.")
        act, past = _VERBS[visit.verb(_VERBS)]
        more = {"reason": visit.reason()} if verb == "disable" else {}
        with visit.unit() as unit:
            row = act(unit, name, **more)
        if verb == "delete":
            words = f"Webhook '{name}' {past} {control.left_open(row)}".rstrip()
            return visit.redirect(path("webhooks"), f"{words}.")
        return visit.redirect(here, f"Webhook '{name}' {past}.")
    except PgbeatError as error:
        return _show(visit, name, error=error)


#: The verbs, and what the webhook then is.
_VERBS: dict[str, tuple[Callable[..., Any], str]] = {
    "delete": (control.remove, "deleted"),
    "enable": (control.enable, "enabled"),
    "disable": (control.disable, "disabled"),
}


def _redeliver(unit: UnitOfWork, name: str, visit: Visit) -> int:
    """Repeats the form's delivery, or all that failed, and returns how many."""
    if visit.text("do") == "redeliver-all":
        return control.redeliver_failed(unit, name)
    delivery_id = ids.parse(visit.posted.get("id", ""), "delivery")
    return control.redeliver(unit, [delivery_id], webhook=name)


def _tested(answer: Reply) -> str:
    if answer.is_delivered:
        return f"The receiver accepted the test: status {answer.status}, in {answer.ms:.0f} ms."
    return f"The receiver did not accept the test: {answer.error or f'status {answer.status}'}."


def _edit(visit: Visit, name: str) -> Response:
    written, events = visit.given(_EDITED), _events(visit.posted)
    try:
        if not events:
            raise forms.Mistakes(_NO_EVENTS)
        changes = forms.read(_EDITED, visit.changed(written))
        changes |= {key: _EMPTY.get(key) for key, value in changes.items() if value is None}
        if events != forms.before(visit.posted).get("events"):
            changes["events"] = events
        if not changes:
            return visit.redirect(path("webhooks", name), "Nothing was changed.")
        with visit.unit() as unit:
            row = control.edit(unit, name, **changes)
    except forms.REFUSED as error:
        form = visit.refused(error, written, "Nothing was changed", fields=("events",))
        return _show(visit, name, form=form, events=events)
    words = f"Webhook '{name}' was changed {control.left_open(row, changes)}".rstrip()
    return visit.redirect(path("webhooks", name), f"{words}.")
