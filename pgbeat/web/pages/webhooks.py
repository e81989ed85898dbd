"""`/console/webhooks`: who is told of what happens, whether it got there, and how to tell again."""

import json
from collections.abc import Mapping
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Path, Request, Response

from pgbeat.database import connections
from pgbeat.errors import NotFound, PgbeatError
from pgbeat.web.api import webhooks as api
from pgbeat.web.api.paging import cursor, moment, read
from pgbeat.web.backend import Backend, TheBackend
from pgbeat.web.identity import Caller, TheAdmin
from pgbeat.web.pages import forms, summaries
from pgbeat.web.pages.forms import Field, Form
from pgbeat.web.pages.render import Fields, PageRoute, done, page, path, said_of, unknown
from pgbeat.webhooks import deliveries
from pgbeat.webhooks import model as webhooks
from pgbeat.webhooks.model import EVENTS

router = APIRouter(route_class=PageRoute)

Name = Annotated[str, Path(max_length=200)]

_PAGE = 25
_STATES = ("pending", "delivered", "failed")
_NAME = Field("name", "Name", hint="such as ops; without a slash")
_URL = Field("url", "URL", hint="https, where the receiver listens", is_wide=True)
#: What an event is, in words.
SAID = {
    "job.run.completed": "an attempt at a job has completed",
    "job.run.failed": "an attempt at a job has failed",
    "job.run.skipped": "an attempt at a job was skipped",
    "job.failed": "a job has failed for good",
    "schedule.disabled": "a schedule was disabled",
    "schedule.paused": "a schedule was paused",
    "tick.failed": "a schedule could not be launched",
    "tick.skipped": "a schedule was skipped, once an hour at most",
}


@router.get("/console/webhooks")
def webhooks_page(request: Request, backend: TheBackend, caller: TheAdmin) -> Response:
    """All webhooks."""
    with backend.transaction() as connection:
        now = connections.now(connection)
        rows = webhooks.listing(connection, namespace=backend.namespace)
        told = summaries.told(connection, [row.id for row in rows])
    return page(
        request, "webhooks.html", caller=caller, backend=backend, here="webhooks", now=now,
        rows=rows, told=told, most=summaries.MOST,
    )  # fmt: skip


# -- made


@router.get("/console/new/webhook")
def new_webhook_page(request: Request, backend: TheBackend, caller: TheAdmin) -> Response:
    """The form that makes one."""
    return _new(request, backend, caller, Form({}), ["job.failed", "schedule.disabled"])


def _new(
    request: Request,
    backend: Backend,
    caller: Caller,
    form: Form,
    events: list[str],
    *,
    status: int = 200,
) -> Response:
    error = forms.headline(form.errors, "Nothing was made")
    return page(
        request, "new_webhook.html", caller=caller, backend=backend, here="webhooks", form=form,
        fields=(_NAME, _URL), events=events, said_of=SAID, status=status, error=error,
    )  # fmt: skip


@router.post("/console/new/webhook")
def make_webhook(
    request: Request, backend: TheBackend, caller: TheAdmin, posted: Fields
) -> Response:
    """Makes it, and shows its secret: here, and nowhere else; or says why not."""
    written, events = forms.given((_NAME, _URL), posted), _events(posted)
    try:
        errors = {each: "it needs one" for each, value in written.items() if not value}
        if not events:
            errors["events"] = "of what? Choose one or more"
        if errors:
            raise forms.Mistakes(errors)
        body = api.NewWebhook.model_validate({**written, "events": events})
        made = api.create_webhook(backend, caller, body)
    except forms.REFUSED as error:
        status, errors = forms.refused(request, error, (*written, "events"))
        return _new(request, backend, caller, Form(written, errors), events, status=status)
    return _show(request, backend, caller, made.name, secret=made.secret, status=201)


def _events(posted: Mapping[str, str]) -> list[str]:
    """The events whose boxes are ticked."""
    return [each for each in EVENTS if posted.get(f"event:{each}")]


# -- one


@router.get("/console/webhooks/{name}")
def webhook_page(
    request: Request,
    backend: TheBackend,
    caller: TheAdmin,
    name: Name,
    state: str = "",
    after: str = "",
) -> Response:
    """One webhook, with its deliveries."""
    return _show(request, backend, caller, name, state=state, after=after)


def _show(
    request: Request,
    backend: Backend,
    caller: Caller,
    name: str,
    *,
    state: str = "",
    after: str = "",
    form: Form | None = None,
    events: list[str] | None = None,
    secret: str | None = None,
    status: int = 200,
    error: str | None = None,
) -> Response:
    state = state if state in _STATES else ""
    before = read(after, moment, UUID) if after else None
    with backend.transaction() as connection:
        now = connections.now(connection)
        row = webhooks.get(connection, name, namespace=backend.namespace)
        told = summaries.told(connection, [row.id])[row.id]
        found = deliveries.listing(
            connection, row.id, state=state or None, before=before, limit=_PAGE + 1
        )
    shown = found[:_PAGE]
    last = shown[-1] if len(found) > _PAGE else None
    written = {"url": row.url}
    return page(
        request, "webhook.html", caller=caller, backend=backend, here="webhooks", now=now, row=row,
        told=told, most=summaries.MOST, rows=shown, state=state, states=_STATES, after=after,
        form=form or Form(written, before=json.dumps(written | {"events": row.events})),
        events=row.events if events is None else events, fields=(_URL,), said_of=SAID,
        secret=secret, status=status, error=error,
        next=None if last is None else cursor(last.created_at, last.id),
    )  # fmt: skip


@router.post("/console/webhooks/{name}")
def change_webhook(
    request: Request, backend: TheBackend, caller: TheAdmin, name: Name, posted: Fields
) -> Response:
    """Does what a form of the page asks for: `do`."""
    verb = posted.get("do", "")
    here = path("webhooks", name)
    with backend.transaction() as connection:  # NotFound is a page of its own
        webhooks.get(connection, name, namespace=backend.namespace)
    try:
        if verb == "edit":
            return _edit(request, backend, caller, name, posted)
        if verb == "secret":
            changes = api.WebhookChanges.model_validate({"new_secret": True})
            made = api.update_webhook(backend, caller, name, changes)
            return _show(request, backend, caller, name, secret=made.secret)
        if verb == "test":
            tried = api.send_test(backend, caller, name)
            return done(request, here, _tested(tried), is_good=tried.delivered)
        if verb == "delete":
            said = api.delete_webhook(backend, caller, name).message
            return done(request, path("webhooks"), f"{said}.")
        if verb in _VERBS:
            return done(request, here, _VERBS[verb](backend, caller, name, posted))
    except PgbeatError as error:
        status, _, detail = said_of(request, error)
        return _show(request, backend, caller, name, status=status, error=detail)
    raise unknown(posted)


def _disable(backend: Backend, caller: Caller, name: str, posted: Mapping[str, str]) -> str:
    reason = posted.get("reason", "").strip()[:500] or None
    made = api.disable_webhook(backend, caller, name, api.WebhookDisable(reason=reason))
    return f"{made.message}."


def _enable(backend: Backend, caller: Caller, name: str, posted: Mapping[str, str]) -> str:
    return f"{api.enable_webhook(backend, caller, name).message}."


def _again(backend: Backend, caller: Caller, name: str, posted: Mapping[str, str]) -> str:
    """Delivers one again (`id`)."""
    try:
        delivery_id = UUID(posted.get("id", ""))
    except ValueError:
        raise NotFound(f"{posted.get('id', '')[:80]!r} is no delivery's id") from None
    made = api.redeliver_delivery(backend, caller, name, delivery_id)
    return f"{made.message[0].upper()}{made.message[1:]}."


def _all_again(backend: Backend, caller: Caller, name: str, posted: Mapping[str, str]) -> str:
    made = api.redeliver_failed(backend, caller, name)
    return f"{made.message[0].upper()}{made.message[1:]}."


_VERBS = {"enable": _enable, "disable": _disable, "redeliver": _again, "redeliver-all": _all_again}


def _tested(tried: api.WebhookTested) -> str:
    if tried.delivered:
        return f"The receiver took the test: it answered {tried.status} in {tried.ms:.0f} ms."
    said = tried.error or f"it answered {tried.status}"
    return f"The receiver didn't take the test: {said}."


def _edit(
    request: Request, backend: Backend, caller: Caller, name: str, posted: Mapping[str, str]
) -> Response:
    written, events = forms.given((_URL,), posted), _events(posted)
    before = forms.before(posted)
    changes: dict[str, Any] = {}
    try:
        if written["url"] != before.get("url"):
            changes["url"] = written["url"]
        if events != before.get("events"):
            changes["events"] = events
        if not changes:
            return done(request, path("webhooks", name), "Nothing was changed.")
        if not events:
            raise forms.Mistakes({"events": "of what? Choose one or more"})
        api.update_webhook(backend, caller, name, api.WebhookChanges.model_validate(changes))
    except forms.REFUSED as error:
        status, errors = forms.refused(request, error, (*written, "events"))
        said = forms.headline(errors, "Nothing was changed")
        form = Form(written, errors, posted.get("before", ""))
        return _show(
            request, backend, caller, name, form=form, events=events, status=status, error=said
        )
    return done(request, path("webhooks", name), f"Webhook '{name}' was changed.")
