"""Celery tasks of pgbeat's own. Workers have them wherever pgbeat is installed."""

import logging

from celery import shared_task

logger = logging.getLogger("celery.worker.pgbeat")


@shared_task(name="pgbeat.deliver", ignore_result=True, acks_late=False)
def deliver(delivery_id: str, attempts: int) -> None:
    """Does nothing: the leading beat delivers webhooks itself.

    Beats of earlier versions sent this task to the workers; their messages must not fail on newer
    ones. The delivery is made when the lease that came with the message has run out.
    """
    logger.info("Delivery %s is left to the leading beat", delivery_id)
