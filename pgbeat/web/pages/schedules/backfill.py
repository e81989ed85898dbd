"""`/console/backfill/NAME`: shows the due times that a schedule missed, and launches them."""

from collections import Counter
from collections.abc import Mapping
from datetime import timedelta

from fastapi import APIRouter, Response

from pgbeat.beat.verbs.missed import Missed
from pgbeat.database import connections
from pgbeat.schedules import model as schedules
from pgbeat.schedules import timetable_words
from pgbeat.web.api.schedules import decisions
from pgbeat.web.api.schedules.decisions import BackfillSpan
from pgbeat.web.pages import forms, humanize
from pgbeat.web.pages.forms import Form, FormField
from pgbeat.web.pages.render import AdminVisit, Name, PageRoute, Visit, path

router = APIRouter(route_class=PageRoute)

_FIELDS = (
    FormField("start", "From", "moment", "UTC"),
    FormField("end", "To", "moment", "UTC; empty: now"),
    FormField("limit", "At most", "number", "due times; more are refused"),
)
#: The length of the form's span at first.
_BACK = timedelta(days=1)
#: Due times that are shown at the beginning and the end.
_SHOWN = 20


@router.get("/console/backfill/{name:path}")
def backfill_page(visit: AdminVisit, name: Name) -> Response:
    """Shows the form for a span of the past."""
    with visit.backend.transaction() as connection:
        start = connections.now(connection) - _BACK
    values = {"start": forms.text("moment", start.replace(second=0)), "end": "", "limit": "100"}
    return _show(visit, name, Form(values))


def _show(
    visit: Visit,
    name: str,
    form: Form,
    *,
    past: Missed | None = None,
    sure: Mapping[str, str] | None = None,
) -> Response:
    with visit.reading() as connection:
        row = schedules.get(connection, name, namespace=visit.namespace)
    return visit.page(
        "backfill.html",
        "schedules",
        form=form,
        row=row,
        timetable=timetable_words.timetable(row, visit.backend.timezone),
        fields=_FIELDS,
        found=past,
        sure=sure,
        shown=_SHOWN,
    )


@router.post("/console/backfill/{name:path}")
def backfill(visit: AdminVisit, name: Name) -> Response:
    """Shows what was missed (`do`: `look`), or launches it (`launch`)."""
    verb = visit.verb(("look", "launch"))
    with visit.reading() as connection:  # NotFound has its own page, without the form
        schedules.get(connection, name, namespace=visit.namespace)
    written = visit.given(_FIELDS)
    try:
        values = forms.read(_FIELDS, {key: value for key, value in written.items() if value})
        if "start" not in values:
            raise forms.Mistakes({"start": "from when?"})
        # Fixed now, so that the same times are launched later as are shown.
        span = {"end": visit.now} | values
        body = BackfillSpan.model_validate(span | {"dry_run": verb == "look"})
        past, done = decisions.carry_out(visit, name, body)
    except forms.REFUSED as error:
        form = visit.refused(error, written, "Nothing was launched")
        return _show(visit, name, form)
    if verb == "look":
        sure = {
            "start": body.start.isoformat(),
            "end": span["end"].isoformat(),
            "limit": str(body.limit),
        }
        return _show(visit, name, Form(written), past=past, sure=sure if past.times else None)
    counts = Counter[str](tick.outcome for tick in done.ticks)
    message = f"{decisions.backfilled(name, past.times, counts)}."
    if done.remaining:
        left = humanize.counted(done.remaining, "due time")
        message += f" {left} are left; backfill again for them."
    return visit.redirect(path("schedules", name), message, is_good=not counts["failed"])
