"""The worker of the smoke tests: what it runs, the same in a container and in a process."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from celery import Celery, _state
from pytest_celery import CeleryTestSetup, CeleryWorkerContainer

from tests.acceptance.smoke import tasks


class SmokeWorkerContainer(CeleryWorkerContainer):
    """Two processes that know our tasks."""

    @classmethod
    def command(cls, *args: str, **kwargs: Any) -> list[str]:
        """`celery worker`."""
        return [str(part) for part in super().command("--concurrency", "2", *args, **kwargs)]

    @classmethod
    def tasks_modules(cls) -> set[ModuleType]:
        """Modules whose tasks it runs."""
        return {tasks}


class SmokeSetup(CeleryTestSetup):
    """The app on both sides."""

    @classmethod
    def update_app_config(cls, app: Celery) -> None:
        """Settings of the tests' app, which the worker's gets too."""
        app.conf.update(
            broker_connection_retry_on_startup=True,
            result_chord_retry_interval=0.2,
            worker_prefetch_multiplier=1,
        )


@contextmanager
def current_app_kept() -> Iterator[None]:
    """An app that is made in the block isn't the current one any longer when it ends."""
    before = _state._tls.current_app
    try:
        yield
    finally:
        _state._set_current_app(before)
