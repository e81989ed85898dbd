"""Keeps an app's idle publishers, with the message templates that they have learned."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from celery import Celery

from pgbeat.broker.publishing.publisher import HeldPublishes, Publisher, publisher
from pgbeat.broker.transport.outbox import OutboxConnection
from pgbeat.config import Settings, is_own_broker
from pgbeat.config.app_state import state_of


@contextmanager
def publishing(app: Celery, settings: Settings, *, sends: bool = True) -> Iterator[Publisher]:
    """Opens a publisher for the app's broker, for this block alone.

    The block must commit what the publisher writes, or raise. Unless it `sends`, messages for an
    external broker are made, and dropped.
    """
    with ExitStack() as stack:
        acquired: list[Any] = []

        def producer() -> Any:
            if not sends:
                return app.amqp.Producer(OutboxConnection(HeldPublishes()), auto_declare=False)
            if not acquired:
                acquired.append(stack.enter_context(app.producer_or_acquire(None)))
            return acquired[0]

        idle = _idle(app, settings)
        # A message that a task publishes has that task as its parent, so no template fits it.
        if idle is None or app.current_worker_task:
            yield publisher(app, settings, producer)
            return
        try:
            pooled = idle.pop()
        except IndexError:
            pooled = publisher(app, settings, producer)
        yield pooled
        pooled.clear()
        idle.append(pooled)


def _idle(app: Celery, settings: Settings) -> list[Publisher] | None:
    """Returns the app's idle publishers; `None` if its broker is not in that database."""
    publishers = state_of(app).part(_Publishers)
    if publishers.last is None or publishers.last[0] is not settings:
        publishers.last = settings, is_own_broker(app.conf, settings.url)
    return publishers.idle if publishers.last[1] else None


class _Publishers:
    """An app's idle publishers, with the message templates that they have learned."""

    def __init__(self) -> None:
        self.idle: list[Publisher] = []
        #: The settings that were given last, and whether the app's broker is in their database.
        self.last: tuple[Settings, bool] | None = None
