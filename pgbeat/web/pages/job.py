"""`/console/jobs/ID`: one job, its executions, and what can be done to it."""

from collections.abc import Callable

from fastapi import APIRouter, Request, Response
from sqlalchemy import Connection

from pgbeat import control, db, executions, groups, jobs, permissions, whereabouts
from pgbeat.control import Change
from pgbeat.errors import Forbidden, PgbeatError
from pgbeat.jobs import Job
from pgbeat.permissions import Verb
from pgbeat.publisher import Publisher
from pgbeat.web.api.steering import seen_job
from pgbeat.web.backend import Backend, TheBackend
from pgbeat.web.identity import Caller, TheCaller
from pgbeat.web.notes import note
from pgbeat.web.pages import figures
from pgbeat.web.pages.render import Fields, PageRoute, done, page, path, said_of, unknown

router = APIRouter(route_class=PageRoute)

_MEMBERS = 200


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
) -> Response:
    with backend.transaction() as connection:
        now = db.now(connection)
        job = seen_job(connection, backend, caller, job_id)
        runs = executions.of_job(connection, job.id, limit=20)
        where = whereabouts.of_job(connection, job, now)
        chain = sorted(
            jobs.find(connection, [each for each in (job.retry_of, job.retried_by) if each]),
            key=lambda each: each.attempt,
        )
        members = groups.members(connection, job.group_id)[:_MEMBERS] if job.group_id else []
    flower = backend.settings.web_flower_url
    now_running = runs[0] if runs and job.state == "running" else None
    progress = now_running and figures.Progress(
        now_running.progress_done, now_running.progress_total, now_running.progress_message
    )
    return page(
        request, "job.html", caller=caller, backend=backend, here="jobs", now=now, status=status,
        error=error, job=job, runs=runs, where=where, chain=chain, members=members,
        progress=progress, verbs=[each for each in _offered(job) if _may(caller, each, job)],
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
            return _delete(request, backend, caller, job)
        if verb not in _DONE:
            raise unknown(fields)
        reason = fields.get("reason", "").strip()[:500] or None
        changed = _change(backend, caller, job, verb, reason)
    except PgbeatError as error:
        status, _, detail = said_of(request, error)
        return _show(request, backend, caller, job_id, status=status, error=detail)
    said = _DONE[verb]
    if verb == "cancel" and not changed.has_ended:
        said = "Its worker was asked to end it."
    return done(request, path("jobs", changed.id), said)


_DONE = {
    "cancel": "The job was cancelled.",
    "pause": "The job is paused.",
    "resume": "The job goes on.",
    "approve": "The job was approved, and goes on.",
    "retry": "This is the new job, which tries it again.",
}


def _change(backend: Backend, caller: Caller, job: Job, verb: str, reason: str | None) -> Job:
    """Does it, and notes it in the same transaction."""

    def doing(publisher: Publisher) -> Callable[[Connection], Change]:
        def do(connection: Connection) -> Change:
            if verb == "cancel":
                change = control.cancel(connection, publisher, caller, job.id, reason=reason)
            elif verb == "pause":
                change = control.pause(connection, publisher, caller, job.id)
            elif verb == "resume":
                change = control.resume(connection, publisher, caller, job.id)
            elif verb == "approve":
                change = control.approve(connection, publisher, caller, job.id)
            else:
                change = control.retry(connection, publisher, caller, job.id, job_source="user_api")
            after = {"state": change.job.state, "job_id": str(change.job.id)}
            if verb == "cancel" and not change.job.has_ended:
                after["cancel_requested_by"] = caller.name
            before = {"state": job.state, "job_id": str(job.id)}
            note(connection, backend, caller, verb, "job", str(job.id), before, after)
            return change

        return do

    with backend.publishing() as publisher, backend.session() as connection:
        return control.act(connection, publisher, doing(publisher)).job


def _delete(request: Request, backend: Backend, caller: Caller, job: Job) -> Response:
    with backend.transaction() as connection:
        gone = control.delete(connection, caller, job.id)
        before = {"task": gone.task, "state": gone.state, "schedule": gone.schedule}
        note(connection, backend, caller, "delete", "job", str(job.id), before, None)
    return done(request, path("jobs"), f"Job {job.id} was deleted.")
