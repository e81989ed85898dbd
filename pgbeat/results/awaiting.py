"""Awaits results in asyncio: one thread of the process waits for all, so that no loop blocks."""

import asyncio
import threading
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from celery import Celery, states

from pgbeat.config.app_state import state_of
from pgbeat.errors import ConfigError
from pgbeat.results.backend import ResultBackend
from pgbeat.results.waiting import Awaiter, Waits

#: Seconds of one wait, after which the thread looks whether anybody still waits.
_TURN = 1.0

_Future = asyncio.Future[dict[str, Any]]


class AwaitedResults(Awaiter):
    """The results of one app that coroutines of this process await."""

    def __init__(self, backend: ResultBackend) -> None:
        super().__init__()
        self._backend = backend
        self._futures: dict[str, set[_Future]] = {}
        #: Guards the futures, and whether there is a thread.
        self._lock = threading.Lock()
        self._is_running = False
        #: Known once the thread has asked for it, which may take a connection's lock.
        self._waits: Waits | None = None

    @property
    def is_satisfied(self) -> bool:
        """Whether a result came, or none is awaited."""
        return not self._futures or super().is_satisfied

    async def get(self, task_id: str) -> dict[str, Any]:
        """Returns what Celery knows of a task, once its state is final."""
        key = self._backend.key(task_id)
        future: _Future = asyncio.get_running_loop().create_future()
        with self._lock:
            self._futures.setdefault(key, set()).add(future)
            self.awaited.add(key)
            if self._waits is not None:
                self._waits.add(self, key)
            if not self._is_running:
                self._is_running = True
                threading.Thread(target=self._run, name="pgbeat results", daemon=True).start()
        self._wake()
        try:
            return await future
        finally:
            self._forget(key, future)

    def _forget(self, key: str, future: _Future) -> None:
        with self._lock:
            futures = self._futures.get(key, set())
            futures.discard(future)
            if not futures:
                self._futures.pop(key, None)
                self.awaited.discard(key)
        if not self._futures:
            self._wake()

    def _wake(self) -> None:
        if self._waits is not None:
            self._waits.hear(())

    def _run(self) -> None:
        """Waits until no result is awaited. Tries again while the database is gone."""
        while True:
            try:
                self._wait()
            except Exception as error:
                self._settle(list(self._futures), error)
            with self._lock:
                if not self._futures:
                    self._is_running = False
                    return

    def _wait(self) -> None:
        if self._waits is None:
            waits = self._backend.waits
            with self._lock:
                self._waits = waits
                for key in self._futures:
                    waits.add(self, key)
        self._waits.wait(self, _TURN)
        while self.received:
            row = self.received.popleft()
            if row.status not in states.READY_STATES:
                continue
            try:
                meta = self._backend.meta_of(row)
            except Exception as error:  # a content type that the app doesn't accept
                self._settle([row.task_id], error)
            else:
                self._settle([row.task_id], meta)

    def _settle(self, keys: Iterable[str], outcome: dict[str, Any] | Exception) -> None:
        with self._lock:
            self.awaited.difference_update(keys)
            futures = [future for key in keys for future in self._futures.pop(key, ())]
        for future in futures:
            with suppress(RuntimeError):  # its loop is closed
                future.get_loop().call_soon_threadsafe(_set, future, outcome)


def _set(future: _Future, outcome: dict[str, Any] | Exception) -> None:
    if future.done():
        return
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


def awaited_results(app: Celery) -> AwaitedResults:
    """Returns the results of an app that this process awaits.

    Raises `ConfigError` if the app keeps its results elsewhere.
    """
    part = state_of(app).part(_Awaited)
    if part.results is not None:
        return part.results
    backend = app.backend
    if not isinstance(backend, ResultBackend):
        raise ConfigError(
            f"awaiting results needs result_backend = 'pgbeat://'; app {app.main!r} has "
            f"{type(backend).__name__}"
        )
    part.results = AwaitedResults(backend)
    return part.results


class _Awaited:
    """The results of an app that this process awaits, once it has awaited one."""

    results: AwaitedResults | None = None
