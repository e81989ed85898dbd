"""`/console/jobs/ID`: one job, its executions, and what can be done to it."""

from collections.abc import Callable
from uuid import UUID

from fastapi import APIRouter, Request, Response

from pgbeat.database import connections
from pgbeat.errors import Forbidden, PgbeatError
from pgbeat.jobs import executions, permissions
from pgbeat.jobs import explain as whereabouts
from pgbeat.jobs import model as jobs
from pgbeat.jobs.groups import model as groups
from pgbeat.jobs.model import Job
from pgbeat.jobs.permissions import Verb
from pgbeat.web.api import jobs as api
from pgbeat.web.api.job_models import FoundJob
from pgbeat.web.api.steering import seen_job
from pgbeat.web.backend import Backend, TheBackend
from pgbeat.web.identity import Caller, TheCaller
from pgbeat.web.pages import forms, job_fields, summaries
from pgbeat.web.pages.forms import Field, Form
from pgbeat.web.pages.render import Fields, PageRoute, done, page, path, said_of, unknown

router = APIRouter(route_class=PageRoute)

_MEMBERS = 50


@router.get("/console/jobs/{job_id}")
def job_page(request: Request, backend: TheBackend, caller: TheCaller, job_id: str) -> Response:
    """One job."""
    return _show(request, backend, caller, job_id)


def _show(
    request: Request,
    backend: Backend,
    caller: Caller,
    job_id: str,
    *,
    status: int = 200,
    error: str | None = None,
    form: Form | None = None,
) -> Response:
    with backend.transaction() as connection:
        now = connections.now(connection)
        job = seen_job(connection, backend, caller, job_id)
        runs = executions.of_job(connection, job.id, limit=20)
        where = whereabouts.of_job(connection, job, now)
        chain = sorted(
            jobs.find(connection, [each for each in (job.retry_of, job.retried_by) if each]),
            key=lambda each: each.attempt,
        )
        members = groups.members(connection, job.group_id, limit=_MEMBERS) if job.group_id else []
        fields = _fields(caller)
        waits = job.state in ("pending", "scheduled", "paused") and _may(caller, "update", job)
        offers = job_fields.offers(connection, backend, fields) if waits else {}
    flower = backend.settings.web_flower_url
    now_running = runs[0] if runs and job.state == "running" else None
    progress = now_running and summaries.Progress(
        now_running.progress_done, now_running.progress_total, now_running.progress_message
    )
    return page(
        request, "job.html", caller=caller, backend=backend, here="jobs", of=f"job:{job.id}",
        now=now, status=status,
        error=error, job=job, runs=runs, where=where, chain=chain, members=members,
        progress=progress, verbs=[each for each in _offered(job) if _may(caller, each, job)],
        form=(form or Form(_written(job))) if waits else None, fields=fields, offers=offers,
        flower=f"{flower.rstrip('/')}/task/{job.id}" if flower else None,
    )  # fmt: skip


def _offered(job: Job) -> list[Verb]:
    """What its state allows."""
    found: list[Verb] = []
    if job.awaits_approval and job.state == "paused":
        found.append("approve")
    elif job.state == "paused":
        found.append("resume")
    if job.state in ("pending", "scheduled"):
        found.append("pause")
    if job.state in ("failed", "cancelled", "skipped") and job.args is not None:
        found.append("retry")
    found.append("delete" if job.has_ended else "cancel")
    return found


def _may(caller: Caller, verb: Verb, job: Job) -> bool:
    try:
        permissions.require(caller, verb, job)
    except Forbidden:
        return False
    return True


@router.post("/console/jobs/{job_id}")
def change_job(
    request: Request, backend: TheBackend, caller: TheCaller, job_id: str, fields: Fields
) -> Response:
    """Does what a form of the page asks for: `do`."""
    verb = fields.get("do", "")
    with backend.transaction() as connection:
        job = seen_job(connection, backend, caller, job_id)
    try:
        if verb == "delete":
            api.delete_job(backend, caller, job.id)
            return done(request, path("jobs"), f"Job {job.id} was deleted.")
        if verb == "update":
            return _update(request, backend, caller, job, fields)
        if verb not in _VERBS:
            raise unknown(fields)
        do, said = _VERBS[verb]
        changed = do(backend, caller, job.id, fields)
    except PgbeatError as error:
        status, _, detail = said_of(request, error)
        return _show(request, backend, caller, job_id, status=status, error=detail)
    if verb == "cancel" and changed.completed_at is None:
        said = "Its worker was asked to end it."
    return done(request, path("jobs", changed.id), said)


#: What its form changes while it waits.
_FIELDS = (
    Field("priority", "Priority", "number", "0 to 255: the highest goes first"),
    Field("run_at", "Not before", "moment", "UTC; empty: as soon as possible"),
    Field("max_attempts", "Attempts", "number", "in all; 1 for no retry"),
    Field("lane", "Lane", offer="lanes", hint="empty: none"),
)


def _fields(caller: Caller) -> tuple[Field, ...]:
    return _FIELDS if caller.is_admin else _FIELDS[:-1]


def _written(job: Job) -> dict[str, str]:
    """The fields as the job is."""
    return {each.name: forms.text(each.kind, getattr(job, each.name)) for each in _FIELDS}


def _update(
    request: Request, backend: Backend, caller: Caller, job: Job, posted: Fields
) -> Response:
    """Changes what differs from what the page had, or says beside the fields why not."""
    fields = _fields(caller)
    given, before = forms.given(fields, posted), _written(job)
    try:
        changed = {name: value for name, value in given.items() if value != before[name]}
        values = forms.read(fields, changed)
        if not values:
            return done(request, path("jobs", job.id), "Nothing was changed.")
        api.update_job(backend, caller, job.id, api.JobChanges.model_validate(values))
    except forms.REFUSED as error:
        status, errors = forms.refused(request, error, given)
        said = forms.headline(errors, "Nothing was changed")
        form = Form(given, errors)
        return _show(request, backend, caller, str(job.id), status=status, error=said, form=form)
    return done(request, path("jobs", job.id), "The job was changed.")


def _cancel(backend: Backend, caller: Caller, job_id: UUID, fields: Fields) -> FoundJob:
    reason = fields.get("reason", "").strip()[:500] or None
    return api.cancel_job(backend, caller, job_id, api.JobCancel(reason=reason))


#: What can be done by a button beside deleting, and what is said then.
_VERBS: dict[str, tuple[Callable[[Backend, Caller, UUID, Fields], FoundJob], str]] = {
    "cancel": (_cancel, "The job was cancelled."),
    "pause": (lambda *of: api.pause_job(*of[:3]), "The job is paused."),
    "resume": (lambda *of: api.resume_job(*of[:3]), "The job goes on."),
    "approve": (lambda *of: api.approve_job(*of[:3]), "The job was approved, and goes on."),
    "retry": (lambda *of: api.retry_job(*of[:3]), "This is the new job, which tries it again."),
}
