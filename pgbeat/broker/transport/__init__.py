"""A transport for kombu and Celery on Postgres: `pgbeat+postgresql://user:password@host/database`.

A subclass of kombu's SQLAlchemy transport, on the same two tables: what the one publishes the
other consumes.
"""

import sys

from pgbeat.broker.transport.channel import Channel
from pgbeat.broker.transport.transport import Transport

if "celery.worker" in sys.modules:  # in a worker, not in everything that publishes
    from pgbeat.broker.transport import celery_worker as celery_worker

__all__ = ["Channel", "Transport"]
