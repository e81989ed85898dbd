"""Decides how an attempt at a job ended, from what its task returned or raised."""

import logging
import sys
import time
from datetime import UTC, datetime
from typing import Any

from billiard.einfo import ExceptionInfo
from celery.exceptions import Ignore, Reject, Retry, WorkerTerminate
from celery.states import SUCCESS

from pgbeat.jobs.running.task_exceptions import Cancelled, Skip, Snooze
from pgbeat.results.ending import ClaimLost
from pgbeat.worker.recording import attempts, process_recorder, stacks
from pgbeat.worker.recording.attempts import Attempt

logger = logging.getLogger("celery.worker.pgbeat")


def conclude(
    attempt: Attempt,
    retval: Any,
    state: str | None,
    traceback: Any = None,
    *,
    is_process: bool = False,
) -> bool:
    """Ends an attempt; returns false if the worker's main process must report its end.

    Args:
        attempt: The attempt.
        retval: What the task returned or raised, as Celery's `task_postrun` gives it.
        state: Celery's state of the task; `None` if what was raised is no `Exception`.
        traceback: The traceback of an error.
        is_process: Whether the task has its own process, which such an error may end.
    """
    attempt.result = attempt.error = None
    if attempt.memory is not None:
        attempt.memory_peak_mb = attempt.memory.peak_mb(attempt.began, time.monotonic())
    if traceback is not None:
        attempt.traceback = attempts.text(str(traceback), attempts.TRACEBACK)
    if state == SUCCESS:
        attempt.result = attempts.summary(retval)
        attempt.end("completed")
        return True
    error = retval if isinstance(retval, BaseException) else sys.exc_info()[1]
    if isinstance(retval, ExceptionInfo):
        error = retval.exception
    if state is None:
        recorder = process_recorder.get()
        if recorder is not None and error is not None:
            recorder.keep_stack(stacks.take_from(attempt, error))
        if isinstance(error, WorkerTerminate):
            return False  # the worker ends, and others see what becomes of the job
        if is_process and isinstance(error, SystemExit | KeyboardInterrupt):
            return False  # the process ends, and its parent reports what becomes of the job
        is_killed = type(error).__name__ == "GreenletExit"
        attempt.error = attempts.error_text(error) if error is not None else "interrupted"
        attempt.end("cancelled" if is_killed else "failed")
        return True
    _conclude_error(attempt, error, state)
    return True


def is_interrupted(attempt: Attempt, task: Any, task_id: str) -> bool:
    """Returns whether storing what a task returned, or its last transaction, was interrupted."""
    if attempt.is_withdrawn or attempt.has_succeeded:
        return attempt.is_withdrawn
    try:
        return bool(task.backend.get_state(task_id) != SUCCESS)
    except Exception:
        logger.warning("The result of task %s can't be read", task_id, exc_info=True)
        return True


def _conclude_error(attempt: Attempt, error: BaseException | None, state: str) -> None:
    if isinstance(error, Skip):
        attempt.error = attempts.text(error.reason, attempts.ERROR)
        attempt.end("skipped")
    elif isinstance(error, Cancelled):
        attempt.error = attempts.text(str(error), attempts.ERROR)
        attempt.end("cancelled")
    elif isinstance(error, ClaimLost):
        attempt.error = attempts.error_text(error)
        attempt.end("failed", "pending")
    elif isinstance(error, Snooze):
        attempt.result, attempt.traceback = str(error), None
        attempt.end("snoozed", "scheduled")
    elif state == "RETRY":
        attempt.runs_in = seconds(getattr(error, "when", None))
        cause = error.exc if isinstance(error, Retry) and error.exc is not None else error
        attempt.error = attempts.error_text(cause) if isinstance(cause, BaseException) else "retry"
        attempt.end("failed", "scheduled")
    elif isinstance(error, Reject):
        attempt.error = attempts.error_text(error)
        # An acknowledged message can't be requeued.
        goes_back = bool(error.requeue) and attempt.acks_late
        attempt.end("failed", "pending" if goes_back else "failed")
    elif isinstance(error, Ignore):
        attempt.result = attempts.text(f"ignored: {error}".rstrip(": "), attempts.RESULT)
        attempt.end("completed", "pending" if attempt.is_replaced else None)
    else:
        attempt.error = attempts.error_text(error) if error is not None else state
        attempt.end("failed")


def seconds(when: Any) -> float | None:
    """Returns the seconds until Celery's retry: it says them, or the moment."""
    if isinstance(when, datetime):
        moment = when if when.tzinfo is not None else when.replace(tzinfo=UTC)
        return (moment - datetime.now(UTC)).total_seconds()
    return float(when) if isinstance(when, int | float) else None
