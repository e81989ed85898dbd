"""A class for tasks that are `async def`."""

import asyncio
from typing import Any

from celery import Task


class Awaiting(Task):  # type: ignore[type-arg,unused-ignore]
    """A task that awaits itself."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the coroutine."""
        return asyncio.run(self.run(*args, **kwargs))
