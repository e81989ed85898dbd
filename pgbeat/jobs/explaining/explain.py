"""Explains where a job is, and why it isn't running."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Connection, text

from pgbeat.access.redaction import Redactor
from pgbeat.database import connections
from pgbeat.jobs.flow import batch_members, dependencies
from pgbeat.jobs.flow.batch_members import WaitingBatch
from pgbeat.jobs.lanes import concurrency, occupancy, slots
from pgbeat.jobs.lanes import model as lanes
from pgbeat.jobs.lanes import waiting as lines
from pgbeat.jobs.lanes.model import Lane
from pgbeat.jobs.rows import model as jobs
from pgbeat.jobs.rows.model import Job
from pgbeat.timetables import span


class Whereabouts(NamedTuple):
    """Where a job is: a word for programs, a sentence without its subject, and advice."""

    cause: str
    sentence: str
    advice: str = ""


def of_job(connection: Connection, job: Job, now: datetime) -> Whereabouts:
    """Returns where a job is at `now`, the database's time. A transaction must be open."""
    if job.has_ended:
        verb = "is" if job.state == "cancelled" else "was" if job.state == "skipped" else "has"
        return Whereabouts("ended", f"{verb} {job.state}")
    if job.state == "running":
        return _running(job, now)
    if job.awaits_approval:
        advice = f"`pgbeat jobs approve {job.id}` lets it run, `cancel` ends it."
        return Whereabouts("approval", "awaits a person's approval", advice)
    if job.state == "paused":
        return Whereabouts("paused", "is paused", f"`pgbeat jobs resume {job.id}` lets it run.")
    if job.unfinished_parents:
        return _dependent(connection, job)
    if job.is_blocked and job.callback_of is not None:
        return Whereabouts("callback", f"waits for the end of group {job.callback_of}")
    if job.is_blocked:
        return Whereabouts("group", f"waits for the job before it in group {job.group_id}")
    if job.state == "scheduled":
        return _scheduled(connection, job, now)
    if lines.is_waiting(job):
        return _in_line(connection, job)
    batch = batch_members.waiting(connection, job)
    if batch is not None:
        return _in_batch(batch, now)
    if job.dispatched_at is None:
        return Whereabouts("outbox", "waits for beat, which sends its message")
    accepted = _accepted(connection, job, now)
    if accepted is not None:
        return accepted
    queue = "the broker" if job.queue is None else f"queue {job.queue!r}"
    waits = f"waits in {queue} for a worker, for {span(now - job.dispatched_at)}"
    return Whereabouts("queue", waits, _WORKERS)


def sentences(connection: Connection, redactor: Redactor, job_ids: list[str]) -> dict[str, str]:
    """Returns where jobs are, masked, by their ids. A transaction must be open."""
    now = connections.now(connection)
    rows = redactor.rows(jobs.find_brief(connection, job_ids))
    return {str(job.id): of_job(connection, job, now).sentence for job in rows}


def _dependent(connection: Connection, job: Job) -> Whereabouts:
    parents = dependencies.of_jobs(connection, [job.id]).get(job.id, [])
    waits_for = [str(parent.id) for parent in parents if parent.outcome is None]
    if not waits_for:
        return Whereabouts("parents", "waited for a job that has ended just now")
    if len(parents) == 1:
        return Whereabouts("parents", f"waits for job {waits_for[0]} to end")
    says = f"waits for {job.unfinished_parents} of {len(parents)} jobs to end, first {waits_for[0]}"
    return Whereabouts("parents", says)


_WORKERS = "`pgbeat queues` shows the consumers; a worker is shown only if it records executions."


_ACCEPTED = text(
    """
    SELECT e.how, e.ended_at, e.worker_id, w.name
      FROM pgbeat.message_ends e LEFT JOIN pgbeat.workers w ON w.id = e.worker_id
     WHERE e.job_id = :id ORDER BY e.id DESC LIMIT 1
    """
)


def _accepted(connection: Connection, job: Job, now: datetime) -> Whereabouts | None:
    """Returns the explanation if a worker has acknowledged the job's message."""
    row = connection.execute(_ACCEPTED, {"id": job.id}).one_or_none()
    if row is None or row.how != "accepted" or row.ended_at < (job.dispatched_at or row.ended_at):
        return None
    ago = span(max(now - row.ended_at, now - now))
    if row.worker_id is None:
        says = f"was accepted {ago} ago by a worker that records nothing"
        advice = f"`pgbeat jobs cancel {job.id}` ends it, if you know that it doesn't run."
        return Whereabouts("accepted", says, advice)
    worker = "a worker that is gone" if row.name is None else f"worker {row.name}"
    says = f"was accepted {ago} ago by {worker}, which has not recorded yet that it began"
    return Whereabouts("accepted", says)


def _running(job: Job, now: datetime) -> Whereabouts:
    where = f" on {job.worker}" if job.worker else ""
    since = f", for {span(now - job.started_at)}" if job.started_at else ""
    if job.cancel_requested_at is not None:
        asked = span(now - job.cancel_requested_at)
        return Whereabouts("cancelling", f"was cancelled {asked} ago, and still runs{where}")
    return Whereabouts("running", f"runs{where}{since}")


_SNOOZES = text("SELECT count(*) FROM pgbeat.executions WHERE job_id = :id AND state = 'snoozed'")


def _scheduled(connection: Connection, job: Job, now: datetime) -> Whereabouts:
    if job.run_at is None or (job.started_at is not None and job.dispatched_at is not None):
        is_due = job.run_at is not None and job.run_at <= now
        when = "" if job.run_at is None or is_due else f" in {span(job.run_at - now)}"
        due = f"; it has been due for {span(now - job.run_at)}" if job.run_at and is_due else ""
        more = job.attempt < job.max_attempts
        of = f", attempt {job.attempt + 1} of {job.max_attempts}" if job.keeps_id and more else ""
        says = f"is retried by Celery for its task{when}{of}{due}"
        return Whereabouts("retry", says, _WORKERS if is_due else "")
    is_kept = job.started_at is not None and job.dispatched_at is None  # with its message
    if is_kept and job.run_at > now and isinstance(job.message, dict):  # and not masked
        waits_for = job.message.get("waits_for")
        if waits_for is not None:
            return _suspended(waits_for, job.run_at, now)
    if is_kept and job.error is None and job.run_at > now:
        count = connection.scalar(_SNOOZES, {"id": job.id})
        times = "once" if count == 1 else f"{count} times"
        runs = f"is snoozed and runs again in {span(job.run_at - now)}; it was snoozed {times}"
        return Whereabouts("snoozed", runs)
    of = f", attempt {job.attempt} of {job.max_attempts}" if job.retry_of is not None else ""
    if is_kept and job.error is not None:
        of = f", attempt {job.attempt + 1} of {job.max_attempts}"
    cause = "retry" if of else "scheduled"
    if job.run_at > now:
        verb = "is tried again" if of else "comes"
        return Whereabouts(cause, f"{verb} in {span(job.run_at - now)}{of}")
    return Whereabouts(cause, f"has been due for {span(now - job.run_at)}{of}", _WORKERS)


def _suspended(waits_for: Mapping[str, Any], until: datetime, now: datetime) -> Whereabouts:
    """Explains a job that sleeps, or waits for an event, in the midst of its steps."""
    key, left = waits_for["key"], span(until - now)
    if key is None:
        return Whereabouts("sleeping", f"sleeps, and continues in {left}")
    since = span(now - datetime.fromisoformat(waits_for["since"]))
    most = "" if waits_for["until"] is None else f", and waits {left} more at most"
    return Whereabouts("waiting", f"has waited for the event {key!r} for {since}{most}")


def _in_batch(batch: WaitingBatch, now: datetime) -> Whereabouts:
    waits = f"waits for its batch, which has {batch.members} of {batch.size} members"
    if batch.members >= batch.size or batch.due_at <= now:
        return Whereabouts("batch", f"{waits}, and starts as soon as a worker has room", _WORKERS)
    return Whereabouts("batch", f"{waits}, and starts in {span(batch.due_at - now)} at the latest")


def _in_line(connection: Connection, job: Job) -> Whereabouts:
    name = str(job.lane)
    lane = lanes.load(connection, [name], namespace=job.namespace).get(name)
    place = lines.place(connection, job) + 1
    of = f" of {job.fair_key}" if job.fair_key else ""
    waits = f"waits in lane {name!r} at place {place}{of}"
    if lane is None:
        return Whereabouts("lane", f"{waits}; the lane was removed, and beat dispatches it")
    if lane.paused_at is not None:
        advice = f"`pgbeat lanes resume {name}` lets the lane dispatch."
        return Whereabouts("lane_paused", f"{waits}; the lane is paused", advice)
    why = _denial(connection, lane, job)
    return Whereabouts("lane", f"{waits}; {why}" if why else waits)


def _denial(connection: Connection, lane: Lane, job: Job) -> str | None:
    """Returns why a job gets no slot, or else why the first in line doesn't."""
    if lane.policy is not None and lane.policy not in concurrency.registered():
        return f"its policy {lane.policy!r} is code of the app, which is not loaded here"
    if lane.max_per_key is not None:
        denial = slots.limiter(connection, lane).key_denial(job.fair_key)
        if denial is not None:
            return denial
    waiting = occupancy.line(connection, lane)
    mine = [entry for entry in waiting if entry.id == str(job.id)]
    return next((entry.reason for entry in mine or waiting if entry.reason), None)
