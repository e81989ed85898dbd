"""Follows a job whose task calls `Task.replace`.

The task that takes its place has its id. If it is sent at once, it continues the same job. In a
chain or a chord that replaces the task it is sent last: the job ends with the task that was
replaced, and the one with its id makes no second job.
"""

from collections.abc import Iterator
from functools import wraps
from typing import Any

from celery.canvas import Signature, _chain
from celery.exceptions import Ignore

from pgbeat.broker.messages import JOB_HEADER
from pgbeat.broker.payloads import JOB
from pgbeat.broker.publishing.carried import carried_headers
from pgbeat.worker.reporting import ATTEMPT, raise_suspended


def follow(task: Any) -> None:
    """Replaces the task's `on_replace`, which sends the one that takes its place."""
    on_replace = task.on_replace

    @wraps(on_replace)
    def replace_and_follow(sig: Signature) -> Any:
        request = task.request
        raise_suspended(request)
        if request.is_eager or not getattr(request, JOB_HEADER, None):
            return on_replace(sig)
        goes_on = _first(sig).options.get("task_id") == request.id
        for signature in _all(sig):
            if signature.options.get("task_id") == request.id:
                signature.options["headers"] = {
                    **carried_headers(),
                    **(signature.options.get("headers") or {}),
                    JOB_HEADER: JOB if goes_on else False,
                }
        attempt = getattr(request, ATTEMPT, None)
        try:
            return on_replace(sig)
        except Ignore:
            if attempt is not None:
                attempt.is_replaced = goes_on
            raise

    task.on_replace = replace_and_follow


def _first(sig: Signature) -> Signature:
    """Returns the first task of a chain, or the signature itself."""
    while isinstance(sig, _chain) and sig.tasks:
        sig = sig.tasks[0]
    return sig


def _all(sig: Any) -> Iterator[Signature]:
    """Yields a signature and the signatures within it."""
    if isinstance(sig, Signature):
        yield sig
        yield from _all(getattr(sig, "tasks", None))
        yield from _all(getattr(sig, "body", None))
    elif isinstance(sig, list | tuple):
        for item in sig:
            yield from _all(item)
