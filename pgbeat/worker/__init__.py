"""What runs in Celery workers: signals, the recorder, the heartbeat, what a task may call."""

from pgbeat.worker.signals import set_up
from pgbeat.worker.start_checks import require_broker

__all__ = ["require_broker", "set_up"]
