"""Checks a call: that the task exists, that it takes the arguments, and what it returns."""

import asyncio
from collections.abc import Mapping, Sequence
from inspect import iscoroutine
from typing import Any

from celery import Celery, Task

from pgbeat.access.actors import Actor
from pgbeat.broker.publishing.json_values import unreadable
from pgbeat.broker.publishing.publisher import check_options
from pgbeat.config import settings_of
from pgbeat.errors import InvalidJob, InvalidSchedule, UnknownTask
from pgbeat.jobs.checks import sql_jobs
from pgbeat.jobs.checks.permissions import may_run, require_task
from pgbeat.suggest import did_you_mean


def check_call(args: Any, kwargs: Any, options: Any) -> None:
    """Raises `InvalidJob` unless args is a list, kwargs and options are mappings, and all readable.

    `check_options` says what of the options is not.
    """
    if not isinstance(args, Sequence) or isinstance(args, str | bytes):
        raise InvalidJob.of("args", "malformed", f"args must be a list, got {args!r}")
    for name, value in (("kwargs", kwargs), ("options", options)):
        if not isinstance(value, Mapping):
            raise InvalidJob.of(name, "malformed", f"{name} must be a mapping, got {value!r}")
    for name, value in (("args", args), ("kwargs", kwargs)):
        if (problem := unreadable(value)) is not None:
            raise InvalidJob.of(name, "malformed", f"{name}: {problem}")


def check_request(
    app: Celery,
    actor: Actor,
    task: str | None,
    options: Mapping[str, Any],
    *,
    of_template: bool = False,
) -> str:
    """Checks the task and the publish options of a job that somebody asks for; returns the task.

    Raises `Forbidden` if they may not run it.
    """
    if task is None:
        raise InvalidJob.of("task", "required", "task is required: name a task or a template")
    # Before anything else: not everybody may know which tasks exist.
    require_task(actor, task, of_template=of_template)
    check_task(app, task, actor)
    check_options(options, app.conf)
    if "eta" in options or "countdown" in options:
        raise InvalidJob.of(
            "options", "conflict", "options can't set the time; give run_at or countdown instead"
        )
    return str(task)


def check_task(app: Celery, name: str, actor: Actor | None = None) -> None:
    """Raises `UnknownTask`, with the most similar name, unless the app has registered the task.

    With an `actor`, the error names only tasks that they may run.
    """
    if not isinstance(name, str):
        message = f"task must be a task or the name of one, got {name!r}"
        raise UnknownTask.of("task", "malformed", message)
    if name in app.tasks:
        return
    app.loader.import_default_modules()  # only workers and beats have done this
    if name in app.tasks:
        return
    names = sorted(
        task
        for task in app.tasks
        if not task.startswith("celery.") and (actor is None or may_run(actor, task))
    )
    hint = did_you_mean(name, names)
    listed = ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
    raise UnknownTask.of(
        "task",
        "unknown",
        f"task {name!r} is not registered; {hint + ' ' if hint else ''}"
        f"registered: {listed or 'none'}",
    )


def check_arguments(app: Celery, task: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raises `InvalidSchedule` if the task's function doesn't take the arguments.

    Celery makes the same check when it publishes (`Task.typing`). A statement in SQL also needs a
    role that the settings allow.
    """
    registered = app.tasks[task]
    fits = getattr(registered, "__header__", None)
    if not registered.typing or fits is None:
        return
    try:
        fits(*args, **kwargs)
    except TypeError as error:
        field = "kwargs" if kwargs else "args"
        message = f"the arguments don't fit task {task!r}: {error}"
        raise InvalidSchedule.of(field, "malformed", message) from None
    if task == sql_jobs.TASK:
        sql_jobs.read(settings_of(app), *args, **kwargs)


def refuse_coroutine(task: Any, value: Any) -> Any:
    """Returns what a task returned. Raises `TypeError` for a coroutine that nothing awaits.

    The task's own `__call__`, or a pool with an event loop, may await it.
    """
    call = task.__class__.__call__  # not `type(task)`: Celery makes tasks lazily, behind proxies
    if not iscoroutine(value) or call is not Task.__call__ or runs_loop():
        return value
    value.close()
    raise TypeError(
        f"task {task.name!r} is `async def`, which Celery doesn't await; make it a function "
        "that calls asyncio.run(…)"
    )


def runs_loop() -> bool:
    """Returns whether an event loop runs in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
