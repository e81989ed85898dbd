"""What runs in Celery workers: signals, the recorder, the heartbeat, what a task may call."""
