"""Flower's settings. pgbeat equips `celery flower` by itself."""

persistent = False
purge_offline_workers = 300
