"""`/console/new/schedule`: the form of a new schedule."""

from fastapi import APIRouter, Response

from pgbeat.schedules import checked
from pgbeat.web.api.schedules.schedule_models import NewSchedule
from pgbeat.web.pages import forms
from pgbeat.web.pages.forms import Form
from pgbeat.web.pages.jobs import job_fields
from pgbeat.web.pages.render import AdminVisit, PageRoute, Visit, path
from pgbeat.web.pages.schedules import schedule_form, schedule_preview
from pgbeat.web.pages.schedules.schedule_preview import ShownPreview

router = APIRouter(route_class=PageRoute)

_ALL = (*schedule_form.NEW, *schedule_form.FIELDS)


@router.get("/console/new/schedule")
def new_schedule_page(visit: AdminVisit, task: str = "", template: str = "") -> Response:
    """Shows the form, of a task or template if given."""
    values = {"task": task[:255], "job_policy.template": template[:200]}
    return _show(visit, Form(schedule_form.START | values))


def _show(visit: Visit, form: Form, preview: ShownPreview | None = None) -> Response:
    with visit.reading() as connection:
        offers = job_fields.offers(connection, visit.backend, _ALL)
    return visit.page(
        "new_schedule.html",
        "schedules",
        form=form,
        fields=schedule_form.NEW,
        sections=schedule_form.SECTIONS,
        offers=offers,
        timezone=visit.backend.timezone,
        shown_preview=preview,
        labels=schedule_preview.LABELS,
    )


@router.post("/console/new/schedule")
def make_schedule(visit: AdminVisit) -> Response:
    """Creates the schedule, or shows the form with its mistakes."""
    written = visit.given(_ALL)
    if visit.posted.get("do") in ("preview", "test"):
        return _show(visit, Form(written), schedule_preview.of_form(visit, name=None))
    try:
        body = NewSchedule.model_validate(schedule_form.values(written))
        with visit.unit() as unit:
            row = checked.add(unit, body.model_dump(exclude_unset=True, exclude_none=True))
    except forms.REFUSED as error:
        nothing = "No schedule was created"
        form = schedule_preview.refused(visit, error, None, written, nothing)
        return _show(visit, form)
    return visit.redirect(path("schedules", row.name), f"Schedule '{row.name}' was created.")
