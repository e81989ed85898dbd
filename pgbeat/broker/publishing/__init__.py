"""Publishing: turns messages that Celery makes into rows of an open transaction."""
