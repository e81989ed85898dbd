"""`/console/events`: what has happened, for which jobs may wait; a form that emits an event."""

from fastapi import APIRouter, Response

from pgbeat.jobs.verbs import events
from pgbeat.web.api.paging import number, read_one, split
from pgbeat.web.pages import forms
from pgbeat.web.pages.forms import Form, FormField
from pgbeat.web.pages.render import AdminVisit, PageRoute, ViewerVisit, Visit, path

router = APIRouter(route_class=PageRoute)

_PAGE = 50
_FIELDS = (
    FormField("key", "Key", hint="such as paid/12"),
    FormField("value", "Value", "json", "JSON; empty: null"),
)


@router.get("/console/events")
def events_page(visit: ViewerVisit, prefix: str = "", after: str = "") -> Response:
    """Shows events, the newest first."""
    return _show(visit, prefix.strip()[:200], after)


def _show(visit: Visit, prefix: str = "", after: str = "", form: Form | None = None) -> Response:
    before = read_one(after or None, number)
    with visit.listing() as connection:
        rows = events.page(
            connection,
            visit.redactor,
            visit.namespace,
            prefix=prefix,
            before=before,
            limit=_PAGE + 1,
        )
    page, following = split(rows, _PAGE, "id")
    return visit.page(
        "events.html",
        "events",
        rows=page,
        prefix=prefix,
        after=after,
        next=following,
        form=form or Form({}),
        fields=_FIELDS,
    )


@router.post("/console/events")
def emit_event(visit: AdminVisit) -> Response:
    """Emits an event, and leads back: to the page of `job`, if that has the form."""
    visit.verb(("emit",))
    written = visit.given(_FIELDS)
    try:
        value = forms.read(_FIELDS, written)["value"]
        with visit.unit() as unit:
            is_new = events.store(unit, written["key"], value)
    except forms.REFUSED as error:
        return _show(visit, form=visit.refused(error, written, "Nothing was emitted"))
    job = visit.text("job", 36)
    where = path("jobs", job) if job else path("events")
    message = f"Event '{written['key']}' was emitted."
    if not is_new:
        message = f"There is an event '{written['key']}' already; it stays."
    return visit.redirect(where, message, is_good=is_new)
