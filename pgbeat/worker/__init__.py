"""What runs in Celery workers: signals, the recorder, the heartbeat, what a task may call."""

from pgbeat.worker.signals import require_broker, set_up

__all__ = ["require_broker", "set_up"]
