"""Flower's settings. The import teaches its Broker page pgbeat's transport."""

import pgbeat.flower  # noqa: F401

persistent = False
purge_offline_workers = 300
