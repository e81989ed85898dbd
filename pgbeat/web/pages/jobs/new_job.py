"""`/console/new/job`: the form that runs a job, of a task or from a template."""

from fastapi import APIRouter, Response

from pgbeat.jobs.checks import permissions
from pgbeat.jobs.policy import templates
from pgbeat.jobs.preparing import likeness
from pgbeat.jobs.preparing.prepare import JobSpec
from pgbeat.jobs.rows import model as jobs
from pgbeat.jobs.verbs import control
from pgbeat.web.api.jobs.job_models import JobOrder
from pgbeat.web.api.visible import visible_job
from pgbeat.web.pages import forms
from pgbeat.web.pages.forms import Form, FormField
from pgbeat.web.pages.jobs import job_fields
from pgbeat.web.pages.render import ChangeVisit, PageRoute, TheVisit, Visit, path

router = APIRouter(route_class=PageRoute)

_WHAT = (
    job_fields.TEMPLATE,
    job_fields.TASK,
    job_fields.ARGS,
    job_fields.KWARGS,
    FormField("countdown", "In", "length", "such as 10 min; empty: now"),
    FormField("run_at", "Or not before", "moment", "UTC"),
)
_SECTIONS = (*job_fields.sections(), job_fields.ABOUT, job_fields.PUBLISHING)
_ALL = (*_WHAT, *forms.all_of(_SECTIONS))


@router.get("/console/new/job")
def new_job_page(
    visit: ChangeVisit, task: str = "", template: str = "", like: str = ""
) -> Response:
    """Shows the form, of a task or template, or filled in like a job."""
    if like:
        return _show(visit, _like(visit, like), like=like)
    return _show(visit, Form({"task": task[:255], "template": template[:200]}))


def _like(visit: Visit, job_id: str) -> Form:
    with visit.reading() as connection:
        visible_job(connection, visit, job_id)
        job = jobs.get(connection, job_id)
        spec = likeness.complete(connection, visit.redactor, visit.caller, job, JobSpec())
    values = spec._asdict() | spec.policy._asdict()
    # Empty ones are left to the app, as they were.
    written = {field.name: forms.text(field.kind, values.get(field.name) or None) for field in _ALL}
    return Form(written | {"args": forms.text("json", spec.args)})


def _show(visit: Visit, form: Form, *, like: str = "") -> Response:
    name = form.values.get("template", "")
    with visit.reading() as connection:
        offers = job_fields.offers(connection, visit.backend, _ALL, visit.caller)
        known = templates.load(connection, [name] if name else [], namespace=visit.namespace)
        base = known.get(name)
    return visit.page(
        "new_job.html",
        "jobs",
        form=form,
        fields=_WHAT,
        sections=[
            section._replace(is_open=any(form.values.get(field.name) for field in section.fields))
            for section in _SECTIONS
        ],
        offers=offers,
        base=visit.redactor.row(base, base and base.task),
        like=like,
    )


@router.post("/console/new/job")
def run_job(visit: TheVisit) -> Response:
    """Creates the job, or shows the form with its mistakes."""
    written = visit.given(_ALL)
    try:
        values = forms.read(_ALL, {key: value for key, value in written.items() if value})
        body = JobOrder.model_validate(values)
        with visit.unit() as unit:
            submitted = control.submit(unit, body.spec(), job_source="user_api")
            permissions.require_own_key(visit.caller, submitted.job)
    except forms.REFUSED as error:
        return _show(visit, visit.refused(error, written, "No job was created"))
    message = "The job was created." if submitted.is_new else "This unfinished job is the same."
    return visit.redirect(path("jobs", submitted.job.id), message)
