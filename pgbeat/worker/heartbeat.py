"""The pulse of a worker: that it lives, which of its processes died, who else died.

It beats in the main process, with the recorder's connection; the worker lives as long as that does.
"""

import os
import random
import time
from collections.abc import Sequence
from contextlib import suppress
from uuid import UUID

from sqlalchemy import Connection

from pgbeat.broker.publishing.publisher import Publisher
from pgbeat.config import Settings
from pgbeat.database import connections
from pgbeat.jobs import rescue, workers
from pgbeat.jobs.lanes.model import wanted

#: Seconds between two beats: a lost connection is noticed, and made anew, before the worker counts
#: as dead.
_BEAT = 1.5
#: Seconds between two sweeps, all workers together.
_SWEEP = 0.8


class WorkerPulse:
    """Of one worker."""

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
    ) -> None:
        self.next_at = 0.0
        self._settings, self._id, self._name = settings, worker_id, name
        self._pool, self._concurrency = pool, concurrency
        self._tasks = tasks
        self._lives = False
        self._sweep_at = time.monotonic() + random.uniform(0, 2)  # noqa: S311
        #: Executions whose process is gone, and since when. Celery takes so long (seconds) to say
        #: what it makes of it, and says nothing where their message goes back.
        self._gone: dict[UUID, float] = {}
        self._patience = patience

    def connected(self, connection: Connection) -> None:
        """The session is a new one: the worker lives by it."""
        self._lives = workers.register(
            connection, self._id, self._name, os.getpid(), self._pool, self._concurrency,
            namespace=self._settings.namespace, tasks=self._tasks,
        )  # fmt: skip

    def beat(self, connection: Connection, publisher: Publisher) -> set[tuple[str, str]]:
        """Looks after its own processes and, in turn with the others, after other workers; lanes
        that have room."""
        now = time.monotonic()
        self.next_at = now + _BEAT * random.uniform(0.8, 1.2)  # noqa: S311
        if not (connections.has_own_session(connection) or workers.renew(connection, self._id)):
            self._lives = False
        if not self._lives:  # or an earlier session of ours had the lock still
            self.connected(connection)
        lanes = self._look_after_own(connection, publisher)
        if now >= self._sweep_at:
            lanes |= rescue.sweep(connection, publisher, self._settings)
            namespace = self._settings.namespace
            lanes |= {(namespace, name) for name in wanted(connection, namespace)}
            share = _SWEEP * max(2, workers.living(connection))
            self._sweep_at = time.monotonic() + share * random.uniform(0.7, 1.3)  # noqa: S311
        return lanes

    def leave(self, connection: Connection) -> None:
        """The worker ends, and has told all."""
        workers.leave(connection, self._id)

    def _look_after_own(self, connection: Connection, publisher: Publisher) -> set[tuple[str, str]]:
        """Ends the executions of processes that died without a word."""
        now = time.monotonic()
        running = workers.running(connection, self._id)
        dead = {run for run, pid in running.items() if pid is not None and not _is_alive(pid)}
        self._gone = {run: self._gone.get(run, now) for run in dead}
        late = [run for run, since in self._gone.items() if now - since > self._patience]
        if not late:
            return set()
        return rescue.release(connection, publisher, late, "its process on {worker} died")


def _is_alive(pid: int) -> bool:
    with suppress(PermissionError):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
    return True
