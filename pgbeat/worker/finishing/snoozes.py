"""Runs tasks again later that raise `pgbeat.Snooze`, and ends results of those that end otherwise.

A job keeps its message in its row, and beat sends that again in time, with a slot if it is in a
lane. This is written, and waited for, before Celery learns how the task ended: so before its
message is acknowledged, if that comes late. If it can't be written, that message is requeued. What
is no job is sent again by Celery, as for its own retry.
"""

import json
import logging
from contextvars import Context
from typing import TYPE_CHECKING, Any

from celery.exceptions import Reject

from pgbeat.broker import messages
from pgbeat.broker.messages import JOB_HEADER, consumer_of
from pgbeat.broker.publishing import payloads
from pgbeat.broker.publishing.publisher import HeldPublishes
from pgbeat.broker.transport.outbox import OutboxConnection
from pgbeat.config import delays_in_table, is_own_broker, settings_of
from pgbeat.jobs.messages import kept_messages
from pgbeat.jobs.running.task_exceptions import Cancelled, Skip, Snooze, Suspended
from pgbeat.results.ending import TaskEnding, ignores_result
from pgbeat.worker.finishing import attempt_ends
from pgbeat.worker.recording import process_recorder
from pgbeat.worker.recording.attempts import Attempt
from pgbeat.worker.reporting import ATTEMPT, PATIENCE

if TYPE_CHECKING:
    from pgbeat.worker.recording.recorder import Recorder

logger = logging.getLogger("celery.worker.pgbeat")

#: Seconds that a task waits for its row, which others may have locked, if it is acknowledged late.
#: Its message is delivered again some twenty times.
LATE_PATIENCE = 60.0


def settle(task: Any, error: BaseException, ending: TaskEnding | None) -> None:
    """Handles a task that raised how its job ends."""
    if isinstance(error, Snooze):
        if ending is not None and ending.keeps_message:
            return
        _arrange(task, error)
    elif isinstance(error, Skip | Cancelled):
        _revoke(task, error)


def _revoke(task: Any, end: Skip | Cancelled) -> None:
    """Ends the result of a job that ends here. Celery leaves it open, as for its own `Ignore`."""
    request = task.request
    if request.called_directly or request.is_eager or not getattr(request, JOB_HEADER, None):
        return
    attempt: Attempt | None = getattr(request, ATTEMPT, None)
    if attempt is not None:
        attempt.raised = end
    is_stored = not ignores_result(task, request)
    task.backend.mark_as_revoked(request.id, str(end), request, store_result=is_stored)


def _arrange(task: Any, snooze: Snooze) -> None:
    """Arranges for the running task to run again."""
    request = task.request
    if request.called_directly or request.is_eager:
        return
    attempt: Attempt | None = getattr(request, ATTEMPT, None)
    recorder = process_recorder.get()
    if attempt is None or attempt.makes is not None or recorder is None:
        _again(task, countdown=snooze.delay.total_seconds()).apply_async()
        return
    attempt.message = _message(task, snooze, _call(task, attempt, recorder))
    attempt.runs_in = snooze.delay.total_seconds()
    attempt_ends.conclude(attempt, snooze, "RETRY")
    is_late = attempt.acks_late
    is_written = recorder.record_now(attempt, LATE_PATIENCE if is_late else PATIENCE)
    if is_written or (is_late and _was_written(recorder, attempt)):
        recorder.was_recorded(attempt, ())
    elif is_late:
        attempt.runs_in = attempt.message = None
        raise Reject(f"its snooze is not written after {LATE_PATIENCE:g} s", requeue=True)
    else:
        logger.warning(
            "The snooze of job %s is not written after %g s; trying until it is",
            attempt.job_id,
            PATIENCE,
        )


def _was_written(recorder: "Recorder", attempt: Attempt) -> bool:
    """Takes an attempt back from the recorder; returns whether that has just written it."""
    recorder.outbox.withdraw(attempt)
    return attempt.written >= attempt.changes


def _call(task: Any, attempt: Attempt, recorder: "Recorder") -> dict[str, Any]:
    """Returns the arguments that the running task was sent with: it may have changed its own.

    Returns none if its message is elsewhere, or was acknowledged before it ran. Raises `Reject` if
    the message can't be read.
    """
    app, request = task.app, task.request
    if not attempt.acks_late or consumer_of(request) is None:
        return {}
    if not is_own_broker(app.conf, settings_of(app).url):
        return {}
    message = request.properties["delivery_tag"]
    answer = recorder.outbox.query(
        lambda connection: (messages.payload(connection, message, attempt.job_id),), LATE_PATIENCE
    )
    if answer is None:
        raise Reject(f"its message can't be read within {LATE_PATIENCE:g} s", requeue=True)
    [payload] = answer
    if payload is None:
        return {}
    args, kwargs, _ = payloads.call(app, json.loads(payload))
    return {"args": args, "kwargs": kwargs}


def _again(task: Any, **options: Any) -> Any:
    """Returns the running task's signature, which counts as no retry."""
    return task.signature_from_request(task.request, retries=task.request.retries, **options)


def _message(task: Any, snooze: Snooze, call: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the running task's message, to be sent again; `None` for a broker elsewhere.

    One that sleeps or waits in the midst of its steps never expires: it has begun.
    """
    app = task.app
    if not delays_in_table(app.conf):
        return None
    outbox = HeldPublishes()
    producer = app.amqp.Producer(OutboxConnection(outbox), auto_declare=False)
    # In a separate context: the task's end must not hold it back.
    is_suspended = isinstance(snooze, Suspended)
    again = _again(task, **call, **({"expires": None} if is_suspended else {}))
    Context().run(again.apply_async, producer=producer)
    message = kept_messages.written(outbox.messages[0])
    return {**message, "waits_for": snooze.waits_for} if is_suspended else message
