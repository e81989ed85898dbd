"""Flower's settings. The import teaches its Broker page pgbeat's transport, and has a task's page
link to the job in pgbeat's console, which is at PGBEAT_WEB_URL."""

import pgbeat.flower  # noqa: F401

persistent = False
purge_offline_workers = 300
