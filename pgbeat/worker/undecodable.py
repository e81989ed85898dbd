"""Ends the tasks whose messages a worker can't decode."""

import logging
from collections.abc import Callable, Mapping
from typing import Any

from celery import Celery
from celery.app.task import Context

logger = logging.getLogger("celery.worker.pgbeat")


def follow(consumer: Any, refuse: Callable[[Any, Exception], None]) -> None:
    """Has `refuse` record the failure of jobs whose messages a consumer can't decode.

    Celery sends no signal for these; it only logs and acknowledges them.
    """
    log_and_acknowledge = consumer.on_decode_error

    def on_decode_error(message: Any, exc: Exception) -> None:
        refuse(message, exc)
        headers = getattr(message, "headers", None) or {}
        if headers.get("id") and not headers.get("ignore_result"):
            store_failure(consumer.app, headers, exc)
        log_and_acknowledge(message, exc)

    consumer.on_decode_error = on_decode_error


def store_failure(
    app: Celery, headers: Mapping[str, Any], exc: Exception, *, stores_result: bool = True
) -> None:
    """Stores the failure of a task that does not run, and of what waits for it; logs errors.

    `headers` are those of its message, with what the body says of its canvas if that is known.
    """
    try:
        app.backend.mark_as_failure(
            headers["id"], exc, request=Context(headers), store_result=stores_result
        )
    except Exception:
        logger.exception("The failure of task %s was not stored", headers.get("id"))
