"""Waits for results: over one channel of notifications for all waits of a process."""

import os
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any
from uuid import uuid4
from weakref import WeakSet

from celery import states
from celery.backends.asynchronous import BaseResultConsumer

from pgbeat.database import connections
from pgbeat.database.channels import RESULTS
from pgbeat.database.locks import batches
from pgbeat.database.watched import readable
from pgbeat.results import statements
from pgbeat.results.rows import StoredResult, as_json, stored_results
from pgbeat.results.store import Store

#: Seconds between two looks at the results themselves, because a notification can be missed: at
#: first, and at most. They double.
_SOONEST, _LATEST = 0.05, 0.5
#: Seconds between two attempts to reach the server while it is gone.
_PAUSE = 0.2
_READY = as_json(sorted(states.READY_STATES))


def _passes(error: BaseException) -> bool:
    return connections.is_lost(error) or batches.is_locked(error)


class Awaiter:
    """Waits for the results of some tasks."""

    def __init__(self) -> None:
        #: Tasks, as the tables name them, whose final state has not come.
        self.awaited: set[str] = set()
        #: Rows that came, not handled yet.
        self.received: deque[StoredResult] = deque()

    @property
    def is_satisfied(self) -> bool:
        """Whether it need not wait any longer."""
        return bool(self.received)


class Waits:
    """The waits of a process. One of its threads at a time listens, and reads for all."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiter = uuid4().hex
        self._awaiters: WeakSet[Awaiter] = WeakSet()
        #: Tasks that were not looked up in the database yet.
        self._new: set[str] = set()
        #: Tasks that a notification named.
        self._heard: set[str] = set()
        #: Notified of everything that ends a wait; guards `_is_listening` and `_awaiters`.
        self._changed = threading.Condition()
        #: Whether a thread listens.
        self._is_listening = False
        #: The connection (by identity) whose session listens to the channel.
        self._session: Any = None
        #: A duplicate of its socket: eventlet lets no two greenlets wait for one descriptor.
        self._socket: int | None = None
        self._interval, self._look_at = _SOONEST, 0.0
        self._wake_end, self._wake = os.pipe()
        os.set_blocking(self._wake_end, False)
        os.set_blocking(self._wake, False)

    def add(self, awaiter: Awaiter, task_id: str) -> None:
        """Begins to wait for a task; `look` asks the database."""
        with self._changed:
            self._awaiters.add(awaiter)
        self._new.add(task_id)

    def look(self, tasks: Iterable[str]) -> None:
        """Reads the results of these tasks, and of those added, that are there already."""
        if again := [task for task in tasks if task not in self._new]:
            with self._store.work() as working:
                self._deliver(working.prepared.run(statements.READ_MANY, as_json(again)))
        if self._new:
            self._read_new()

    def wait(self, awaiter: Awaiter, seconds: float) -> None:
        """Waits until an awaiter has received something, at most so many seconds."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while self._is_listening and not awaiter.is_satisfied:
                if not self._changed.wait(deadline - time.monotonic()):
                    return
            if awaiter.is_satisfied:
                return
            self._is_listening = True
        try:
            while not awaiter.is_satisfied and (left := deadline - time.monotonic()) > 0:
                self._listen(awaiter, left)
        finally:
            with self._changed:
                self._is_listening = False
                self._changed.notify_all()

    def _listen(self, awaiter: Awaiter, seconds: float) -> None:
        """Waits for a notification, or for the next look, and reads what there is."""
        try:
            self._read()
            files = [self._wake_end] if self._socket is None else [self._wake_end, self._socket]
            until = max(0.0, self._look_at - time.monotonic())
            if not self._heard and not awaiter.is_satisfied:
                ready = readable(files, min(seconds, until))
                if self._wake_end in ready:
                    with suppress(BlockingIOError):
                        os.read(self._wake_end, 4096)
                if self._socket in ready:
                    with self._store.work() as working:
                        working.prepared.poll()
            if self._heard:
                self._read()
        except Exception as error:
            if not _passes(error):
                raise
            time.sleep(min(seconds, _PAUSE))

    def _read(self) -> None:
        """Reads what was added, what a notification named, and all of it when it is time."""
        with self._store.work() as working:
            if self._session is not working.connection:
                self._open_session(working)
            if self._new:
                self._read_new()
            if heard := self._take(self._heard):
                self._deliver(working.prepared.run(statements.READ_MANY, as_json(heard)))
            now = time.monotonic()
            if now >= self._look_at:
                self._interval = min(self._interval * 2, _LATEST)
                self._look_at = now + self._interval
                if awaited := self._awaited():
                    ready = working.prepared.run(statements.READ_READY, as_json(awaited), _READY)
                    self._deliver(ready)

    def _open_session(self, working: Any) -> None:
        """Listens in a new session, and asks for all results again.

        Those that came meanwhile were missed, and a crash of the server empties the table of waits.
        """
        self._close_socket()
        if working.listens:
            listen = f"LISTEN {RESULTS}{self._waiter}"
            connections.driver(working.connection).execute(listen.encode())
            self._socket = os.dup(working.prepared.fileno())
        self._session = working.connection
        self._new |= self._awaited()

    def _close_socket(self) -> None:
        number, self._socket = self._socket, None
        if number is not None:
            os.close(number)

    def disown(self) -> None:
        """Closes, in a child process, what it has of the parent's."""
        self._close_socket()
        os.close(self._wake)
        os.close(self._wake_end)

    def _read_new(self) -> None:
        with self._store.work() as working:
            if self._session is not working.connection:
                self._open_session(working)
            new = self._take(self._new)
            if not new:
                return
            try:
                # First the one, then the other: a result that is stored in between is notified of.
                if working.listens:
                    waiter = self._waiter.encode()
                    working.prepared.run(statements.WAIT, as_json(new), waiter)
                self._deliver(working.prepared.run(statements.READ_MANY, as_json(new)))
            except BaseException:
                self._new |= new
                raise
            self._interval, self._look_at = _SOONEST, time.monotonic() + _SOONEST

    @staticmethod
    def _take(tasks: set[str]) -> set[str]:
        """Empties a set that other threads add to."""
        taken = set()
        while tasks:
            with suppress(KeyError):
                taken.add(tasks.pop())
        return taken

    def _awaited(self) -> set[str]:
        return set().union(*(set(consumer.awaited) for consumer in self._known()))

    def _known(self) -> list[Awaiter]:
        with self._changed:
            return list(self._awaiters)

    def _deliver(self, ready: Any) -> None:
        rows = stored_results(ready)
        if not rows:
            return
        for awaiter in self._known():
            awaiter.received.extend(row for row in rows if row.task_id in awaiter.awaited)
        with self._changed:
            self._changed.notify_all()

    def hear(self, notifications: Sequence[tuple[str, str]]) -> None:
        """Notes what a statement's answer brought along, and wakes the thread that listens."""
        self._heard.update(task_id for _, task_id in notifications)
        with suppress(BlockingIOError):
            os.write(self._wake, b"!")


class ResultConsumer(BaseResultConsumer, Awaiter):
    """The waits of one backend, which is one thread's unless it is thread-safe."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        BaseResultConsumer.__init__(self, *args, **kwargs)
        Awaiter.__init__(self)

    def start(self, initial_task_id: str, **kwargs: Any) -> None:
        """Begins to wait for a first task."""
        self.consume_from(initial_task_id)

    def consume_from(self, task_id: str) -> None:
        """Begins to wait for a task, without a statement."""
        key = self.backend.key(task_id)
        if key not in self.awaited:
            self.awaited.add(key)
            self.backend.waits.add(self, key)

    def cancel_for(self, task_id: str) -> None:
        """Waits for a task no longer. Garbage collection may call it anywhere: it takes no lock."""
        with suppress(ValueError):  # no id, so it was never waited for
            self.awaited.discard(self.backend.key(task_id))

    def on_wait_for_pending(self, result: Any, **kwargs: Any) -> None:
        """Takes what is there already, so that it is given however short the timeout is."""
        results = getattr(result, "results", None) or [result]
        tasks = {self.backend.key(pending.id) for pending in results} & self.awaited
        try:
            self.backend.waits.look(tasks)
        except Exception as error:
            if not _passes(error):
                raise
        self._handle()

    def drain_events_until(
        self, p: Any, timeout: float | None = None, on_interval: Any = None
    ) -> Iterable[Any]:
        """Yields after each wait until `p` is ready; raises `TimeoutError` in the end.

        Celery's own waits before it looks (until 5.7), and a second each time, however short the
        timeout is.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while not p.ready:
            left = 1.0 if deadline is None else deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            yield self.drainer.wait_for(p, self.drain_events, timeout=min(1.0, left))
            if on_interval:
                on_interval()

    def drain_events(self, timeout: float | None = None) -> None:
        """Waits for results, and hands each to the objects that wait for it."""
        if not self.received:
            self.backend.waits.wait(self, 1.0 if timeout is None else timeout)
        self._handle()

    def _handle(self) -> None:
        while self.received:
            try:
                row = self.received.popleft()
            except IndexError:  # another thread was quicker
                return
            if row.status in states.READY_STATES:
                self.awaited.discard(row.task_id)
            self.on_state_change(self.backend.meta_of(row), None)

    def on_after_fork(self) -> None:
        """Forgets, in a child process, what its parent waits for."""
        self.awaited.clear()
        self.received.clear()
