"""Keeps what tasks were doing: the stacks of their threads, which their processes read."""

import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from types import MappingProxyType
from typing import Any, Literal, NamedTuple
from uuid import UUID

from sqlalchemy import Connection, text

from pgbeat.access.redaction import Redactor
from pgbeat.database import privileges, sql
from pgbeat.errors import InvalidTransition, NoReply
from pgbeat.jobs.rows.model import Job

Reason = Literal["asked", "soft_time_limit", "time_limit", "deadline", "cancel", "terminated"]
_WORDS: Mapping[Reason, str] = MappingProxyType(
    {
        "asked": "when somebody asked",
        "soft_time_limit": "just before its soft time limit",
        "time_limit": "just before its time limit",
        "deadline": "when it missed its deadline",
        "cancel": "when it was asked to end",
        "terminated": "when it was terminated",
    }
)
#: Seconds in which a process must answer; it looks twice a second. Seconds between two looks.
TIMEOUT, _POLL = 5.0, 0.1


class Stack(NamedTuple):
    """What the task of an execution was doing."""

    execution_id: UUID
    #: The execution's.
    number: int
    reason: Reason
    taken_at: datetime
    #: Resident, of its process; `None` if the system doesn't say.
    memory_mb: float | None
    #: The innermost call is the last.
    stack: str

    @property
    def words(self) -> str:
        """When it was taken, for people."""
        return _WORDS[self.reason]


_SQL = "stacks.sql"
_ASK, _ANSWER = text(sql.load(_SQL, "ask")), text(sql.load(_SQL, "answer"))
_KEEP, _OF_JOB = text(sql.load(_SQL, "keep")), text(sql.load(_SQL, "of_job"))
_DELETE = text("DELETE FROM pgbeat.stacks WHERE job_id = :job")


def of_job(
    connection: Connection, redactor: Redactor, job: Job, *, ask_first: bool = False
) -> list[Stack]:
    """Returns the newest 100 stacks of a job's executions, masked; the newest first.

    With `ask_first` the newest is that of now, if the job runs: raises `NoReply` as `ask` does.
    """
    if not privileges.may_read(connection, "stacks"):
        return []
    if ask_first and job.state == "running":
        with suppress(InvalidTransition):  # it has just ended
            ask(connection, redactor, job)
    rows = connection.execute(_OF_JOB, {"job": job.id})
    return [_read(row, redactor, job) for row in rows]


def ask(connection: Connection, redactor: Redactor, job: Job, *, timeout: float = TIMEOUT) -> Stack:
    """Asks the process that runs a job for its stack, waits for it, and returns it, masked.

    The connection is in autocommit mode. Raises `InvalidTransition` if the job doesn't run, and
    `NoReply` if the process doesn't answer.
    """
    request = connection.execute(_ASK, {"job": job.id}).one_or_none()
    if request is None:
        raise InvalidTransition.of(job.id, job.state, "asked", "only running jobs have a stack")
    until = time.monotonic() + timeout
    while (answer := connection.execute(_ANSWER, request._asdict()).one_or_none()) is None:
        if time.monotonic() > until:
            raise NoReply(
                f"the process of job {job.id} has not answered within {timeout:g} seconds: its "
                "worker is dead or of an older version, or its task lets no other thread run"
            )
        time.sleep(_POLL)
    return _read(answer, redactor, job)


def _read(row: Any, redactor: Redactor, job: Job) -> Stack:
    return Stack(*row)._replace(stack=redactor.text(job.task, row.stack))


def keep(connection: Connection, row: Mapping[str, Any]) -> None:
    """Writes a stack: `job_id`, `execution_id`, `reason`, `memory_mb` and `stack`."""
    if privileges.may_read(connection, "stacks"):
        connection.execute(_KEEP, row)


def delete(connection: Connection, job_id: UUID) -> None:
    """Deletes the stacks of a job."""
    if privileges.may_read(connection, "stacks"):
        connection.execute(_DELETE, {"job": job_id})
