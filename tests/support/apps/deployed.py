"""Defines an app that is deployed in two versions, each with a task that the other doesn't know.

`TESTS_VERSION` is the version, `both` for a sender that knows all tasks.
"""

import os
import time
from typing import Any

from celery import Celery, Task

from tests.support.databases import sqlalchemy_url

VERSIONS = ("1", "2")


def add(number: int | list[int]) -> int:
    """Returns one more than a number, or than the sum of several."""
    time.sleep(0.01)
    return 1 + (number if isinstance(number, int) else sum(number))


def make(database: str, version: str) -> Celery:
    """Returns the app of a version. Its task `shop.pinned` adds the worker's version to a list."""
    url = f"pgbeat+{sqlalchemy_url(database)}"
    app = Celery("deployed", broker=url, backend=url, set_as_current=False)
    app.conf.update(
        result_extended=True, worker_prefetch_multiplier=4, pgbeat_version=f"v{version}"
    )

    policies: dict[str, dict[str, Any]] = {"shop.both": {}}
    for each in VERSIONS if version == "both" else [version]:
        policies |= {f"shop.plain{each}": {}, f"shop.job{each}": {"pgbeat": {"max_attempts": 1}}}
    for name, policy in policies.items():
        app.task(name=name, shared=False, acks_late=True, **policy)(add)

    @app.task(name="shop.pinned", shared=False, bind=True, pgbeat={"pin": True})
    def pinned(self: Task, versions: list[str]) -> list[str]:
        if self.request.retries == 0:
            raise self.retry(countdown=0.1)
        return [*versions, version]

    return app


if "TESTS_VERSION" in os.environ:
    app = make(os.environ["TESTS_DATABASE"], os.environ["TESTS_VERSION"])
