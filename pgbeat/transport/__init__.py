"""A transport for kombu and Celery on Postgres: `pgbeat+postgresql://user:password@host/database`.

A subclass of kombu's SQLAlchemy transport, on the same two tables: what the one publishes the
other consumes.
"""

from pgbeat.transport.channel import Channel
from pgbeat.transport.transport import Transport

__all__ = ["Channel", "Transport"]
