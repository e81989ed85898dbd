"""Runs a batch: calls its task's function once, with a list of members, and ends each of them.

The message of one member comes as any task's. Its run takes along others that wait
(`pgbeat.jobs.flow.batch_members`), and writes in the same transaction that they run.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context
from datetime import UTC, datetime
from functools import wraps
from types import CoroutineType
from typing import Any, NamedTuple
from uuid import UUID

from celery.app.trace import trace_task
from celery.exceptions import Retry

from pgbeat.broker.publishing import payloads
from pgbeat.errors import InvalidJob
from pgbeat.jobs.checks.task_checks import refuse_coroutine
from pgbeat.jobs.flow import batch_members, lifecycle
from pgbeat.jobs.messages import kept_messages
from pgbeat.jobs.policy.batches import size_of
from pgbeat.jobs.rows.model import Job
from pgbeat.jobs.running.task_exceptions import Cancelled, Failed
from pgbeat.results.ending import ending_of, running_again
from pgbeat.results.store import Joined, wait_at_most
from pgbeat.worker.finishing.batch_ends import BATCH_RUN, BatchEnding, BatchRun
from pgbeat.worker.recording import execution_batches, process_recorder
from pgbeat.worker.recording.attempts import Attempt
from pgbeat.worker.reporting import ATTEMPT

#: The key of a batch in the metadata of its executions.
METADATA = "batch"
#: Seconds that a batch waits for the row of its first member, if another transaction has it.
_LOCK_PATIENCE = 10.0
#: Each gets the requests of the members that a run takes along. Integrations add theirs.
observers: list[Callable[[Sequence[dict[str, Any]]], None]] = []
#: Where a batch's request has what its `retry` has not raised.
_AGAIN = "pgbeat_again"
#: Marks a task's `run` that takes the arguments of one call.
_PREPARED = "pgbeat_runs_batches"


class Member(NamedTuple):
    """One call of a task, as the batch gets it.

    Attributes:
        id: The id of the task and of its job.
        args: What it was called with …
        kwargs: … by name.
        attempt: Which attempt this is, from 1.
    """

    id: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    attempt: int = 1


def prepare(task: Any) -> None:
    """Makes a task that was just registered run in batches.

    A direct call gets the list from its caller. One that runs eagerly is a batch of one. Raises
    `InvalidJob` for a task that would retry whole batches.
    """
    if getattr(task.run, _PREPARED, False):
        return
    if getattr(task, "autoretry_for", None):
        message = "would run all members again; max_attempts retries each that failed"
        raise InvalidJob.of(
            "autoretry_for",
            "conflict",
            f"task {task.name!r} runs in batches: autoretry_for {message}",
        )
    run = task.run

    @wraps(run)
    def run_batch(*args: Any, **kwargs: Any) -> Any:
        request = task.request
        if request.called_directly:
            return run(*args, **kwargs)
        part: BatchRun | None = getattr(request, BATCH_RUN, None)
        if part is not None:
            return part.outcome()
        own = Member(str(request.id), args, kwargs, int(request.retries or 0) + 1)
        ending = ending_of(request)
        taken = _take(task, ending) if isinstance(ending, BatchEnding) else []
        others = [other for other in taken if other.refusal is None]
        for observe in observers:
            observe([other.request for other in taken])
        first, *rest = _call(task, run, [own, *(other.member for other in others)])
        if isinstance(ending, BatchEnding):
            ending.has_completed = any(error is None for _, error in (first, *rest))
        for other, outcome in zip(others, rest, strict=True):
            _end(task, other, *outcome)
        for other in taken:
            if other.refusal is not None:
                _end(task, other, None, other.refusal)
        value, error = first
        if error is not None:
            raise error
        return value

    setattr(run_batch, _PREPARED, True)
    task.run = run_batch
    # A batch that was not committed is delivered again; one is, though its first member failed.
    task.acks_late = task.reject_on_worker_lost = task.acks_on_failure_or_timeout = True
    task.acks_on_failure = task.acks_on_timeout = None  # of Celery 5.7


def set_up(task: Any) -> None:
    """Replaces the methods by which a worker's task sends itself again, or another one instead.

    `retry` raises for all members, each of which counts its own attempts. A submitted job runs
    alone, and has the task's own.
    """
    retry = task.retry

    @wraps(retry)
    def retry_members(
        args: Any = None,
        kwargs: Any = None,
        exc: Any = None,
        throw: bool = True,
        eta: datetime | None = None,
        countdown: float | None = None,
        max_retries: int | None = None,
        **options: Any,
    ) -> Any:
        ending = ending_of(task.request)
        if ending is None or not ending.keeps_message:
            return retry(args, kwargs, exc, throw, eta, countdown, max_retries, **options)
        delay = task.default_retry_delay if countdown is None else countdown
        again = _MembersRetry(exc=exc, when=eta or delay)
        again.most = task.max_retries if max_retries is None else max_retries
        if throw:
            raise again
        setattr(task.request, _AGAIN, again)
        return again

    def refuse(sig: Any) -> None:
        raise InvalidJob.of(
            "replace",
            "conflict",
            f"task {task.name!r} runs in batches, and can't be replaced: send the other task",
        )

    task.retry, task.on_replace = retry_members, refuse


class _MembersRetry(Retry):  # type: ignore[misc,unused-ignore]
    """Runs members again, each up to `most` times."""

    most: int | None = None


class _Other(NamedTuple):
    """A member whose message was not sent."""

    job: Job
    member: Member
    attempt: Attempt
    batch: BatchEnding
    #: As Celery would give them to the task.
    request: dict[str, Any]
    #: Why it does not run: it has expired, or what it was called with can't be read here.
    refusal: Exception | None


def _take(task: Any, ending: BatchEnding) -> list[_Other]:
    """Takes along the members that wait, and writes that all of them run."""
    recorder, attempt = process_recorder.get(), ending.recorded.attempt
    if recorder is None:
        return []

    def take(working: Joined) -> tuple[Job | None, list[_Other]]:
        wait_at_most(working, _LOCK_PATIENCE)
        # It may be what killed the process.
        most = 1 if task.request.get("x-delivery-count") else size_of(task)
        own, jobs = batch_members.take(working.connection, attempt.job_id, most=most)
        others = [_other(task, job, attempt, ending) for job in jobs]
        running = [attempt, *(other.attempt for other in others)]
        for run in running:
            facts = {"id": str(UUID(attempt.id)), "members": len(running)}
            run.metadata = {**(run.metadata or {}), METADATA: facts}
        execution_batches.write(working.connection, working.prepared, running, recorder.worker_id)
        attempt.was_tried = True
        return own, others

    with running_again():
        own, others = task.backend.store.atomically(take, runs_again=True)
    for run in (attempt, *(other.attempt for other in others)):
        run.is_known = True
    ending.begin(own, [other.attempt for other in others])
    recorder.record(attempt)
    return list(others)


def _other(task: Any, job: Job, first: Attempt, batch: BatchEnding) -> _Other:
    message = kept_messages.read(job, lifecycle.task_message(job, None), delays=False)
    payload = json.loads(message.payload)
    headers = payload["headers"]
    refusal: Exception | None = None
    if _is_past(headers.get("expires")):
        refusal = Cancelled("expired")
    try:
        args, kwargs, embedded = payloads.call(task.app, payload)
    except Exception as error:
        args, kwargs, embedded, refusal = (), {}, {}, refusal or error
    retries = int(headers.get("retries") or 0)
    attempt = Attempt(str(job.id), first.worker, retries, True, None)
    own, properties = task.request, payload["properties"]
    request = {
        **headers,
        **embedded,
        "args": args,
        "kwargs": kwargs,
        "hostname": own.hostname,
        "is_eager": False,
        "delivery_info": {
            **properties.get("delivery_info", {}),
            "priority": properties.get("priority"),
            "redelivered": False,
        },
        "reply_to": properties.get("reply_to"),
        "correlation_id": properties.get("correlation_id"),
        ATTEMPT: attempt,
    }
    member = Member(str(job.id), args, kwargs, retries + 1)
    return _Other(job, member, attempt, batch, request, refusal)


def _is_past(moment: str | None) -> bool:
    """Returns whether a time of Celery's is past; without a zone it is in UTC, as for Celery."""
    if moment is None:
        return False
    at = datetime.fromisoformat(moment)
    return (at if at.tzinfo is not None else at.replace(tzinfo=UTC)) <= datetime.now(UTC)


_Outcome = tuple[Any, Exception | None]


def _call(task: Any, run: Callable[..., Any], members: list[Member]) -> list[_Outcome]:
    """Calls the function, and returns for each member a value, or an error.

    Raises `Cancelled` if the function was interrupted since somebody cancelled the first member:
    the others wait again.
    """
    outcomes = _outcomes(task, run, members)
    return [_limited(task, *pair) for pair in zip(members, outcomes, strict=True)]


def _outcomes(task: Any, run: Callable[..., Any], members: list[Member]) -> list[_Outcome]:
    count = len(members)
    try:
        value = run(members)
        if isinstance(value, CoroutineType):
            value = refuse_coroutine(task, value)
        return _values(task, value, count)
    except Failed as failed:
        try:
            return _parts(task, failed, count)
        except ValueError as error:
            return [(None, error)] * count
    except Exception as error:
        attempt: Attempt | None = getattr(task.request, ATTEMPT, None)
        if isinstance(error, Cancelled) and attempt is not None and attempt.cancel_asked:
            raise
        return [(None, error)] * count


def _limited(task: Any, member: Member, outcome: _Outcome) -> _Outcome:
    """Returns the outcome of a member: a failure if it was retried as often as it may be.

    One that has not failed runs again if the batch called `retry` without raising that.
    """
    value, error = outcome
    error = getattr(task.request, _AGAIN, None) if error is None else error
    if isinstance(error, _MembersRetry) and error.most is not None and member.attempt > error.most:
        error = error.exc or task.MaxRetriesExceededError(
            f"Can't retry {task.name}[{member.id}] args:{member.args} kwargs:{member.kwargs}"
        )
    return value, error


def _values(task: Any, value: Any, count: int) -> list[_Outcome]:
    if value is None:
        return [(None, None)] * count
    if not isinstance(value, list | tuple) or len(value) != count:
        raise ValueError(
            f"batch {task.name!r} must return a list of {count} results, one for each member, or "
            f"None; got {value!r}"[:500]
        )
    return [(each, None) for each in value]


def _parts(task: Any, failed: Failed, count: int) -> list[_Outcome]:
    outcomes = _values(task, failed.results, count)
    for place, error in failed.errors.items():
        if not 0 <= place < count:
            raise ValueError(
                f"batch {task.name!r} has {count} members, numbered from 0; it says that {place} "
                "failed"
            )
        outcomes[place] = None, error
    return outcomes


def _end(task: Any, other: _Other, value: Any, error: Exception | None) -> None:
    """Lets Celery end a member as if it had run by itself."""
    request = {**other.request, BATCH_RUN: BatchRun(other.job, other.batch, value, error)}
    member, traceback = other.member, getattr(error, "__traceback__", None)
    # Celery takes the first request of a task for the one that it traces.
    first = task.request_stack.pop()
    try:
        # In a context of its own: what the first member sends is held back apart from this one's,
        # which is in another trace.
        Context().run(
            trace_task, task, member.id, member.args, member.kwargs, request, app=task.app
        )
    finally:
        task.request_stack.push(first)
        if error is not None:  # others may have it, too: their tracebacks must not grow with each
            error.__traceback__ = traceback
