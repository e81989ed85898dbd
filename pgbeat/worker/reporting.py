"""Lets a running task report progress and data, keep checkpoints, and check whether to end.

Outside of a tracked task these functions do nothing, except `current`, which needs no tracking.
"""

import logging
import math
import os
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, overload

from celery._state import get_current_task, get_current_worker_task
from sqlalchemy import text

from pgbeat.broker.messages import JOB_HEADER, NEW_JOB_HEADER
from pgbeat.jobs.messages.headers import ATTEMPT as ATTEMPT_HEADER
from pgbeat.jobs.messages.headers import (
    CALLBACK_OF,
    DUE_AT,
    INTERVAL_END,
    INTERVAL_START,
    SCHEDULE,
    TRIGGER,
)
from pgbeat.jobs.running.executions import ARTIFACTS, artifacts_of
from pgbeat.jobs.running.task_exceptions import Cancelled
from pgbeat.storable import escaped
from pgbeat.worker.recording import attempts

if TYPE_CHECKING:
    from pgbeat.worker.recording.attempts import Attempt
    from pgbeat.worker.recording.recorder import Recorder

logger = logging.getLogger("celery.worker.pgbeat")

#: How many artifacts are kept of an execution, and how long each may be.
_MOST, _LONGEST = 1000, 2000
#: Seconds that a task waits for its checkpoint to be written, or read.
PATIENCE = 10.0
#: Where a task's request has its attempt.
ATTEMPT = "pgbeat_attempt"
_LEFT = text("SELECT checkpoint FROM pgbeat.jobs WHERE id = CAST(:id AS uuid)")


@dataclass(frozen=True, slots=True)
class Current:
    """The job that a task runs for.

    The attributes about a schedule are `None` for a job that a person or a program submitted.
    Redeliveries and retries keep them.

    Attributes:
        job_id: The id of the job and of the Celery task.
        attempt: The number of the attempt that this job is, from 1. Celery's own retries don't
            count, except those of a task's policy.
        schedule: The schedule's name.
        due_at: When it was due by the timetable, in UTC, however late it runs; out of turn, the
            moment.
        interval_start: The due time of the timetable before `interval_end`, if there is one.
        interval_end: The end of the interval that the job is for: `due_at`, or before it if the job
            runs out of turn.
        trigger: Why it was launched: `timetable`, `retry`, `after`, `manual` or `backfill`.
        callback_of: The id of the group whose callback the job is.
    """

    job_id: str
    attempt: int = 1
    schedule: str | None = None
    due_at: datetime | None = None
    interval_start: datetime | None = None
    interval_end: datetime | None = None
    trigger: str | None = None
    callback_of: str | None = None


def current() -> Current | None:
    """Returns the job that the running task is for.

    Returns `None` outside of a task, and in a task that is not a job of pgbeat.
    """
    task = get_current_worker_task()
    request: Any = None if task is None else task.request
    if request is None or not getattr(request, JOB_HEADER, None):
        return None
    due_at = getattr(request, DUE_AT, None)
    return Current(
        job_id=str(request.id),
        attempt=_attempt(request),
        schedule=getattr(request, SCHEDULE, None),
        due_at=_read(due_at),
        interval_start=_read(getattr(request, INTERVAL_START, None)),
        interval_end=_read(getattr(request, INTERVAL_END, None) or due_at),
        trigger=getattr(request, TRIGGER, None),
        callback_of=getattr(request, CALLBACK_OF, None),
    )


def _attempt(request: Any) -> int:
    new_job = getattr(request, NEW_JOB_HEADER, None)
    if new_job is None:
        return int(getattr(request, ATTEMPT_HEADER, None) or 1)
    # Of one sent as a task, retries have its id; those beyond its policy's are the task's own.
    most = new_job["policy"].get("max_attempts") or 1
    return min(int(request.retries or 0) + 1, int(most))


def _read(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def progress(done: float, total: float | None = None, message: str | None = None) -> None:
    """Reports how much is done, the total, and a message.

    It is cheap: progress is written about twice a second. Raises `Cancelled` once the job must be
    cancelled.
    """
    attempt, recorder = current_attempt()
    if attempt is None or recorder is None:
        return
    words = None if message is None else attempts.text(str(message), attempts.ERROR)
    attempt.progress = (_number(done), _number(total), words)
    recorder.outbox.add_progress(attempt)
    _end_if_cancelled(attempt)


@overload
def checkpoint() -> Any: ...
@overload
def checkpoint(data: Any) -> None: ...


def checkpoint(data: Any = None) -> Any:
    """Keeps `data` (JSON) for the next attempt, or without `data` returns the last checkpoint.

    The data is in the database when this returns; if the database is away, it returns after ten
    seconds, logs a warning, and the data is written later. A checkpoint may come from this attempt,
    an earlier one, or the job that this one retries; `None` without one.

    Raises `TypeError` or `ValueError` for data that is not JSON; with `data` also `Cancelled`, once
    the job must be cancelled.
    """
    attempt, recorder = current_attempt()
    if data is None:
        return None if attempt is None or recorder is None else _kept(attempt, recorder)
    value = attempts.as_json(data)
    if attempt is None or recorder is None:
        return None
    attempt.checkpoint, attempt.has_checkpoint = value, True
    if not recorder.record_now(attempt, PATIENCE):
        logger.warning(
            "The checkpoint of job %s is not written after %g s; trying until it is",
            attempt.job_id,
            PATIENCE,
        )
    _end_if_cancelled(attempt)
    return None


def report(**metadata: Any) -> None:
    """Adds values, such as counts and names, to the data of this execution.

    Values that are not JSON become text. A key that is reported again gets the new value.
    """
    attempt, recorder = current_attempt()
    if attempt is None or recorder is None:
        return
    values = {escaped(key): _as_metadata(value) for key, value in metadata.items()}
    attempt.metadata = {**(attempt.metadata or {}), **values}
    recorder.outbox.add_progress(attempt)


def artifacts(*produced: str | os.PathLike[str]) -> None:
    """Adds paths or URLs of the task's products to the execution's `artifacts`.

    Each is kept once, at most 1,000 of 2,000 characters each.

        pgbeat.artifacts("s3://reports/2026-11.pdf", path)

    Raises `TypeError` for a value that is neither text nor a path.
    """
    fresh = [_artifact(path) for path in produced]
    attempt, recorder = current_attempt()
    if attempt is None or recorder is None:
        return
    metadata = attempt.metadata or {}
    known = list(dict.fromkeys([*artifacts_of(metadata), *fresh]))
    if len(known) > _MOST:
        logger.warning(
            "Job %s has %d artifacts; the first %d are kept", attempt.job_id, len(known), _MOST
        )
    attempt.metadata = {**metadata, ARTIFACTS: known[:_MOST]}
    recorder.outbox.add_progress(attempt)


def _artifact(produced: object) -> str:
    name = os.fspath(produced) if isinstance(produced, os.PathLike) else produced
    if not isinstance(name, str):
        raise TypeError(f"an artifact must be text or a path, got {produced!r}")
    plain = name.encode(errors="backslashreplace").decode()
    return attempts.text(plain, _LONGEST)


def is_cancelled() -> bool:
    """Returns whether the job must be cancelled, a second or two after the request."""
    attempt, _ = current_attempt()
    return attempt is not None and attempt.cancel_asked


def current_attempt() -> "tuple[Attempt | None, Recorder | None]":
    """Returns the attempt of the running task, if it is recorded, and its recorder."""
    task = get_current_task()
    attempt = None if task is None else getattr(task.request, ATTEMPT, None)
    if attempt is None:
        return None, None
    from pgbeat.worker.recording import process_recorder

    return attempt, process_recorder.get()


def raise_suspended(request: Any) -> None:
    """Raises what made the attempt sleep or wait: its task may have caught that."""
    attempt: Attempt | None = getattr(request, ATTEMPT, None)
    if attempt is not None and attempt.suspended is not None:
        raise attempt.suspended


def _kept(attempt: "Attempt", recorder: "Recorder") -> Any:
    if attempt.has_checkpoint:
        return attempt.checkpoint
    if attempt.left is None:
        job = attempt.job_id
        attempt.left = recorder.outbox.query(
            lambda connection: (connection.scalar(_LEFT, {"id": job}),), PATIENCE
        )
        if attempt.left is None:
            logger.warning("Can't read the checkpoint of job %s: no answer in time", job)
            return None
    return attempt.left[0]


def _end_if_cancelled(attempt: "Attempt") -> None:
    if attempt.cancel_asked:
        raise Cancelled("the job is cancelled")


def _number(value: float | None) -> float | None:
    number = None if value is None else float(value)
    return number if number is not None and math.isfinite(number) else None


def _as_metadata(value: Any) -> Any:
    try:
        return attempts.as_json(value)
    except (TypeError, ValueError, RecursionError):
        return attempts.text(str(value), attempts.ERROR)
