"""Adds pgbeat's metrics to a team's own, in any of its processes."""

from typing import TYPE_CHECKING

from pgbeat.broker import own_tables
from pgbeat.config import Settings

if TYPE_CHECKING:
    from celery import Celery
    from prometheus_client.registry import Collector


def metrics_collector(app: "Celery") -> "Collector":
    """Returns a collector of pgbeat's metrics, for a registry of prometheus_client.

    Each scrape reads them from the database, on a new connection. Raises `ConfigError` for wrong
    settings, and `ImportError` without the extra `pgbeat[metrics]`.
    """
    from pgbeat.monitoring.metrics.prometheus import DatabaseCollector

    settings = Settings.load(app.conf)
    return DatabaseCollector(settings, own_tables.are_expected(settings.url, app.conf))
