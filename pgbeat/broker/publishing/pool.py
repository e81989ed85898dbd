"""Publishers that are kept, each with what it has learnt about the app's messages."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from celery import Celery

from pgbeat.broker.publishing.publisher import Publisher, publisher
from pgbeat.config import Settings, is_own_broker

#: Where an app has the publishers that nobody uses just now: each knows how its messages look.
_IDLE = "_pgbeat_publishers"


@contextmanager
def publishing(app: Celery, settings: Settings) -> Iterator[Publisher]:
    """Opens a publisher for the app's broker, which only the block uses.

    What it writes must be committed at the end of the block, or the block must raise.
    """
    with ExitStack() as stack:
        acquired: list[Any] = []

        def producer() -> Any:
            if not acquired:
                acquired.append(stack.enter_context(app.producer_or_acquire(None)))
            return acquired[0]

        # What a task publishes is its child, and so unlike what another does.
        if not is_own_broker(app.conf, settings.url) or app.current_worker_task:
            yield publisher(app, settings, producer)
            return
        # Messages say which process they are from.
        broker = repr((os.getpid(), app.conf.broker_url, app.conf.broker_transport_options))
        idle = vars(app).setdefault(_IDLE, {}).setdefault(broker, [])
        try:
            found = idle.pop()
        except IndexError:
            found = publisher(app, settings, producer)
        yield found
        found.clear()
        idle.append(found)
