"""Turns on what Celery workers do only for transports whose names Celery knows.

Mingle, gossip and `worker_disable_prefetch` work with any transport that has fanout and exact
prefetch counts. Besides, the solo pool acknowledges before a task, not after it.
"""

from typing import Any

from celery import bootsteps, current_app, signals
from celery.app.defaults import DEFAULTS
from celery.app.utils import filter_hidden_settings
from celery.concurrency.base import apply_target
from celery.concurrency.prefork import TaskPool as PreforkPool
from celery.concurrency.solo import TaskPool as SoloPool
from celery.worker import state
from celery.worker.consumer.gossip import Gossip
from celery.worker.consumer.mingle import Mingle
from celery.worker.control import inspect_command
from kombu import Consumer, Message
from kombu.utils.url import maybe_sanitize_url

from pgbeat.broker.transport import ignored_options
from pgbeat.broker.transport.declarations import WorkerConsumer
from pgbeat.broker.transport.shutdowns import EndInProcess, ReturnUnstarted, Run, Runs
from pgbeat.broker.transport.transport import Transport
from pgbeat.config import redacted


class ExactPrefetch(bootsteps.StartStopStep):
    """Claims a message only when a process is free for it (`worker_disable_prefetch`)."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def start(self, c: Any) -> None:
        """Gives the consumer's channel the number of free processes."""

        def free() -> int:
            concurrency = getattr(c.controller, "max_concurrency", None) or c.pool.num_processes
            return int(concurrency) - len(state.reserved_requests)

        c.task_consumer.channel.qos.free = free


@inspect_command()
def stats(state: Any, **kwargs: Any) -> dict[str, Any]:
    """Returns Celery's statistics of the worker, without passwords of its broker."""
    statistics: dict[str, Any] = state.consumer.controller.stats()
    broker = filter_hidden_settings(statistics.get("broker") or {})
    if str(broker.get("uri_prefix")).startswith("pgbeat"):
        broker["hostname"] = redacted(broker["hostname"])
    broker["alternates"] = [maybe_sanitize_url(url) for url in broker.get("alternates") or ()]
    return statistics | {"broker": broker}


class AckBeforeTask(bootsteps.StartStopStep):
    """Acknowledges in the solo pool before an early acknowledged task starts.

    Celery acknowledges at its event loop's next turn, which comes after the task: a worker that is
    killed in between would cause another run.
    """

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def include_if(self, c: Any) -> bool:
        """Returns whether tasks run in the event loop's thread."""
        return isinstance(c.pool, SoloPool)

    def start(self, c: Any) -> None:
        """Replaces the functions by which Celery puts off acknowledgements and runs tasks."""
        name = "call_soon_ack" if hasattr(c, "call_soon_ack") else "call_soon"  # of Celery 5.7
        put_off, channel = getattr(type(c), name).__get__(c), c.task_consumer.channel
        is_acked = False

        def call_soon(call: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal is_acked
            message = getattr(call, "__self__", None)
            headers = (message.headers or {}) if isinstance(message, Message) else {}
            task = c.app.tasks.get(headers.get("task"))
            if task is None or task.acks_late:
                return put_off(call, *args, **kwargs)
            is_acked = True
            return call(*args, **kwargs)

        def run(*args: Any, accept_callback: Any = None, **kwargs: Any) -> Any:
            def accept(*about: Any) -> None:
                nonlocal is_acked
                is_acked = False
                accept_callback(*about)
                if is_acked:
                    # Raises if the session is lost: its message is requeued, and must not run here.
                    channel.session.flush_acks()

            accepted = accept_callback and accept
            return apply_target(*args, accept_callback=accepted, **kwargs)

        setattr(c, name, call_soon)
        c.pool.on_apply = run


class RunInProcess(bootsteps.StartStopStep):
    """Makes the pools of threads, of greenlets and solo run tasks as `Run` does.

    They reject a task as the prefork pool does. Celery 5.7 lets a `Reject` pass that storing a
    result raised: a solo worker would end, and others would keep the message, so that it could not
    run again.
    """

    requires = (AckBeforeTask, EndInProcess)

    def include_if(self, c: Any) -> bool:
        """Returns whether tasks run in the worker's own process."""
        return not isinstance(c.pool, PreforkPool)

    def start(self, c: Any) -> None:
        """Replaces the function by which the pool runs tasks."""
        apply = getattr(c.pool.on_apply, _ORIGINAL, c.pool.on_apply)
        runs: Runs = c.pgbeat_runs

        def apply_run(
            target: Any,
            *args: Any,
            accept_callback: Any = None,
            callback: Any = None,
            **kwargs: Any,
        ) -> Any:
            run = Run(runs, target, accept_callback, callback)
            accept = accept_callback and run.accept
            try:
                return apply(run.trace, *args, accept_callback=accept, callback=run.end, **kwargs)
            except BaseException:
                runs.running.discard(run)
                raise

        setattr(apply_run, _ORIGINAL, apply)
        c.pool.on_apply = apply_run


class TrackedProcesses(bootsteps.StartStopStep):
    """Lets a worker live that consumes anew just after one of its processes has died.

    Celery drops the process's file as it closes. Until the process is reaped, at the latest after
    five seconds, it would fail to watch that file again.
    """

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def include_if(self, c: Any) -> bool:
        """Returns whether tasks run in processes."""
        return isinstance(c.pool, PreforkPool)

    def start(self, c: Any) -> None:
        """Has such a process's file watched again."""
        for process in c.pool._pool._pool:
            if getattr(process, "_sentinel_poll", 0) is None:
                del process._sentinel_poll


#: Where what replaces a pool's `on_apply` has the original.
_ORIGINAL = "pgbeat_original"


def prepare(app: Any) -> None:
    """Prepares an app for its worker."""
    url = app.conf.broker_read_url or app.conf.broker_url or ""
    first = url[0] if isinstance(url, list | tuple) else url
    if not f"{app.conf.broker_transport or ''} {first}".strip().startswith("pgbeat"):
        return
    ignored_options.warn("Settings", ignored_options.ignored_settings(app.conf, DEFAULTS))
    if app.amqp.Consumer is Consumer:
        app.amqp.Consumer = WorkerConsumer
    for step in (Gossip, Mingle):
        step.compatible_transports = {*step.compatible_transports, Transport.driver_type}
    steps = (AckBeforeTask, RunInProcess, TrackedProcesses, ReturnUnstarted, EndInProcess)
    app.steps["consumer"].update(steps)
    if app.conf.get("worker_disable_prefetch"):
        app.steps["consumer"].add(ExactPrefetch)
        # Celery would warn that it ignores the setting.
        app.conf.worker_disable_prefetch = False


def _on_worker_init(sender: Any, **kwargs: Any) -> None:
    prepare(sender.app)


signals.worker_init.connect(_on_worker_init)
# In green pools the transport is loaded after `worker_init`.
prepare(current_app._get_current_object())
