"""Logs which executions and jobs were given up as lost, and which jobs are retried."""

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import Connection

from pgbeat.database import connections
from pgbeat.jobs.rows import model as jobs
from pgbeat.jobs.rows.model import Job
from pgbeat.jobs.running import executions
from pgbeat.timetables import span

logger = logging.getLogger("pgbeat.jobs")


class Loss(NamedTuple):
    """A job whose execution was lost, or that was given up before it began."""

    job_id: UUID | str
    #: `None` if no execution was recorded.
    execution_id: UUID | None = None


class LogMessage(NamedTuple):
    """A log message, and its fields for programs."""

    level: int
    message: str
    fields: dict[str, Any]


def describe(connection: Connection, losses: Sequence[Loss]) -> list[LogMessage]:
    """Returns the messages about these losses. Call it in the transaction that wrote them."""
    if not losses:
        return []
    now = connections.now(connection)
    by_id = {job.id: job for job in jobs.find(connection, {loss.job_id for loss in losses})}
    again = [job.retried_by for job in by_id.values() if job.retried_by is not None]
    retries = {job.id: job for job in jobs.find(connection, again)}
    lines: list[LogMessage] = []
    for loss in losses:
        job = by_id.get(UUID(str(loss.job_id)))
        if job is None:
            continue
        if loss.execution_id is not None:
            lines.append(_of_execution(connection, loss.execution_id, job, now))
        if job.state != "completed":
            retry = retries.get(job.retried_by) if job.retried_by else None
            lines.append(_of_job(job, retry, now))
    lines.extend(_of_lanes([job for job in by_id.values() if job.has_ended]))
    return lines


def log(lines: Sequence[LogMessage]) -> None:
    """Logs the messages. Call it after the commit."""
    for line in lines:
        logger.log(line.level, "%s", line.message, extra=line.fields)


def _of_execution(
    connection: Connection, execution_id: UUID, job: Job, now: datetime
) -> LogMessage:
    execution = executions.get(connection, execution_id)
    age = span(now - execution.started_at)
    error = (execution.error or "").removeprefix("lost: ")
    what = f"Execution {execution.number} of job {job.id} ({job.task})"
    fields = {"execution_id": str(execution.id), "worker": execution.worker, "lock_age": age}
    message = f"{what} is lost after {age}: {error}"
    if execution.state == "completed":
        message = f"{what} has completed, as its result says, though {execution.worker} died"
    return LogMessage(logging.WARNING, message, {**fields, **_fields(job)})


def _of_job(job: Job, retry: Job | None, now: datetime) -> LogMessage:
    name, attempt = f"Job {job.id} ({job.task})", f"attempt {job.attempt}/{job.max_attempts}"
    fields = _fields(job)
    if retry is not None and retry.run_at is not None:
        fields |= {"retry_id": str(retry.id), "retry_at": retry.run_at.isoformat()}
        wait = span(max(retry.run_at - now, now - now))
        message = f"{name} failed ({attempt}), retrying in {wait} as job {retry.id}: {job.error}"
        return LogMessage(logging.WARNING, message, fields)
    if job.state == "failed":
        return LogMessage(logging.ERROR, f"{name} failed ({attempt}): {job.error}", fields)
    if job.has_ended:
        return LogMessage(logging.WARNING, f"{name} is {job.state}: {job.error}", fields)
    message = f"{name} runs again once its message is delivered again"
    return LogMessage(logging.WARNING, message, fields)


def _of_lanes(ended: Sequence[Job]) -> Iterator[LogMessage]:
    slots = Counter(job.lane for job in ended if job.lane is not None)
    for lane, count in sorted(slots.items()):
        what = "1 slot" if count == 1 else f"{count} slots"
        message = f"Cleared stale locks: {what} of lane '{lane}' {'is' if count == 1 else 'are'}"
        yield LogMessage(logging.WARNING, f"{message} free again", {"lane": lane, "slots": count})


_FIELDS = ("namespace", "task", "state", "schedule", "lane", "attempt", "max_attempts", "error")


def _fields(job: Job) -> dict[str, Any]:
    values = {name: getattr(job, name) for name in _FIELDS}
    known = {name: value for name, value in values.items() if value is not None}
    return {"job_id": str(job.id), **known}
