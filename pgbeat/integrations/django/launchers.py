"""Checks the ORM's connections around each launcher.

Django checks a connection's age and state when a request begins and ends, Celery when a task does.
A launcher runs in neither, on its own thread: without this, a broken connection would stay broken
for as long as the beat lives.
"""

import sys
from typing import Any

from pgbeat.beat import signals


def connect() -> None:
    """Checks the ORM's connections around each condition, wherever the process uses Django."""
    for signal in (signals.condition_started, signals.condition_finished):
        signal.connect(_close_old_connections, weak=False, dispatch_uid=__name__)


def _close_old_connections(**kwargs: Any) -> None:
    """Closes this thread's connections that are broken, or older than `CONN_MAX_AGE`."""
    django_db = sys.modules.get("django.db")
    if django_db is not None and sys.modules["django.conf"].settings.configured:
        django_db.close_old_connections()
