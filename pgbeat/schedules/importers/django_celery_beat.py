"""Reads the tables of django-celery-beat, without Django."""

from typing import Any

from sqlalchemy.engine import URL

from pgbeat.schedules.importers import databases, periodic_tasks
from pgbeat.schedules.importers.periodic_tasks import KINDS

BEAT = "django-celery-beat"
_APP = "django_celery_beat"


def read(url: str | URL, schema: str | None = None) -> list[dict[str, Any]]:
    """Returns all its tasks, with their schedules. Raises `PgbeatError`."""
    with databases.connected(url) as connection:
        tasks = periodic_tasks.reflected(connection, schema, f"{_APP}_periodictask")
        schedules = {}
        for kind in KINDS:
            if f"{kind}_id" in tasks.c:  # the oldest versions have no clocked ones
                table = periodic_tasks.reflected(connection, schema, f"{_APP}_{kind}schedule")
                schedules[kind] = (table, tasks.c[f"{kind}_id"] == table.c.id)
        return periodic_tasks.rows(connection, tasks, schedules)
