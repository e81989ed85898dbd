"""Checks the ORM's connections around each launcher, as is done around a view and a task.

Django checks the age and the state of a connection when a request begins and ends, Celery when a
task does. A launcher runs in neither, on a thread of its own, so without this a connection that was
cut stays broken for as long as the beat lives.
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
