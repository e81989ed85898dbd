"""Keeps an app's idle publishers, with the message templates that they have learned."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from celery import Celery

from pgbeat.broker.publishing.publisher import Publisher, publisher
from pgbeat.config import Settings, is_own_broker

#: The app's attributes for them, by broker, and for those used last.
_IDLE, _LAST = "_pgbeat_publishers", "_pgbeat_last_publishers"


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

        idle = _idle(app, settings)
        # A message that a task publishes has that task as its parent, so no template fits it.
        if idle is None or app.current_worker_task:
            yield publisher(app, settings, producer)
            return
        try:
            found = idle.pop()
        except IndexError:
            found = publisher(app, settings, producer)
        yield found
        found.clear()
        idle.append(found)


def _idle(app: Celery, settings: Settings) -> list[Any] | None:
    """Returns the app's idle publishers; `None` if its broker is not in that database.

    What the settings were read from says so, too: they are others after it changed.
    """
    own = vars(app)
    # Messages name the process that they are from.
    idle: list[Any] | None
    found, process, idle = own.get(_LAST, (None, 0, None))
    if found is not settings or process != os.getpid():
        process, idle = os.getpid(), None
        if is_own_broker(app.conf, settings.url):
            broker = repr((process, app.conf.broker_url, app.conf.broker_transport_options))
            idle = own.setdefault(_IDLE, {}).setdefault(broker, [])
        own[_LAST] = settings, process, idle
    return idle
