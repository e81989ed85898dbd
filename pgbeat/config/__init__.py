"""Settings: read from the Celery app (`pgbeat_*`) or the environment (`PGBEAT_*`), checked once."""

from pgbeat.config.app_broker import (
    broker_database,
    brokers,
    check_broker_url,
    connect_args,
    delays_in_table,
    direct_url,
    is_own_broker,
    is_sqlalchemy_broker,
    with_login,
)
from pgbeat.config.app_state import settings_of, spelling
from pgbeat.config.settings import Settings
from pgbeat.config.urls import is_postgres, place, postgres_url, redacted, same_database

__all__ = [
    "Settings",
    "broker_database",
    "brokers",
    "check_broker_url",
    "connect_args",
    "delays_in_table",
    "direct_url",
    "is_own_broker",
    "is_postgres",
    "is_sqlalchemy_broker",
    "place",
    "postgres_url",
    "redacted",
    "same_database",
    "settings_of",
    "spelling",
    "with_login",
]
