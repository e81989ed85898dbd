"""Defines an app that is deployed in two versions, each with a task that the other doesn't know.

`TESTS_VERSION` is the version, `both` for a sender that knows all tasks.
"""

import os
import time

from celery import Celery

from tests.support.databases import sqlalchemy_url

VERSIONS = ("1", "2")


def make(database: str, version: str) -> Celery:
    """Returns the app of a version."""
    url = f"pgbeat+{sqlalchemy_url(database)}"
    app = Celery("deployed", broker=url, backend=url, set_as_current=False)
    app.conf.update(result_extended=True, worker_prefetch_multiplier=4)

    @app.task(name="shop.both", shared=False, acks_late=True)
    def both(number: int | list[int]) -> int:
        time.sleep(0.01)
        return 1 + (number if isinstance(number, int) else sum(number))

    for each in VERSIONS if version == "both" else [version]:
        for name, policy in (("plain", {}), ("job", {"pgbeat": {"max_attempts": 1}})):
            app.task(name=f"shop.{name}{each}", shared=False, acks_late=True, **policy)(
                both.run.__func__ if hasattr(both.run, "__func__") else both.run
            )
    return app


if "TESTS_VERSION" in os.environ:
    app = make(os.environ["TESTS_DATABASE"], os.environ["TESTS_VERSION"])
