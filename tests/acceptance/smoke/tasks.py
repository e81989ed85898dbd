"""The tasks of the smoke tests. Its source is copied to the worker: it imports Celery only."""

import time
from typing import Any

from celery import Task, shared_task


@shared_task
def add(x: int, y: int) -> int:
    """A sum of two."""
    return x + y


@shared_task
def total(numbers: list[int]) -> int:
    """A sum of many."""
    return sum(numbers)


@shared_task(bind=True, max_retries=3)
def fail_twice(self: Task) -> int:
    """Fails twice; the number of retries that it took."""
    retries: int = self.request.retries
    if retries < 2:
        raise self.retry(exc=ValueError(f"attempt {retries}"), countdown=0.1)
    return retries


@shared_task(bind=True, acks_late=True)
def hold(self: Task) -> list[str]:
    """Tells by its state HELD that it runs, and doesn't end. Run once more, it returns at once,
    and says by whom it was run.
    """
    result: Any = self.AsyncResult(self.request.id)
    me: str = self.request.hostname
    if result.state == "HELD":
        return [result.info["by"], me]
    self.update_state(state="HELD", meta={"by": me})
    time.sleep(30)
    raise AssertionError("nobody has ended it")
