"""Finds mistakes in a project's settings: `manage.py check`."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any

from celery import Celery
from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning
from django.db import connections
from sqlalchemy.exc import DBAPIError

from pgbeat.config import Settings, brokers, delays_in_table, is_own_broker, place, spelling
from pgbeat.database import connections as sessions
from pgbeat.database.migrations import contents, migrate
from pgbeat.errors import ConfigError, SchemaError
from pgbeat.integrations.django import databases, schema
from pgbeat.suggest import nearest

#: How similar a name must be to count as a setting of pgbeat's.
_ALIKE = 0.8


def check_settings(**kwargs: Any) -> list[CheckMessage]:
    """Checks the project's Celery app against its database."""
    app = databases.celery_app()
    if app is None:
        return [
            Error(
                "The project has no Celery app.",
                hint="Make one in celery.py next to the settings, and import it in the package's "
                "__init__.py, so that it exists whenever Django runs.",
                id="pgbeat.E001",
            )
        ]
    try:
        url = databases.url()
        loaded = schema.settings()
        is_joined = is_own_broker(app.conf, url) and delays_in_table(app.conf)
    except ConfigError as error:
        return [Error(f"pgbeat can't be used: {error}", id="pgbeat.E002")]
    driver = connections[databases.alias()].Database.__name__
    if driver != "psycopg":
        return [
            Error(
                f"The database's driver is {driver}, and pgbeat needs psycopg 3 to publish in its "
                "transactions.",
                id="pgbeat.E003",
            )
        ]
    return list(_warnings(app, is_joined=is_joined, where=place(loaded.url)))


def _warnings(app: Celery, *, is_joined: bool, where: str) -> Iterator[CheckMessage]:
    if not is_joined:
        scheme = next(iter(brokers(app.conf)), "none").partition(":")[0]
        yield Warning(
            f"The broker ({scheme}) is not pgbeat's in DATABASES[{databases.alias()!r}]: tasks "
            "sent inside transaction.atomic() are published before it commits.",
            hint="Remove CELERY_BROKER_URL, or use delay_on_commit().",
            id="pgbeat.W001",
        )
    if not schema.is_ours(databases.alias()):
        yield Warning(
            f"pgbeat's tables are in another database, {where}: manage.py migrate doesn't upgrade "
            "them.",
            hint="Run `manage.py pgbeat migrate` besides.",
            id="pgbeat.W002",
        )
    yield from _misspelt(app)
    if app.conf.task_always_eager:
        yield Warning(
            "task_always_eager is set: tasks run where they are sent, and no message is published.",
            id="pgbeat.W003",
        )


def _misspelt(app: Celery) -> Iterator[CheckMessage]:
    """Yields a warning for each setting of pgbeat's that lacks the namespace of Celery's."""
    known = {field.name for field in fields(Settings)}
    for name in dir(settings):
        if not name.startswith("PGBEAT_") or name == "PGBEAT_DATABASE":  # which is Django's
            continue
        if near := nearest(name.removeprefix("PGBEAT_"), known, cutoff=_ALIKE):
            right = spelling(app, near)
            hint = f"It is called {right}."
            if right.islower():
                hint = f"The Celery app reads no setting of pgbeat's here: set app.conf.{right}."
            yield Warning(f"{name} has no effect.", hint=hint, id="pgbeat.W006")


def check_schema(databases: Sequence[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """Checks that this program can use the schema: `manage.py check --database default`."""
    if sys.argv[1:2] == ["migrate"]:  # it checks first, and then does what would be asked for
        return []
    try:
        if not any(schema.is_ours(using) for using in databases or ()):
            return []
        with sessions.engine(schema.settings().url, "pgbeat check").connect() as connection:
            installed = migrate.check(connection, reads_schedules=True)
            lacking = migrate.missing(connection, installed.version)
        if lacking:
            raise SchemaError(f"pgbeat's schema lacks {contents.listed(lacking)}")
    except ConfigError:
        return []  # `check_settings` tells it
    except (SchemaError, DBAPIError) as error:
        problem = sessions.first_line(error)
        # A warning, since `migrate` runs no further after an error.
        return [Warning(f"{problem}.", hint="`manage.py migrate` upgrades it.", id="pgbeat.W004")]
    return []
