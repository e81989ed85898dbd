"""Shows that a worker is alive: that its consumer's loop turns, or that it waits for its broker."""

from typing import Any

from celery import bootsteps, signals
from celery.concurrency.solo import TaskPool as SoloPool
from celery.worker import state

from pgbeat.processes.pulse import INTERVAL, Pulse

#: Seconds without a turn of the loop after which a worker is stuck.
_PATIENCE = 60.0


class TurningLoop(bootsteps.StartStopStep):
    """Notes each few seconds that the consumer's loop turns, from when it has connected."""

    requires = ("celery.worker.consumer.tasks:Tasks",)
    _timer: Any = None

    def start(self, c: Any) -> None:
        """Begins. The solo pool's loop doesn't turn while it runs a task."""
        if isinstance(c.pool, SoloPool):
            _pulse.is_busy = lambda: bool(state.active_requests)
        _pulse.turned()
        self._timer = c.timer.call_repeatedly(INTERVAL, _pulse.turned)

    def stop(self, c: Any) -> None:
        """Ends, as the worker shuts down or has lost its broker."""
        _pulse.rests()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


#: This process's.
_pulse: Pulse


def show(app: Any) -> None:
    """Shows that this worker is alive, until it ends."""
    global _pulse
    _pulse = Pulse("worker", _PATIENCE)
    app.steps["consumer"].add(TurningLoop)
    signals.worker_shutdown.connect(lambda **kwargs: _pulse.stop(), weak=False)
    _pulse.start()
