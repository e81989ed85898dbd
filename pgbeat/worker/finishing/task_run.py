"""Replaces the methods of tasks that a worker's pool calls: `run`, those around it, and in it.

`_steps` has what pgbeat does about a run, in the order that it needs.
"""

from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, wraps
from types import CoroutineType
from typing import Any

from celery import Celery, Task
from celery.app.trace import task_has_custom

from pgbeat.jobs.checks.task_checks import refuse_coroutine, runs_loop
from pgbeat.jobs.policy.batches import is_batch
from pgbeat.results.ending import TaskEnding, ending_of
from pgbeat.worker.finishing import batches, endings, policy_retries, replacements, snoozes
from pgbeat.worker.reporting import raise_suspended

#: Does what follows when a run raises an error. If it raises another one, the next step gets that.
Step = Callable[[Any, BaseException, TaskEnding | None], None]
#: Where what replaces a task's `run`, or its class, has the original.
_ORIGINAL = "pgbeat_original"
#: Where a task's request has the error that its run raised.
_FOLLOWED = "pgbeat_followed"


def set_up(app: Celery) -> None:
    """Prepares the tasks of a worker.

    Raises `SystemExit`, with one line for each mistake, if policies are invalid, or if tasks must
    end in one transaction that can't.
    """
    for task in app.tasks.values():
        if is_batch(task):
            batches.prepare(task)
    retried, ending = policy_retries.tasks(app), endings.tasks(app)
    for name, task in app.tasks.items():
        # Replaced for an earlier worker in this process.
        for method in ("retry", "on_replace", "before_start"):
            vars(task).pop(method, None)
        policy_retries.requeue_unsent(task)
        if not name.startswith("celery."):
            replacements.follow(task)
            if is_batch(task):
                batches.set_up(task)
            steps = _steps(is_retried=name in retried, is_ending=name in ending)
            _replace(task, steps, is_always=ending.get(name))
            _replace_around(task, steps)


def _steps(*, is_retried: bool, is_ending: bool) -> list[Step]:
    """Returns the steps that follow an error of a task's run.

    1. A `Snooze` is arranged, and the result of a job that is skipped or cancelled is ended.
    2. An error becomes Celery's `Retry` if the policy of the task's message wants one.
    3. What is raised by then ends the transaction of the task: a retry is published in it.
    """
    steps: list[Step] = [snoozes.settle]
    if is_retried:
        steps.append(policy_retries.settle)
    if is_ending:
        steps.append(endings.settle)
    return steps


def _replace(task: Any, steps: Sequence[Step], *, is_always: bool | None) -> None:
    """Replaces a task's `run`, which can't end in one transaction if `is_always` is `None`."""
    run = getattr(task.run, _ORIGINAL, task.run)

    @wraps(run)
    def run_in_steps(*args: Any, **kwargs: Any) -> Any:
        ending = None if is_always is None else endings.begin(task, is_always=is_always)
        with _followed(steps, task, ending):
            value = run(*args, **kwargs)
            if isinstance(value, CoroutineType):
                value = refuse_coroutine(task, value)
        if isinstance(value, CoroutineType):
            return _awaited(value, steps, task, ending)
        if ending is not None:
            ending.succeed(value)
        return value

    setattr(run_in_steps, _ORIGINAL, run)
    if hasattr(run, "__func__"):  # a bound task's method, which other tasks may call as a function
        vars(run_in_steps)["__func__"] = run.__func__
    task.run = run_in_steps


def _replace_around(task: Any, steps: Sequence[Step]) -> None:
    """Replaces `before_start`, and the `__call__` of the task's class, which may raise, too."""
    if task_has_custom(task, "before_start"):
        task.before_start = _around(task, task.before_start, steps)
    own = vars(task.__class__).get(_ORIGINAL, task.__class__)
    if own.__call__ is not Task.__call__:
        call = _around(task, partial(own.__call__, task), steps)
        members = {"__call__": lambda _, *args, **kwargs: call(*args, **kwargs), _ORIGINAL: own}
        task.__class__ = type(own.__name__, (own,), {**members, "__module__": own.__module__})


def _around(task: Any, method: Callable[..., Any], steps: Sequence[Step]) -> Callable[..., Any]:
    """Returns a method after which the steps are taken, unless they were after the run in it."""

    def follow(task: Any, error: BaseException, _: TaskEnding | None) -> None:
        ending = ending_of(task.request)
        is_over = ending is not None and ending.has_committed
        if not is_over and error is not getattr(task.request, _FOLLOWED, None):
            _raise_other(error, _follow(steps, task, error, ending))

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            with _followed([follow], task, None):
                return method(*args, **kwargs)
        finally:
            vars(task.request).pop(_FOLLOWED, None)  # it keeps frames

    return call


def _awaited(
    run: Coroutine[Any, Any, Any], steps: Sequence[Step], task: Any, ending: TaskEnding | None
) -> Coroutine[Any, Any, Any]:
    """Returns the coroutine of a task whose class awaits it.

    If a pool does, which runs others at the same time in this thread, Celery ends the task.
    """
    if runs_loop():
        if ending is not None:
            ending.abandon()
        return run

    async def run_in_steps() -> Any:
        with _followed(steps, task, ending):
            value = await run
        if ending is not None:
            ending.succeed(value)
        return value

    if ending is not None:
        ending.is_awaited = True
    return run_in_steps()


@contextmanager
def _followed(steps: Sequence[Step], task: Any, ending: TaskEnding | None) -> Iterator[None]:
    """Takes the steps that follow an error of the block, a task's run."""
    try:
        try:
            yield
        except Exception:
            raise_suspended(task.request)
            raise
        raise_suspended(task.request)
    except BaseException as error:
        last = _follow(steps, task, error, ending)
        if _ORIGINAL in vars(task.__class__):
            setattr(task.request, _FOLLOWED, last)
        _raise_other(error, last)
        raise


def _raise_other(error: BaseException, last: BaseException) -> None:
    if last is not error:
        raise last


def _follow(
    steps: Sequence[Step], task: Any, error: BaseException, ending: TaskEnding | None
) -> BaseException:
    """Takes the steps that follow an error; returns the error of the last one that raised."""
    for step in steps:
        try:
            step(task, error, ending)
        except BaseException as other:
            error = other
    return error
