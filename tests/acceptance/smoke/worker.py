"""The worker of the smoke tests, the same in a container and in a process."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from celery import Celery, _state
from pytest_celery import CeleryTestSetup, CeleryWorkerContainer

from tests.acceptance.smoke import tasks


class SmokeWorkerContainer(CeleryWorkerContainer):
    """A worker with two processes and our tasks."""

    @classmethod
    def command(cls, *args: str, **kwargs: Any) -> list[str]:
        """Returns the command: `celery worker`."""
        return [str(part) for part in super().command("--concurrency", "2", *args, **kwargs)]

    @classmethod
    def tasks_modules(cls) -> set[ModuleType]:
        return {tasks}


class SmokeSetup(CeleryTestSetup):
    """The setup of the tests' app and of the worker's."""

    @classmethod
    def update_app_config(cls, app: Celery) -> None:
        """Returns the settings of both apps."""
        app.conf.update(broker_connection_retry_on_startup=True, worker_prefetch_multiplier=1)


@contextmanager
def current_app_kept() -> Iterator[None]:
    """Restores the current app, which making an app in the block replaces."""
    before = _state._tls.current_app
    try:
        yield
    finally:
        _state._set_current_app(before)
