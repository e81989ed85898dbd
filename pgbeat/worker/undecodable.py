"""Ends the tasks whose messages a worker can't decode."""

import logging
from collections.abc import Callable
from typing import Any

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
            try:
                request = Context(headers)
                consumer.app.backend.mark_as_failure(headers["id"], exc, request=request)
            except Exception:
                logger.exception("The failure of task %s was not stored", headers["id"])
        log_and_acknowledge(message, exc)

    consumer.on_decode_error = on_decode_error
