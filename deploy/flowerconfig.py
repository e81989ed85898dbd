"""Flower's settings.

The import lets its Broker page read pgbeat's transport, and its page of a task link to the job in
pgbeat's console, which is at PGBEAT_WEB_URL.
"""

import pgbeat.flower  # noqa: F401

persistent = False
purge_offline_workers = 300
