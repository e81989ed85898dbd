"""Shows that a worker is alive: that its consumer's loop turns, or that it waits for its broker."""

import time
from typing import Any

from celery import bootsteps, signals
from celery.concurrency.solo import TaskPool as SoloPool
from celery.worker import state

from pgbeat.pulse import INTERVAL, Pulse

#: Seconds without a turn of the loop after which a worker is stuck.
_PATIENCE = 60.0


class TurningLoop(bootsteps.StartStopStep):
    """Notes each few seconds that the consumer's loop turns."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, c: Any, **kwargs: Any) -> None:
        super().__init__(c, **kwargs)
        self._timer: Any = None

    def start(self, c: Any) -> None:
        """Begins, as the consumer has connected."""
        _loop.began(isinstance(c.pool, SoloPool))
        self._timer = c.timer.call_repeatedly(INTERVAL, _loop.turned)

    def stop(self, c: Any) -> None:
        """Ends, as the consumer stops or has lost its broker."""
        _loop.ended()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _Loop:
    """What is known of this process's loop."""

    def __init__(self) -> None:
        self._turned_at: float | None = None
        self._runs_tasks = False

    def began(self, runs_tasks: bool) -> None:
        self._runs_tasks = runs_tasks
        self.turned()

    def turned(self) -> None:
        self._turned_at = time.monotonic()

    def ended(self) -> None:
        self._turned_at = None

    def is_stuck(self) -> bool:
        """Returns whether the loop should have turned.

        It doesn't turn while it runs a task itself, or while there is none, since the broker is
        away or the worker shuts down.
        """
        turned_at = self._turned_at
        if turned_at is None or (self._runs_tasks and state.active_requests):
            return False
        return time.monotonic() - turned_at > _PATIENCE


_loop = _Loop()


def show(app: Any) -> None:
    """Shows that this worker is alive, until it ends."""
    pulse = Pulse("worker", _loop.is_stuck)
    app.steps["consumer"].add(TurningLoop)
    signals.worker_shutdown.connect(lambda **kwargs: pulse.stop(), weak=False)
    pulse.start()
