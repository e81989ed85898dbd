"""Upgrades pgbeat's schema when `manage.py migrate` runs."""

import sys
from typing import Any

from django.core.management.base import CommandError
from django.db import connections, router

from pgbeat.access import actors
from pgbeat.access.audit import Author
from pgbeat.broker import installation
from pgbeat.config import Settings, same_database, settings_of
from pgbeat.errors import PgbeatError
from pgbeat.integrations.django import databases, test_databases


def is_ours(using: str) -> bool:
    """Returns whether pgbeat's tables are in the database of an alias, by the project's settings.

    A database that the Celery app's own settings name may be another one.
    """
    if using != databases.alias() or not router.allow_migrate(using, "pgbeat"):
        return False
    return is_readable()


def is_readable() -> bool:
    """Returns whether Django can read pgbeat's tables: by the alias. Raises `ConfigError`."""
    return same_database(settings().url, databases.url())


def settings() -> Settings:
    """Returns the settings of the project's Celery app, or else the defaults.

    Raises `ConfigError`.
    """
    app = databases.celery_app()
    if app is not None:
        return settings_of(app)
    return Settings.load({"pgbeat_url": databases.url().render_as_string(hide_password=False)})


def upgrade(using: str, verbosity: int = 1, stdout: Any = None, **kwargs: Any) -> None:
    """Brings the schema to the newest version, as `pgbeat migrate` does.

    It comes before Django's own migrations, which may already send tasks, on its own connections.
    """
    if using != databases.alias():
        return
    try:
        if not is_ours(using):
            return
        loaded = settings()
        author = Author(loaded.namespace, actors.user(origin="cli").name, "cli")
        done = installation.migrate(loaded, author, databases.celery_app())
        test_databases.release(connections[using])
    except PgbeatError as error:
        raise CommandError(f"pgbeat's schema: {error}") from error
    if verbosity >= 1 and done.before != done.after:
        was = f"from {done.before} " if done.before else ""
        print(f"Migrated pgbeat's schema {was}to {done.after}.", file=stdout or sys.stdout)
