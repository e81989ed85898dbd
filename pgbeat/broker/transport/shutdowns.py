"""Ends a worker as a shutdown asks: what has not begun goes back at once, what runs may end.

Celery requeues messages when a channel closes, after the last task. Only in processes can a cold
shutdown cancel tasks: Celery would fail that of a solo worker, acknowledge those of greenlets, and
wait for threads. It also does all that in the signal handler, in the midst of what the loop does.
Here the handler leaves it to the loop; then these pools' tasks end with their process.
"""

import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from billiard.einfo import ExceptionInfo
from celery import bootsteps, signals
from celery.concurrency.prefork import TaskPool as PreforkPool
from celery.concurrency.solo import TaskPool as SoloPool
from celery.concurrency.thread import TaskPool as ThreadPool
from celery.exceptions import Reject, WorkerTerminate
from celery.platforms import EX_FAILURE
from celery.worker import state
from kombu.common import ignore_errors

logger = logging.getLogger("celery.worker.pgbeat")

#: Seconds between two looks at whether the running tasks have ended.
_LOOK = 0.05


class Runs:
    """The tasks that run in the worker's own process, and how far its shutdown is."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.running: set[Run] = set()
        #: Whether no others may begin.
        self.is_closed = False
        #: Whether Celery's handler of a cold shutdown runs.
        self.is_in_handler = False

    def accepts(self) -> bool:
        """Returns whether tasks may begin."""
        ends = (state.should_stop, state.should_terminate)
        return not self.is_closed and all(end is None or end is False for end in ends)


class Run:
    """One run of a task. A pool calls its methods in place of Celery's, in this order."""

    is_accepted = True
    #: Whether the task's own code may run.
    is_in_task = False

    def __init__(self, runs: Runs, trace: Any, accept: Any, callback: Any) -> None:
        self._runs, self._trace, self._accept, self._callback = runs, trace, accept, callback

    def accept(self, *about: Any) -> None:
        """Accepts the task, unless the worker shuts down.

        One that was revoked while it waited for a thread ends here. Celery would terminate it,
        which this pool can't do: its message would stay claimed.
        """
        with self._runs.lock:
            self.is_accepted = self._runs.accepts()
            if not self.is_accepted:
                return
            self._runs.running.add(self)
            try:
                self._accept(*about)
            except BaseException as error:
                self._runs.running.discard(self)
                if not isinstance(error, NotImplementedError):
                    raise
                self.is_accepted = False
                self._accept.__self__._announce_revoked("terminated", True, None, False)

    def trace(self, *args: Any) -> Any:
        """Runs the task; a `Reject` is its failure, for which Celery rejects the message."""
        if not self.is_accepted:
            return None
        self.is_in_task = True
        try:
            return self._trace(*args)
        except Reject:
            return 1, ExceptionInfo(internal=True), 0.0
        except BaseException:
            self._runs.running.discard(self)
            raise
        finally:
            self.is_in_task = False

    def end(self, result: Any) -> None:
        """Acknowledges the task, or does what else follows."""
        if self.is_accepted:
            try:
                self._callback(result)
            finally:
                self._runs.running.discard(self)


class ReturnUnstarted(bootsteps.StartStopStep):
    """Requeues what the worker has not begun as soon as it shuts down."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, c: Any, **kwargs: Any) -> None:
        super().__init__(c, **kwargs)
        self._c, self._unstarted = c, list[int]()
        self._runs = c.pgbeat_runs = Runs()
        self._close, c.blueprint.on_close = c.blueprint.on_close, self._on_close
        wait = c.controller.wait_for_soft_shutdown
        c.controller.wait_for_soft_shutdown = partial(self._begin_to_end, wait)
        signals.worker_shutting_down.connect(self._wake)

    def start(self, c: Any) -> None:
        """Keeps the handler from ending the consumer, in the midst of what the session does."""
        c.task_consumer.cancel = partial(self._cancel, c.task_consumer.cancel)

    def _cancel(self, cancel: Callable[[], None]) -> None:
        if not self._runs.is_in_handler:
            cancel()

    def _begin_to_end(self, wait: Callable[[], None]) -> None:
        """Notes that the handler of a cold shutdown runs: this is what it does first."""
        self._runs.is_in_handler = True
        wait()

    def _wake(self, **kwargs: Any) -> None:
        """Wakes the loop, last in the handler; a full green pool keeps it until it has room."""
        self._runs.is_in_handler = False
        if self._c.connection is not None:
            self._c.connection.transport.wake()
        if self._c.pool.is_green:
            self._c.pool.grow(1)

    def _on_close(self) -> None:
        """Notes what has not begun, before Celery forgets it."""
        has_processes = isinstance(self._c.pool, PreforkPool)
        with self._runs.lock:
            self._runs.is_closed = True
            limited = [
                request
                for bucket in self._c.task_buckets.values()
                for request, _ in (bucket.contents if bucket else ())
            ]
            self._unstarted = [
                request.message.delivery_tag
                for request in [*state.requests.values(), *limited]
                if request not in state.active_requests
                # A process may have it already. In the others `Run.accept` refuses it.
                and not (has_processes and request._apply_result is not None)
            ]
        self._close()

    def stop(self, c: Any) -> None:
        """Stops consuming, and requeues."""
        if c.blueprint.state == bootsteps.RUN or c.connection is None or c.task_consumer is None:
            return  # it connects anew, or can't
        ignore_errors(c, c.task_consumer.cancel)
        qos, tags = c.task_consumer.channel.qos, self._unstarted
        ignore_errors(c, partial(qos.restore_unacked, tags))


class EndInProcess(bootsteps.StartStopStep):
    """Ends the pools of threads, of greenlets and solo, with what runs at a cold shutdown."""

    requires = (ReturnUnstarted,)

    def include_if(self, c: Any) -> bool:
        """Returns whether tasks run in the worker's own process."""
        return not isinstance(c.pool, PreforkPool)

    def create(self, c: Any) -> None:
        """Replaces what Celery calls at a shutdown."""
        self._c, self._runs = c, c.pgbeat_runs
        #: Until when tasks may run (`time.monotonic()`), and whether that is a soft shutdown's.
        self._until, self._is_soft = float("inf"), False
        self._alarm: threading.Timer | None = None
        c.controller.wait_for_soft_shutdown = self._begin_to_end
        for name in ("cancel_active_requests", "cancel_all_unacked_requests"):  # Celery 5.6, 5.5
            setattr(c, name, self._give_up)
        c.pool.stop = partial(self._stop, c.pool.stop)
        c.pool.terminate = partial(self._stop, c.pool.terminate)
        blueprint = c.controller.blueprint
        blueprint.on_stopped = partial(self._leave, blueprint.on_stopped)

    # ----- in the signal handler, which interrupts a solo worker's task

    def _begin_to_end(self) -> None:
        """Gives running tasks the seconds of a soft shutdown."""
        self._runs.is_in_handler = True
        seconds, now = self._c.app.conf.worker_soft_shutdown_timeout, time.monotonic()
        self._is_soft = seconds > 0 and bool(self._runs.running) and self._until > now
        if self._is_soft:
            logger.warning("Initiating Soft Shutdown, terminating in %s seconds", seconds)
            self._until = now + seconds
            if isinstance(self._c.pool, SoloPool):
                self._alarm = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGQUIT))
                self._alarm.daemon = True
                self._alarm.start()

    def _give_up(self) -> None:
        """Ends the wait for running tasks. Celery calls this also just after `_begin_to_end`."""
        if self._is_soft:
            self._is_soft = False
            return
        self._until = time.monotonic()
        if isinstance(self._c.pool, SoloPool) and any(r.is_in_task for r in self._runs.running):
            self._runs.is_in_handler = False
            raise WorkerTerminate(EX_FAILURE)

    # ----- in the loop's place

    def _stop(self, stop: Callable[[], None]) -> None:
        """Waits for running tasks, and stops the pool if they have ended."""
        if self._runs.is_in_handler:
            return
        while self._runs.running and time.monotonic() < self._until:
            ignore_errors(self._c, self._turn)
            time.sleep(_LOOK)
        if self._alarm is not None:
            self._alarm.cancel()
        if not self._runs.running:
            stop()

    def _turn(self) -> None:
        """Has tasks acknowledged that have ended, as the loop did."""
        hub = self._c.hub
        if hub is not None:
            hub.fire_timers()
            for callback in hub._pop_ready():
                callback()

    def _leave(self, leave: Callable[[], None]) -> None:
        """Closes the connection, and ends a process whose threads would keep it."""
        leave()
        if self._runs.running:
            logger.warning("The worker ends with %d running tasks", len(self._runs.running))
            if isinstance(self._c.pool, ThreadPool):
                logging.shutdown()
                os._exit(self._c.controller.exitcode or 0)
