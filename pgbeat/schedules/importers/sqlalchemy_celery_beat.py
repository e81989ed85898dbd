"""Reads the tables of sqlalchemy-celery-beat, without its models."""

from typing import Any

from sqlalchemy import inspect
from sqlalchemy.engine import URL

from pgbeat.schedules.importers import databases, periodic_tasks
from pgbeat.schedules.importers.periodic_tasks import KINDS

BEAT = "sqlalchemy-celery-beat"
#: The schema in its models, which its scheduler replaces by `beat_schema`, or by none.
SCHEMA = "celery_schema"


def read(url: str | URL, schema: str | None = None) -> list[dict[str, Any]]:
    """Returns all its tasks, with their schedules. Raises `PgbeatError`.

    Without `schema`, it looks in the database's default schema, then in that of the models.
    """
    with databases.connected(url) as connection:
        if schema is None:
            inspector = inspect(connection)
            is_here = inspector.has_table("celery_periodictask")
            if not is_here and SCHEMA in inspector.get_schema_names():
                schema = SCHEMA
        tasks = periodic_tasks.reflected(connection, schema, "celery_periodictask")
        schedules = {}
        for kind in KINDS:
            table = periodic_tasks.reflected(connection, schema, f"celery_{kind}schedule")
            is_kind = tasks.c.discriminator == f"{kind}schedule"
            schedules[kind] = (table, is_kind & (tasks.c.schedule_id == table.c.id))
        rows = periodic_tasks.rows(connection, tasks, schedules)
    for row in rows:
        # A task that never ran counts from each start of its beat, not from this time.
        del row["date_changed"]
    return rows
