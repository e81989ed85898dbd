"""`/console/new/schedule`: the form that makes a schedule."""

from fastapi import APIRouter, Request, Response

from pgbeat.web.api import schedules as api
from pgbeat.web.api.schedule_models import NewSchedule
from pgbeat.web.backend import Backend, TheBackend
from pgbeat.web.identity import Caller, TheAdmin
from pgbeat.web.pages import forms, job_fields, schedule_form
from pgbeat.web.pages.forms import Form
from pgbeat.web.pages.render import Fields, PageRoute, done, page, path

router = APIRouter(route_class=PageRoute)

_ALL = (schedule_form.NAME, *schedule_form.FIELDS)


@router.get("/console/new/schedule")
def new_schedule_page(
    request: Request, backend: TheBackend, caller: TheAdmin, task: str = "", template: str = ""
) -> Response:
    """The form."""
    values = {"task": task[:255], "job_policy.template": template[:200]}
    return _show(request, backend, caller, Form(schedule_form.START | values))


def _show(
    request: Request, backend: Backend, caller: Caller, form: Form, *, status: int = 200
) -> Response:
    with backend.transaction() as connection:
        offers = job_fields.offers(connection, backend, _ALL)
    error = forms.headline(form.errors, "Nothing was made")
    return page(
        request, "new_schedule.html", caller=caller, backend=backend, here="schedules", form=form,
        name=schedule_form.NAME, sections=schedule_form.SECTIONS, offers=offers, status=status,
        error=error, timezone=backend.timezone,
    )  # fmt: skip


@router.post("/console/new/schedule")
def make_schedule(
    request: Request, backend: TheBackend, caller: TheAdmin, posted: Fields
) -> Response:
    """Makes it, or says beside the fields why not."""
    written = forms.given(_ALL, posted)
    try:
        body = NewSchedule.model_validate(schedule_form.values(written))
        made = api.create_schedule(backend, caller, body)
    except forms.REFUSED as error:
        status, errors = forms.refused(request, error, written, schedule_form.OTHERS)
        return _show(request, backend, caller, Form(written, errors), status=status)
    return done(request, path("schedules", made.name), f"Schedule '{made.name}' was made.")
