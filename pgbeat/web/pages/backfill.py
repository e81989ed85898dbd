"""`/console/backfill/NAME`: what a schedule missed, shown first, and then launched."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Path, Request, Response

from pgbeat.database import connections
from pgbeat.schedules import model as schedules
from pgbeat.web.api import decisions
from pgbeat.web.api.decisions import Backfilled, BackfillSpan
from pgbeat.web.backend import Backend, TheBackend
from pgbeat.web.identity import Caller, TheAdmin
from pgbeat.web.pages import forms, humanize
from pgbeat.web.pages.forms import Field, Form
from pgbeat.web.pages.render import Fields, PageRoute, done, page, path, unknown

router = APIRouter(route_class=PageRoute)

Name = Annotated[str, Path(max_length=200)]

_FIELDS = (
    Field("start", "From", "moment", "UTC"),
    Field("end", "To", "moment", "UTC; empty: now"),
    Field("limit", "At most", "number", "due times; more are refused"),
)
#: How far back the form looks, unless told otherwise.
_BACK = timedelta(days=1)
#: Due times that are shown at the beginning and the end.
_SHOWN = 20


@router.get("/console/backfill/{name:path}")
def backfill_page(request: Request, backend: TheBackend, caller: TheAdmin, name: Name) -> Response:
    """The form: which span of the past."""
    with backend.transaction() as connection:
        start = connections.now(connection) - _BACK
    values = {"start": forms.text("moment", start.replace(second=0)), "end": "", "limit": "100"}
    return _show(request, backend, caller, name, Form(values))


def _show(
    request: Request,
    backend: Backend,
    caller: Caller,
    name: str,
    form: Form,
    *,
    found: Backfilled | None = None,
    sure: Mapping[str, str] | None = None,
    status: int = 200,
) -> Response:
    with backend.transaction() as connection:
        now = connections.now(connection)
        row = schedules.get(connection, name, namespace=backend.namespace)
    error = forms.headline(form.errors, "Nothing was launched")
    return page(
        request, "backfill.html", caller=caller, backend=backend, here="schedules", now=now,
        row=row, timetable=humanize.timetable(row, backend.timezone), form=form, fields=_FIELDS,
        found=found, sure=sure, shown=_SHOWN, status=status, error=error,
    )  # fmt: skip


@router.post("/console/backfill/{name:path}")
def backfill(
    request: Request, backend: TheBackend, caller: TheAdmin, name: Name, posted: Fields
) -> Response:
    """Says what was missed (`do`: `look`), or launches it (`launch`)."""
    verb = posted.get("do", "")
    if verb not in ("look", "launch"):
        raise unknown(posted)
    with backend.transaction() as connection:  # NotFound is a page of its own
        now = connections.now(connection)
        schedules.get(connection, name, namespace=backend.namespace)
    written = forms.given(_FIELDS, posted)
    try:
        values = forms.read(_FIELDS, {key: value for key, value in written.items() if value})
        if "start" not in values:
            raise forms.Mistakes({"start": "from when?"})
        # What is launched is what was looked at.
        span = {"end": now} | values
        body = BackfillSpan.model_validate(span | {"dry_run": verb == "look"})
        made = decisions.backfill_schedule(backend, caller, name, body)
    except forms.REFUSED as error:
        status, errors = forms.refused(request, error, written)
        return _show(request, backend, caller, name, Form(written, errors), status=status)
    if verb == "look":
        sure = {"start": body.start.isoformat(), "limit": str(body.limit),
                "end": span["end"].isoformat()}  # fmt: skip
        return _show(
            request, backend, caller, name, Form(written), found=made, sure=sure if made.times
            else None,
        )  # fmt: skip
    said = f"{made.message}."
    if made.remaining:
        said += (
            f" {humanize.counted(made.remaining, 'due time')} are left; backfill again for them."
        )
    return done(request, path("schedules", name), said, is_good=made.success)
