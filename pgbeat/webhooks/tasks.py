"""Registers a Celery task that earlier versions of pgbeat sent to workers."""

import logging

from celery import shared_task

logger = logging.getLogger("celery.worker.pgbeat")


@shared_task(name="pgbeat.deliver", ignore_result=True, acks_late=False)
def deliver(delivery_id: str, attempts: int) -> None:
    """Does nothing: the leading beat delivers webhooks itself.

    A beat of an earlier version may have sent a message for this task, which must not fail. The
    delivery is attempted when the lease that came with the message has ended.
    """
    logger.info("Delivery %s is left to the leading beat", delivery_id)
