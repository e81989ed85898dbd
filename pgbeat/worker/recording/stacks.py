"""Reads what a task is doing: the stack of the thread or greenlet that runs it.

The recorder's thread reads it when somebody asks, when the job has missed its deadline or must be
cancelled, and just before a time limit. That of a task that is terminated is in the traceback of
what ended it. A stack has lines of code, and no values.
"""

import sys
import traceback
from collections.abc import Callable, Iterator
from threading import get_ident
from types import FrameType
from typing import Any

from pgbeat.jobs.running.stacks import Reason
from pgbeat.storable import escaped
from pgbeat.worker import worker_reports
from pgbeat.worker.recording.attempts import Attempt

#: Characters of a stack that are kept, and calls.
SIZE, _CALLS = 8_000, 200
#: Seconds before a time limit from which on the next look takes the stack. The recorder looks twice
#: a second, and the process must not be killed before it has written.
_AHEAD = 0.75
#: The module that calls the task, and those that get the signal which ends its process.
_RUNS, _SIGNALS = "pgbeat.worker.finishing.task_run", "billiard."
#: Pools that run tasks in greenlets, and those whose processes are killed at time limits.
_GREEN, _KILLED = ("gevent", "eventlet"), ("prefork", "processes")
_REASONS: tuple[Reason, Reason] = ("time_limit", "soft_time_limit")

Calls = list[tuple[FrameType, int]]


class StackWatch:
    """Notes with attempts that begin what their stacks need."""

    def __init__(self, pool: str, *limits: float | None) -> None:
        """Takes the worker's own time limit and soft one, in seconds, for tasks without any."""
        self._limits = limits
        self._is_killed = pool in _KILLED
        self._runner: Callable[[], Any] = get_ident
        if pool in _GREEN:
            from greenlet import getcurrent

            self._runner = getcurrent

    def begin(self, attempt: Attempt, task: Any, request: Any) -> None:
        """Notes who runs an attempt, and when its time limits are."""
        attempt.runner = self._runner()
        if not self._is_killed:
            return
        of_message = request.timelimit or (None, None)
        of_task = (task.time_limit, task.soft_time_limit)
        for reason, *limits in zip(_REASONS, of_message, of_task, self._limits, strict=True):
            seconds = next(filter(None, limits), None)
            if seconds is not None:
                attempt.limits = (*attempt.limits, (reason, attempt.began + seconds))


def due(attempt: Attempt, now: float) -> Iterator[Reason]:
    """Yields the time limits for which a stack must be taken now (`time.monotonic()`)."""
    for reason, at in attempt.limits:
        if now > at - _AHEAD:
            yield reason


def take(attempt: Attempt, reason: Reason) -> dict[str, Any] | None:
    """Returns the stack of a running attempt, to keep; `None` if it has none, or was taken before.

    Whenever somebody asks, it is taken again.
    """
    if reason != "asked" and reason in attempt.stack_reasons:
        return None
    runner = attempt.runner
    frame = sys._current_frames().get(runner) or getattr(runner, "gr_frame", None)
    if frame is None or attempt.ended is not None:
        return None
    return _row(attempt, reason, list(traceback.walk_stack(frame))[::-1])


def take_from(attempt: Attempt, error: BaseException) -> dict[str, Any] | None:
    """Returns the stack of an attempt that is ended from outside, by what ends it."""
    if "time_limit" in attempt.stack_reasons:
        return None
    is_limit = type(error).__name__ == "Timeout"  # gevent's
    calls = list(traceback.walk_tb(error.__traceback__))
    return _row(attempt, "time_limit" if is_limit else "terminated", calls)


def _row(attempt: Attempt, reason: Reason, calls: Calls) -> dict[str, Any] | None:
    stack = _text(calls)
    if not stack:
        return None
    attempt.stack_reasons |= {reason}
    return {
        "job_id": attempt.job_id,
        "execution_id": attempt.id,
        "reason": reason,
        "memory_mb": worker_reports.memory_mb(),
        "stack": stack,
    }


def _text(calls: Calls) -> str:
    """Returns the calls of the task's own, as in a traceback: the innermost is the last."""
    modules = [str(frame.f_globals.get("__name__")) for frame, _ in calls]
    begin = modules.index(_RUNS) + 1 if _RUNS in modules else 0
    while modules and modules[-1].startswith(_SIGNALS):
        modules.pop()
    # A class's `__call__` calls the module again.
    own = [calls[n] for n in range(begin, len(modules)) if modules[n] != _RUNS]
    texts = traceback.StackSummary.extract(own[-_CALLS:]).format()
    size, kept = 0, []
    for text in reversed(texts):
        size += len(text)
        if size > SIZE:
            break
        kept.append(text)
    is_cut = len(kept) < len(texts) or len(own) > _CALLS
    return escaped("  …\n" * is_cut + "".join(reversed(kept)))
