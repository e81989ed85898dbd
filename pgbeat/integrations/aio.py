"""What asyncio programs call, so that nothing blocks their event loop."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypedDict, TypeVar, Unpack
from uuid import UUID

from celery import Celery, current_app
from celery.exceptions import TimeoutError as ResultTimeout
from celery.result import AsyncResult, EagerResult, ResultSet

from pgbeat.broker.publishing.async_transaction import AsyncOpened, run_sync
from pgbeat.jobs.groups.model import CallbackOutcome, Mode, OnFailure
from pgbeat.jobs.policy.policies import PolicyOptions
from pgbeat.jobs.preparing import members
from pgbeat.jobs.rows.model import Job
from pgbeat.jobs.submitting.submit import submit as submit_one
from pgbeat.jobs.submitting.submit_group import SubmittedGroup
from pgbeat.jobs.submitting.submit_group import submit_group as submit_one_group
from pgbeat.jobs.submitting.submit_many import submit_many as submit_all
from pgbeat.jobs.verbs.events import emit as emit_one
from pgbeat.results.awaiting import awaited_results

Returned = TypeVar("Returned")


class _Origin(TypedDict, total=False):
    created_by: str | None
    job_source: str


class ManyOptions(PolicyOptions, _Origin, total=False):
    """The options of `pgbeat.submit_many`."""


class JobOptions(ManyOptions, total=False):
    """The options of `pgbeat.submit`."""

    kwargs: Mapping[str, Any] | None
    countdown: float | timedelta | None
    queue: str | None
    options: Mapping[str, Any] | None
    run_at: datetime | None
    description: str | None
    labels: Mapping[str, str] | None
    metadata: Mapping[str, Any] | None
    depends_on: Sequence[Any]
    depends_on_outcome: str


class GroupOptions(_Origin, total=False):
    """The options of `pgbeat.submit_group`."""

    mode: Mode
    on_failure: OnFailure
    name: str | None
    callback: Any
    callback_outcome: CallbackOutcome


async def submit(
    task: Any = None,
    *args: Any,
    connection: "AsyncOpened | None" = None,
    app: Celery | None = None,
    **options: Unpack[JobOptions],
) -> Job:
    """Makes a job, as `pgbeat.submit` does, without blocking the event loop.

        async with Session.begin() as session:
            job = await aio.submit(resize, 17, lane="gpu", connection=session)

    `connection` is an asyncio session or connection of SQLAlchemy's, in whose transaction the job
    is made; without it, another thread makes the job in its own transaction. `options` and
    errors are those of `pgbeat.submit`.
    """
    app = app or getattr(task, "app", None)
    return await _call(partial(submit_one, task, *args, **options), connection, app)


async def submit_many(
    jobs: Iterable[Any],
    *,
    connection: "AsyncOpened | None" = None,
    app: Celery | None = None,
    **options: Unpack[ManyOptions],
) -> list[str]:
    """Makes many jobs in one transaction, as `pgbeat.submit_many` does, and returns their ids."""
    several = list(jobs)
    app = app or members.app_of(several)
    return await _call(partial(submit_all, several, **options), connection, app)


async def submit_group(
    jobs: Sequence[Any],
    *,
    connection: "AsyncOpened | None" = None,
    app: Celery | None = None,
    **options: Unpack[GroupOptions],
) -> SubmittedGroup:
    """Makes a group, as `pgbeat.submit_group` does."""
    app = app or members.app_of(jobs)
    return await _call(partial(submit_one_group, jobs, **options), connection, app)


async def emit(
    key: str,
    value: Any = None,
    *,
    connection: "AsyncOpened | None" = None,
    app: Celery | None = None,
) -> bool:
    """Stores that something has happened, as `pgbeat.emit` does, and wakes the jobs that wait."""
    return await _call(partial(emit_one, key, value), connection, app)


async def _call(
    function: Callable[..., Returned], session: "AsyncOpened | None", app: Celery | None
) -> Returned:
    # The current app is the thread's.
    app = app or current_app._get_current_object()
    if session is None:
        return await asyncio.to_thread(function, app=app)
    return await run_sync(session, lambda sync: function(app=app, connection=sync))


async def result(
    task: "AsyncResult[Any] | ResultSet | UUID | str",
    *,
    timeout: float | None = None,
    propagate: bool = True,
    app: Celery | None = None,
) -> Any:
    """Returns the result of a task, once it has ended, without blocking the event loop.

        total = await aio.result(add.delay(1, 2), timeout=10)

    One thread of the process listens for all results that are awaited, in the app's result backend,
    which must be pgbeat's.

    Args:
        task: The task's result or id, which is the id of its job; or the result of a group, which
            gives a list. Of a chain, the result: then an error in an earlier link is raised, too.
        timeout: Seconds to wait; `None` for no limit.
        propagate: Whether to raise the task's error; otherwise it is returned.
        app: The app whose backend has the result, by default the result's or the current one.

    Raises:
        ConfigError: The app's result backend is not pgbeat's.
        celery.exceptions.TimeoutError: The result has not come within the timeout.
    """
    if not isinstance(task, AsyncResult | ResultSet):
        task = AsyncResult(str(task), app=app or current_app._get_current_object())
    try:
        await asyncio.wait_for(_end(task, propagate), timeout)
    except TimeoutError as error:
        raise ResultTimeout("The operation timed out.") from error
    return _value(task, propagate)


async def _end(task: AsyncResult | ResultSet, propagate: bool) -> None:
    """Waits until the task has ended, or, to propagate its error, an earlier link of its chain."""
    if isinstance(task, ResultSet):
        await asyncio.gather(*(_end(member, propagate) for member in task.results))
        return
    if isinstance(task, EagerResult) or task.ignored:
        return
    awaited = {asyncio.ensure_future(_read(task)): task}
    earlier = task.parent if propagate else None
    while earlier is not None:
        if isinstance(earlier, AsyncResult) and not isinstance(earlier, EagerResult):
            awaited[asyncio.ensure_future(_read(earlier))] = earlier
        earlier = earlier.parent
    try:
        left = set(awaited)
        while left:
            done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
            for future in done:
                future.result()
            if any(awaited[future] is task or awaited[future].failed() for future in done):
                return
    finally:
        for future in awaited:
            future.cancel()


async def _read(task: AsyncResult) -> None:
    if not task._cache:
        task._maybe_set_cache(await awaited_results(task.app).get(task.id))


def _value(task: AsyncResult | ResultSet, propagate: bool) -> Any:
    if isinstance(task, ResultSet):
        return [_value(member, propagate) for member in task.results]
    earlier = task.parent if propagate and not isinstance(task, EagerResult) else None
    while earlier is not None:
        if isinstance(earlier, AsyncResult) and earlier._cache:
            earlier.maybe_throw()
        earlier = earlier.parent
    return task.get(propagate=propagate, follow_parents=False, disable_sync_subtasks=False)
