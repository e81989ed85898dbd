"""Puts messages back whose tasks another worker may know, as while a new version is rolled out.

Celery would store a failure at once. If that must be, it is the failure of the task's chain and
chord, too, and of its errbacks: Celery describes the task without them, so that they would hang.
"""

import logging
import math
import time
from collections.abc import Callable
from typing import Any

from celery import Celery, bootsteps
from celery.exceptions import NotRegistered
from celery.utils.functional import LRUCache
from sqlalchemy.exc import SQLAlchemyError

from pgbeat.broker import queues
from pgbeat.broker.transport.channel import Channel
from pgbeat.config import settings_of
from pgbeat.database import connections
from pgbeat.jobs.running import workers
from pgbeat.storable import is_storable
from pgbeat.worker import undecodable

logger = logging.getLogger("celery.worker.pgbeat")

#: Seconds until such a message is delivered again, and for which an answer of the database holds.
_PAUSE, _HOLDS = 1.0, 1.0
#: Seconds between two warnings of the same task, and the most tasks of which this is remembered.
_SILENCE, _MOST = 60.0, 1000


class UnknownTasks(bootsteps.Step):
    """Gives the consumer of a worker on pgbeat's transport its `on_unknown_task`."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def create(self, c: Any) -> None:
        """Replaces the function that fails tasks."""
        c.on_unknown_task = _PutBack(c.app, c.on_unknown_task)


class _PutBack:
    """A consumer's `on_unknown_task`."""

    def __init__(self, app: Celery, fail: Callable[..., Any]) -> None:
        self._app, self._fail = app, fail
        self._started = time.monotonic()
        #: By task, exchange and routing key, what `_asked` returned, and until when it holds.
        self._known = LRUCache(limit=_MOST)
        #: When a task was logged last. All times are of the monotonic clock.
        self._said = LRUCache(limit=_MOST)

    def __call__(self, body: Any, message: Any, exc: Exception) -> None:
        """Puts the message back, or fails its task."""
        name, channel = str((message.headers or {}).get("task")), message.channel
        may_be_known = isinstance(channel, Channel) and is_storable(name)
        reason = self._reason(name, message) if may_be_known else None
        if reason is None:
            self._fail_canvas(message)
            try:
                self._fail(body, message, exc)
            except Exception:  # its id can't be stored; it is a dead letter by now
                logger.exception("The failure of task %r was not stored", name)
            return
        now = time.monotonic()
        if self._said.get(name, now - _SILENCE) <= now - _SILENCE:
            self._said[name] = now
            logger.warning("Task %r is not registered here; it goes back: %s", name, reason)
        channel.put_back(message.delivery_tag, _PAUSE)

    def _fail_canvas(self, message: Any) -> None:
        """Stores the failure of a task, and of what waits for it."""
        headers = message.headers or {}
        try:
            headers = {**headers, **message.payload[2]}
        except Exception as error:
            logger.warning("What waits for task %s is not known: %s", headers.get("id"), error)
        undecodable.store_failure(
            self._app,
            headers,
            NotRegistered(headers.get("task")),
            stores_result=not headers.get("ignore_result"),
        )

    def _reason(self, name: str, message: Any) -> str | None:
        """Returns why another worker may know the task, or may come that does."""
        now, info = time.monotonic(), message.delivery_info
        key = name, info.get("exchange"), info.get("routing_key")
        reason: str | None
        until, reason = self._known.get(key, (now, None))
        if until <= now:
            queue = message.channel.broker.ask(queues.of_message, message.delivery_tag)
            reason = self._asked(name, queue)
            self._known[key] = time.monotonic() + _HOLDS, reason
        return reason

    def _asked(self, name: str, queue: str | None) -> str | None:
        settings = settings_of(self._app)
        try:
            with connections.engine(settings.url, "pgbeat worker").connect() as connection:
                worker = workers.may_know_task(
                    connection, settings.namespace, name, queue, window=settings.deploy_window
                )
        except SQLAlchemyError as error:
            return f"the database can't say who knows it ({connections.first_line(error)})"
        if worker is not None and worker.knows:
            return f"worker {worker.name} may have registered it"
        # This worker itself may not be registered yet.
        age = min(time.monotonic() - self._started, worker.age if worker else math.inf)
        if age < settings.deploy_window:
            return f"a worker started {age:.0f} s ago, so others may follow (pgbeat_deploy_window)"
        return None
