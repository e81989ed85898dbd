"""A transport for kombu and Celery on Postgres: `pgbeat+postgresql://user:password@host/database`.

It uses the same two tables as kombu's SQLAlchemy transport, so that each can consume what the other
publishes.
"""

import sys

from pgbeat.broker.transport.channel import Channel
from pgbeat.broker.transport.transport import Transport

if "celery.worker" in sys.modules:  # in a worker, not in everything that publishes
    from pgbeat.broker.transport import celery_worker as celery_worker

__all__ = ["Channel", "Transport"]
