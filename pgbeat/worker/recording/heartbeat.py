"""Sends a worker's heartbeat, and rescues executions of processes and workers that died.

The main process does so over the recorder's connection. The worker counts as alive as long as that
connection.
"""

import os
import random
import time
from collections.abc import Callable, Sequence
from uuid import UUID

from sqlalchemy import Connection

from pgbeat.broker.publishing.publisher import Publisher
from pgbeat.config import Settings
from pgbeat.database import connections
from pgbeat.jobs.lanes.model import Room, to_dispatch
from pgbeat.jobs.rescuing import rescue
from pgbeat.jobs.running import untracked_tasks, workers
from pgbeat.jobs.running.untracked_tasks import Tally
from pgbeat.jobs.running.workers import WorkerReport
from pgbeat.processes.probe import is_alive


class Heartbeat:
    """The heartbeat of one worker, sent by its recorder's thread."""

    def __init__(
        self,
        settings: Settings,
        worker_id: int,
        name: str,
        pool: str,
        concurrency: int | None,
        *,
        patience: float = 12.0,
        tasks: Sequence[str] | None = None,
        describe: Callable[[], WorkerReport] | None = None,
        untracked: Tally | None = None,
    ) -> None:
        """`describe` returns what the worker reports of itself, `untracked` what it received."""
        #: When the next heartbeat is due (`time.monotonic()`).
        self.next_at = 0.0
        self._settings, self._id, self._name = settings, worker_id, name
        self._pool, self._concurrency = pool, concurrency
        self._tasks = tasks
        self._describe, self._untracked, self._report_at = describe, untracked, 0.0
        self._lives = False
        self._rescue_at = time.monotonic() + random.uniform(0, 2)  # noqa: S311
        #: Executions whose process is gone, and since when. Celery reports what becomes of them
        #: within `patience` seconds, but not if their message is requeued.
        self._gone: dict[UUID, float] = {}
        self._patience = patience

    def connected(self, connection: Connection) -> None:
        """Registers the worker with a new session, which now keeps it alive."""
        self._lives = workers.register(
            connection,
            self._id,
            self._name,
            os.getpid(),
            self._pool,
            self._concurrency,
            namespace=self._settings.namespace,
            tasks=self._tasks,
        )

    def beat(self, connection: Connection, publisher: Publisher) -> set[Room]:
        """Sends a heartbeat, and ends the executions of this worker's dead processes.

        Taking turns with other workers, it also rescues those of dead workers. Returns the lanes
        that have room.
        """
        now = time.monotonic()
        # A lost connection is noticed and replaced before the worker counts as dead.
        self.next_at = now + self._settings.lock_interval * random.uniform(0.8, 1.2)  # noqa: S311
        if not (connections.has_own_session(connection) or workers.renew(connection, self._id)):
            self._lives = False
        if not self._lives:  # an earlier session of this worker may still have had the lock
            self.connected(connection)
        if self._describe is not None and now >= self._report_at:
            interval = self._settings.metrics_interval
            self._report_at = now + interval * random.uniform(0.8, 1.2)  # noqa: S311
            workers.report(connection, self._id, self._describe())
            if self._untracked is not None:
                untracked_tasks.add(connection, self._settings.namespace, self._untracked.take())
        lanes = self._end_own_lost(connection, publisher)
        if now >= self._rescue_at:
            lanes |= rescue.rescue(connection, publisher, self._settings)
            namespace = self._settings.namespace
            lanes |= {Room(namespace, name) for name in to_dispatch(connection, namespace)}
            # Two rescues in each interval, over all workers.
            share = self._settings.lock_interval / 2 * max(2, workers.living(connection))
            self._rescue_at = time.monotonic() + share * random.uniform(0.7, 1.3)  # noqa: S311
        return lanes

    def leave(self, connection: Connection, publisher: Publisher) -> set[Room]:
        """Removes the worker, which must have recorded everything, and what it left running.

        Returns the lanes that have room.
        """
        left = list(workers.running_executions(connection, self._id))
        lanes = rescue.end_lost(connection, publisher, left, "the worker {worker} was stopped")
        workers.leave(connection, self._id)
        return lanes

    def _end_own_lost(self, connection: Connection, publisher: Publisher) -> set[Room]:
        """Ends the executions of this worker's processes that died without recording it."""
        now = time.monotonic()
        running = workers.running_executions(connection, self._id)
        dead = {key for key, pid in running.items() if pid is not None and not is_alive(pid)}
        self._gone = {key: self._gone.get(key, now) for key in dead}
        late = [key for key, since in self._gone.items() if now - since > self._patience]
        if not late:
            return set()
        return rescue.end_lost(connection, publisher, late, "its process on {worker} died")
