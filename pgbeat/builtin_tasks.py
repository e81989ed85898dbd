"""Celery tasks of pgbeat's own. `import pgbeat.worker` in the app gives them to its workers.

They are no jobs: nothing is written of them but what they do.
"""

import logging
import os
import socket
from functools import lru_cache
from typing import Any

from celery import shared_task
from sqlalchemy import Engine
from sqlalchemy.engine import URL

from pgbeat import db, webhook_delivery, webhook_outbox, webhook_signatures
from pgbeat.config import Settings

logger = logging.getLogger("celery.worker.pgbeat")


@lru_cache(maxsize=4)
def _engine(url: URL) -> Engine:
    """It keeps no connection: one would be held while the receiver is asked, and across forks."""
    return db.engine(url, "pgbeat webhooks", isolation_level="AUTOCOMMIT")


@shared_task(name=webhook_outbox.TASK, bind=True, ignore_result=True, acks_late=False)
def deliver(self: Any, delivery_id: str, attempts: int) -> None:
    """Makes the attempt at a webhook's delivery that comes after so many."""
    settings = Settings.load(self.app.conf)
    engine = _engine(settings.url)
    worker = str(self.request.hostname or f"{socket.gethostname()}:{os.getpid()}")
    with engine.connect() as connection:
        attempt = webhook_outbox.begin(connection, delivery_id, attempts, worker=worker)
    if attempt is None:
        return
    headers = webhook_signatures.headers(
        str(attempt.id), attempt.timestamp, attempt.body, attempt.secrets
    )
    answer = webhook_delivery.post(
        attempt.url, headers, attempt.body, private=settings.webhook_private
    )
    with engine.connect() as connection, db.transaction(connection):
        state = webhook_outbox.end(connection, attempt, answer)
    # Not the URL: many receivers have a secret in it.
    what = (attempt.webhook, attempt.event, attempt.id)
    if answer.is_delivered:
        logger.info("Webhook '%s': %s %s delivered in %.0f ms", *what, answer.ms)
    else:
        rest = "it is tried again" if state == "pending" else "it is given up"
        logger.warning(
            "Webhook '%s': %s %s failed (attempt %d), %s: %s",
            *what, attempt.number, rest, answer.error,
        )  # fmt: skip
