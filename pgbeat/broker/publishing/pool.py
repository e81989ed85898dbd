"""Keeps an app's idle publishers, with the message templates that they have learned."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from celery import Celery

from pgbeat.broker.publishing.publisher import Publisher, publisher
from pgbeat.config import Settings, is_own_broker

#: The app's attribute for them.
_IDLE = "_pgbeat_publishers"


@contextmanager
def publishing(app: Celery, settings: Settings) -> Iterator[Publisher]:
    """Opens a publisher for the app's broker, for this block alone.

    The block must commit what the publisher writes, or raise.
    """
    with ExitStack() as stack:
        acquired: list[Any] = []

        def producer() -> Any:
            if not acquired:
                acquired.append(stack.enter_context(app.producer_or_acquire(None)))
            return acquired[0]

        # A message that a task publishes has that task as its parent, so no template fits it.
        if not is_own_broker(app.conf, settings.url) or app.current_worker_task:
            yield publisher(app, settings, producer)
            return
        # Messages name the process that they are from.
        broker = repr((os.getpid(), app.conf.broker_url, app.conf.broker_transport_options))
        idle = vars(app).setdefault(_IDLE, {}).setdefault(broker, [])
        try:
            found = idle.pop()
        except IndexError:
            found = publisher(app, settings, producer)
        yield found
        found.clear()
        idle.append(found)
