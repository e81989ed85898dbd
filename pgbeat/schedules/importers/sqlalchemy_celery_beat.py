"""sqlalchemy-celery-beat: its tables, read without its models."""

from typing import Any

from sqlalchemy import inspect
from sqlalchemy.engine import URL

from pgbeat.schedules.importers import periodic_tasks
from pgbeat.schedules.importers.periodic_tasks import KINDS

BEAT = "sqlalchemy-celery-beat"
#: The schema that its models name; its scheduler puts `beat_schema`, or none, in its place.
SCHEMA = "celery_schema"


def read(url: str | URL, schema: str | None = None) -> list[dict[str, Any]]:
    """All its tasks, with their schedules: of `schema`, else of the database's default one, or
    of the one that the models name. Raises `PgbeatError`."""
    with periodic_tasks.connected(url) as connection:
        if schema is None:
            inspector = inspect(connection)
            is_here = inspector.has_table("celery_periodictask")
            if not is_here and SCHEMA in inspector.get_schema_names():
                schema = SCHEMA
        tasks = periodic_tasks.reflected(connection, schema, "celery_periodictask")
        schedules = {}
        for kind in KINDS:
            table = periodic_tasks.reflected(connection, schema, f"celery_{kind}schedule")
            is_its = (tasks.c.schedule_id == table.c.id) & (
                tasks.c.discriminator == f"{kind}schedule"
            )
            schedules[kind] = (table, is_its)
        found = periodic_tasks.rows(connection, tasks, schedules)
    for row in found:
        # A task that never ran is waited for from each start of its beat on, not from here on.
        del row["date_changed"]
    return found
