"""Turns on what Celery workers do only for transports whose names Celery knows.

Mingle, gossip and `worker_disable_prefetch` work with any transport that has fanout and exact
prefetch counts.
"""

from typing import Any

from celery import bootsteps, current_app, signals
from celery.app.defaults import DEFAULTS
from celery.app.utils import filter_hidden_settings, sanitize_url
from celery.worker import state
from celery.worker.consumer.gossip import Gossip
from celery.worker.consumer.mingle import Mingle
from celery.worker.control import inspect_command

from pgbeat import follow_workers
from pgbeat.broker.transport import ignored_options
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
    found: dict[str, Any] = state.consumer.controller.stats()
    broker = filter_hidden_settings(found.get("broker") or {})
    if str(broker.get("uri_prefix")).startswith("pgbeat"):
        broker["hostname"] = redacted(broker["hostname"])
    broker["alternates"] = [sanitize_url(each) for each in broker.get("alternates") or ()]
    return found | {"broker": broker}


def prepare(app: Any) -> None:
    """Prepares an app for its worker."""
    url = app.conf.broker_read_url or app.conf.broker_url or ""
    first = url[0] if isinstance(url, list | tuple) else url
    if not f"{app.conf.broker_transport or ''} {first}".strip().startswith("pgbeat"):
        return
    ignored_options.warn("Settings", ignored_options.ignored_settings(app.conf, DEFAULTS))
    for step in (Gossip, Mingle):
        step.compatible_transports = {*step.compatible_transports, Transport.driver_type}
    if app.conf.get("worker_disable_prefetch"):
        app.steps["consumer"].add(ExactPrefetch)
        # Celery would warn that it ignores the setting.
        app.conf.worker_disable_prefetch = False


def _on_worker_init(sender: Any, **kwargs: Any) -> None:
    prepare(sender.app)


signals.worker_init.connect(_on_worker_init)
follow_workers()
# In green pools the transport is loaded after `worker_init`.
prepare(current_app._get_current_object())
