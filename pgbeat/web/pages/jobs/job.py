"""`/console/jobs/ID`: one job, its executions, its verbs, and the tree that it is a part of."""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from sqlalchemy import Connection

from pgbeat.errors import Forbidden, InvalidTransition, NoReply, NotFound, PgbeatError
from pgbeat.jobs.checks import permissions
from pgbeat.jobs.checks.permissions import Verb
from pgbeat.jobs.explaining import explain as whereabouts
from pgbeat.jobs.explaining import trace_rows, tree
from pgbeat.jobs.flow import dependencies
from pgbeat.jobs.groups import model as groups
from pgbeat.jobs.rows import model as jobs
from pgbeat.jobs.rows.model import Job
from pgbeat.jobs.running import executions, stacks, steps, task_logs
from pgbeat.jobs.verbs import changes as job_changes
from pgbeat.jobs.verbs import control
from pgbeat.results import lookup
from pgbeat.results.lookup import TaskResult
from pgbeat.views.jobs import progress_of
from pgbeat.web.api.visible import visible_job
from pgbeat.web.pages import forms
from pgbeat.web.pages.forms import Form, FormField
from pgbeat.web.pages.jobs import job_fields, trace_chart
from pgbeat.web.pages.render import PageRoute, TheVisit, Visit, path

router = APIRouter(route_class=PageRoute)

#: Executions and members of a group that are shown.
_RUNS, _MEMBERS = 20, 50


@router.get("/console/jobs/{job_id}")
def job_page(
    visit: TheVisit,
    job_id: str,
    log: Annotated[int | None, Query(ge=1, le=2**31 - 1)] = None,
    ask: bool = False,
) -> Response:
    """Shows a job or, to a caller who sees everything, the result of a task that is not a job.

    `log` is the number of the execution whose lines are shown; by default the newest that has some.
    With `ask`, asks first what it is doing.
    """
    try:
        if ask:
            return _ask(visit, job_id)
        return _show(visit, job_id, log=log)
    except NotFound:
        with visit.reading() as connection:
            if not visit.caller.sees_all:
                raise
            result = _result(connection, visit, job_id)
        if result is None:
            raise
        result = visit.redactor.row(result, result.task)
        return visit.page("result.html", "jobs", result=result)


@router.get("/console/jobs/{job_id}/tree")
def tree_page(visit: TheVisit, job_id: str) -> Response:
    """Shows the canvas, group and retries of a job, and what blocks what."""
    with visit.reading() as connection:
        job = visible_job(connection, visit, job_id)
        prefix = lookup.prefix_of(visit.backend.celery.conf)
        whole = tree.of_job(connection, visit.redactor, job, prefix=prefix)
    is_over = all(node.finished_at or node.kind != "job" for node in whole.root.all())
    return visit.page("job_tree.html", "jobs", job=job, tree=whole, is_over=is_over)


def _ask(visit: Visit, job_id: str) -> Response:
    """Asks a running job what it is doing, and leads to its page, which shows the answer."""
    with visit.backend.asking() as connection:
        job = visible_job(connection, visit, job_id)
        try:
            stack = stacks.ask(connection, visit.redactor, job)
        except (InvalidTransition, NoReply) as error:
            return visit.redirect(path("jobs", job.id), str(error), is_good=False)
    place = f"#stack-{stack.execution_id}-{stack.reason}"
    return visit.redirect(path("jobs", job.id) + place, "This is what it was doing just now.")


def _result(connection: Connection, visit: Visit, task_id: str) -> TaskResult | None:
    prefix = lookup.prefix_of(visit.backend.celery.conf)
    return lookup.find(connection, task_id, prefix=prefix)


def _show(
    visit: Visit, job_id: str, *, form: Form | None = None, log: int | None = None, **more: Any
) -> Response:
    with visit.reading() as connection:
        job = visible_job(connection, visit, job_id)
        runs = executions.of_job(connection, job.id, limit=_RUNS)
        logged = task_logs.numbers(connection, job, limit=_RUNS)
        logs = task_logs.of_job(connection, visit.redactor, job, number=log, limit=1)
        kept = stacks.of_job(connection, visit.redactor, job)
        result = _result(connection, visit, str(job.id))
        where = whereabouts.of_job(connection, job, visit.now)
        known = steps.of_job(connection, visit.redactor, job)
        trace = trace_rows.of_job(connection, visit.redactor, job, visit.now, known)
        chain = jobs.find_brief(connection, [key for key in (job.retry_of, job.retried_by) if key])
        parents = dependencies.of_jobs(connection, [job.id], limit=_MEMBERS).get(job.id, [])
        parent_jobs = {row.id: row for row in jobs.find_brief(connection, [p.id for p in parents])}
        following = dependencies.dependents(connection, visit.caller, job.id, limit=20)
        dependents = jobs.find_brief(connection, following)
        members = groups.members(connection, job.group_id, limit=_MEMBERS) if job.group_id else []
        fields = _fields(visit)
        waits = job.state in ("pending", "scheduled", "paused") and _may(visit, "update", job)
        offers = job_fields.offers(connection, visit.backend, fields) if waits else {}
    redactor = visit.redactor
    runs = [redactor.row(run, job.task) for run in runs]
    flower = visit.backend.settings.web_flower_url
    return visit.page(
        "job.html",
        "jobs",
        form=(form or Form(_written(job))) if waits else None,
        job=job,
        runs=runs,
        logged=logged,
        log=logs[0] if logs else None,
        stacks=kept,
        steps=known,
        result=redactor.row(result, job.task),
        where=where,
        trace=trace_chart.drawing(trace, visit.now),
        chain=sorted(redactor.rows(chain), key=lambda retry: retry.attempt),
        members=members,
        parents=[(parent, parent_jobs.get(parent.id)) for parent in parents],
        dependents=dependents,
        progress=progress_of(runs[0]) if runs and job.state == "running" else None,
        verbs=[verb for verb in _offered(job) if _may(visit, verb, job)],
        may_run_like=_may_run_like(visit, job),
        fields=fields,
        offers=offers,
        flower=f"{flower.rstrip('/')}/task/{job.id}" if flower else None,
        **more,
    )


def _offered(job: Job) -> list[Verb]:
    """Returns the verbs that the job's state allows."""
    verbs: list[Verb] = []
    if job.awaits_approval and job.state == "paused":
        verbs.append("approve")
    elif job.state == "paused":
        verbs.append("resume")
    if job.state in ("pending", "scheduled"):
        verbs.append("pause")
    if job.state in ("failed", "cancelled", "skipped") and job.args is not None:
        verbs.append("retry")
    verbs.append("delete" if job.has_ended else "cancel")
    return verbs


def _may(visit: Visit, verb: Verb, job: Job) -> bool:
    try:
        permissions.require(visit.caller, verb, job)
    except Forbidden:
        return False
    return True


def _may_run_like(visit: Visit, job: Job) -> bool:
    """Returns whether the caller sees all that a job like this one needs, and may run its task."""
    may_run = permissions.may_run(visit.caller, job.task, of_template=job.template is not None)
    return may_run and job.args is not None and not visit.redactor.names(job.task)


@router.post("/console/jobs/{job_id}")
def change_job(visit: TheVisit, job_id: str) -> Response:
    """Does what the form's `do` says."""
    with visit.reading() as connection:
        job = visible_job(connection, visit, job_id)
    verb = visit.verb(("update", *_VERBS))
    try:
        if verb == "update":
            return _update(visit, job)
        act, message = _VERBS[verb]
        more = {"reason": visit.reason()} if verb == "cancel" else {}
        with visit.unit() as unit:
            changed = act(unit, job.id, **more)
    except PgbeatError as error:
        return _show(visit, job_id, error=error)
    if verb == "delete":
        return visit.redirect(path("jobs"), f"Job {job.id} was deleted.")
    if verb == "cancel" and changed.finished_at is None:
        message = "Its worker was asked to end it."
    return visit.redirect(path("jobs", changed.id), message)


#: The fields that can be changed while the job waits.
_FIELDS = (
    FormField("priority", "Priority", "number", "0 to 255: the highest goes first"),
    FormField("run_at", "Not before", "moment", "UTC; empty: as soon as possible"),
    FormField("max_attempts", "Attempts", "number", "in all; 1 for no retry"),
    FormField("lane", "Lane", offer="lanes", hint="empty: none"),
)


def _fields(visit: Visit) -> tuple[FormField, ...]:
    return _FIELDS if visit.caller.is_admin else _FIELDS[:-1]


def _written(job: Job) -> dict[str, str]:
    return {field.name: forms.text(field.kind, getattr(job, field.name)) for field in _FIELDS}


def _update(visit: Visit, job: Job) -> Response:
    """Changes the fields that differ from the job, or shows the form with its mistakes."""
    fields = _fields(visit)
    written, before = visit.given(fields), _written(job)
    try:
        changed = {name: value for name, value in written.items() if value != before[name]}
        values = forms.read(fields, changed)
        if not values:
            return visit.redirect(path("jobs", job.id), "Nothing was changed.")
        with visit.unit() as unit:
            job_changes.update(unit, job.id, values=values)
    except forms.REFUSED as error:
        form = visit.refused(error, written, "Nothing was changed")
        return _show(visit, str(job.id), form=form)
    return visit.redirect(path("jobs", job.id), "The job was changed.")


#: The verbs, and the message afterwards.
_VERBS: dict[str, tuple[Callable[..., Job], str]] = {
    "cancel": (control.cancel, "The job was cancelled."),
    "pause": (control.pause, "The job is paused."),
    "resume": (control.resume, "The job continues."),
    "approve": (control.approve, "The job was approved, and continues."),
    "retry": (
        partial(control.retry, job_source="user_api"),
        "This is the new job, which tries it again.",
    ),
    "delete": (control.delete, ""),
}
