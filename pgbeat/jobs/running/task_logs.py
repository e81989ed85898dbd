"""Reads what tasks logged: the last lines of each execution."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import Connection, text

from pgbeat.access.redaction import Redactor
from pgbeat.jobs.rows.model import Job


class LogLine(NamedTuple):
    """A line that a task logged."""

    at: datetime
    level: str
    logger: str
    message: str


class ExecutionLog(NamedTuple):
    """The last lines of an execution."""

    execution_id: UUID
    number: int
    state: str
    started_at: datetime
    #: Lines before them that were not kept.
    omitted: int
    lines: list[LogLine]


_LOGS = text(
    """
    SELECT id, number, state, started_at, log FROM pgbeat.executions
     WHERE job_id = :id AND log IS NOT NULL
       AND (CAST(:number AS integer) IS NULL OR number = :number)
     ORDER BY number DESC LIMIT :limit
    """
)
_NUMBERS = text(
    """
    SELECT number FROM (SELECT number, log IS NOT NULL AS has_log FROM pgbeat.executions
                         WHERE job_id = :id ORDER BY number DESC LIMIT :limit) AS e
     WHERE has_log ORDER BY number DESC
    """
)


def of_job(
    connection: Connection,
    redactor: Redactor,
    job: Job,
    *,
    number: int | None = None,
    limit: int = 20,
) -> list[ExecutionLog]:
    """Returns the lines of a job's executions, or of that number, masked; the newest first."""
    rows = connection.execute(_LOGS, {"id": job.id, "number": number, "limit": limit})
    return [
        ExecutionLog(row.id, row.number, row.state, row.started_at, *_read(row, redactor, job.task))
        for row in rows
    ]


def numbers(connection: Connection, job: Job, *, limit: int) -> list[int]:
    """Returns which of a job's newest executions have lines, the newest first."""
    return list(connection.scalars(_NUMBERS, {"id": job.id, "limit": limit}))


def _read(row: Any, redactor: Redactor, task: str) -> tuple[int, list[LogLine]]:
    stored: Iterable[Any] = row.log.get("lines", [])
    began = row.started_at
    lines = [
        LogLine(began + timedelta(seconds=float(after)), level, logger, redactor.text(task, line))
        for after, level, logger, line in stored
    ]
    return row.log.get("omitted", 0), lines
