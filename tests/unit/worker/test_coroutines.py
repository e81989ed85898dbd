"""Tasks that are `async def`."""

import asyncio
from inspect import iscoroutine
from typing import Any

import pytest
from celery import Celery

from pgbeat.worker.finishing import task_run
from tests.support.awaiting import Awaiting


def make(**options: Any) -> Any:
    """Makes a task, in an app whose worker has started."""
    app = Celery("coroutines", set_as_current=False)

    @app.task(name="double", shared=False, **options)
    async def double(x: int) -> int:
        return 2 * x

    task_run.set_up(app)
    return app.tasks["double"]


def test_a_coroutine_that_nobody_awaits_is_an_error() -> None:
    with pytest.raises(TypeError, match="'double' is `async def`"):
        make().apply((2,), throw=True)


def test_a_task_may_await_itself() -> None:
    assert make(base=Awaiting).apply((2,)).get() == 4


def test_a_pool_with_a_loop_may_await_it() -> None:
    async def work() -> Any:
        value = make().run(2)
        assert iscoroutine(value)
        return await value

    assert asyncio.run(work()) == 4
