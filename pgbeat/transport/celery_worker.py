"""What a Celery worker does by its transport's name, it does for this transport too.

Mingle, gossip and `worker_disable_prefetch` work with any transport that has fanout and counts
exactly, but Celery turns them on for the names that it knows.
"""

from typing import Any

from celery import bootsteps, signals
from celery.worker import state

from pgbeat.transport.transport import Transport


class ExactPrefetch(bootsteps.StartStopStep):
    """`worker_disable_prefetch`: a message is claimed when a process is free to work on it."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def start(self, c: Any) -> None:
        def free() -> int:
            concurrency = getattr(c.controller, "max_concurrency", None) or c.pool.num_processes
            return int(concurrency) - len(state.reserved_requests)

        c.task_consumer.channel.qos.free = free


def prepare_worker(sender: Any, **kwargs: Any) -> None:
    """Receives `worker_init`: the connection is known, the worker's parts are not made yet."""
    if not isinstance(sender._conninfo.transport, Transport):
        return
    from celery.worker.consumer.gossip import Gossip
    from celery.worker.consumer.mingle import Mingle

    for step in (Gossip, Mingle):
        step.compatible_transports = {*step.compatible_transports, Transport.driver_type}
    conf = sender.app.conf
    if conf.get("worker_disable_prefetch"):
        sender.app.steps["consumer"].add(ExactPrefetch)
        # Celery would say that it ignores the setting.
        conf.worker_disable_prefetch = False


signals.worker_init.connect(prepare_worker)
