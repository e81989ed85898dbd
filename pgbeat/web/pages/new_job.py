"""`/console/new/job`: the form that runs a job now, or later: of a task, or from a template."""

from fastapi import APIRouter, Request, Response

from pgbeat.jobs import templates
from pgbeat.web.api import jobs as api
from pgbeat.web.api.job_models import JobOrder
from pgbeat.web.backend import Backend, TheBackend
from pgbeat.web.identity import Caller, TheCaller
from pgbeat.web.pages import forms, job_fields
from pgbeat.web.pages.forms import Field, Form, Section
from pgbeat.web.pages.render import Fields, PageRoute, done, page, path

router = APIRouter(route_class=PageRoute)

_WHAT = (
    job_fields.TEMPLATE,
    job_fields.TASK,
    job_fields.ARGS,
    job_fields.KWARGS,
    Field("countdown", "In", "length", "such as 10 min; empty: now"),
    Field("run_at", "Or not before", "moment", "UTC"),
)
_SECTIONS = (
    *job_fields.sections(),
    Section("What it is for", job_fields.ABOUT, "description, labels, metadata"),
    Section("How it is published", (job_fields.QUEUE, job_fields.OPTIONS), "queue, options"),
)
_ALL = (*_WHAT, *forms.all_of(_SECTIONS))


@router.get("/console/new/job")
def new_job_page(
    request: Request, backend: TheBackend, caller: TheCaller, task: str = "", template: str = ""
) -> Response:
    """The form, of that task or template."""
    values = {"task": task[:255], "template": template[:200]}
    return _show(request, backend, caller, Form(values))


def _show(
    request: Request, backend: Backend, caller: Caller, form: Form, *, status: int = 200
) -> Response:
    name = form.values.get("template", "")
    with backend.transaction() as connection:
        offers = job_fields.offers(connection, backend, _ALL, caller)
        found = templates.load(connection, [name] if name else [], namespace=backend.namespace)
    error = forms.headline(form.errors, "Nothing was run")
    return page(
        request, "new_job.html", caller=caller, backend=backend, here="jobs", form=form,
        what=_WHAT, sections=_SECTIONS, offers=offers, base=found.get(name), status=status,
        error=error,
    )  # fmt: skip


@router.post("/console/new/job")
def run_job(request: Request, backend: TheBackend, caller: TheCaller, posted: Fields) -> Response:
    """Makes the job, or says beside the fields why not."""
    written = forms.given(_ALL, posted)
    try:
        values = forms.read(_ALL, {key: value for key, value in written.items() if value})
        if not {"task", "template"} & values.keys():
            raise forms.Mistakes({"task": "a job of which task? Name a task or a template"})
        made = api.create_job(backend, caller, JobOrder.model_validate(values), Response())
    except forms.REFUSED as error:
        status, errors = forms.refused(request, error, written)
        return _show(request, backend, caller, Form(written, errors), status=status)
    said = "The job was made." if made.is_new else "This one has not ended, and is the same."
    return done(request, path("jobs", made.id), said)
