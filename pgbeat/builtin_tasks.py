"""Celery tasks of pgbeat's own. Workers have them wherever pgbeat is installed.

They are no jobs: nothing is written of them but what they do.
"""

import logging
import os
import socket
import time
from typing import Any

from celery import shared_task

from pgbeat import db, webhook_delivery, webhook_outbox, webhook_signatures
from pgbeat.config import Settings
from pgbeat.webhook_delivery import Answer
from pgbeat.webhook_outbox import Attempt

logger = logging.getLogger("celery.worker.pgbeat")

#: What its sessions are called in pg_stat_activity.
_NAME = "pgbeat webhooks"


#: Seconds for which a task goes on with what the same webhook has waiting, rather than leave that
#: to the next message: other tasks of the worker wait for it.
_GO_ON = 1.0


@shared_task(name=webhook_outbox.TASK, bind=True, ignore_result=True, acks_late=False)
def deliver(self: Any, delivery_id: str, attempts: int) -> None:
    """Makes the attempt at a webhook's delivery that comes after so many; and goes on with others
    that wait, for a moment."""
    settings = Settings.load(self.app.conf)
    worker = str(self.request.hostname or f"{socket.gethostname()}:{os.getpid()}")
    until = time.monotonic() + _GO_ON
    # No connection is held while the receiver is asked.
    with db.kept(settings.url, _NAME) as connection:
        attempt = webhook_outbox.begin(connection, delivery_id, attempts, worker=worker)
    while attempt is not None:
        headers = webhook_signatures.headers(
            str(attempt.id), attempt.timestamp, attempt.body, attempt.secrets
        )
        answer = webhook_delivery.post(
            attempt.url, headers, attempt.body, private=settings.webhook_private
        )
        go_on = worker if time.monotonic() < until else None
        with db.kept(settings.url, _NAME) as connection, db.transaction(connection):
            state, following = webhook_outbox.end(connection, attempt, answer, go_on=go_on)
        _log(attempt, answer, state)
        attempt = following


def _log(attempt: Attempt, answer: Answer, state: str | None) -> None:
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
