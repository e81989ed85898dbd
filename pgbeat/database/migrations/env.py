"""Runs the numbered migrations, for Alembic, on the connection of `migrate`."""

from typing import Any

from alembic import context

from pgbeat.database.tables import SCHEMA, metadata

options: dict[str, Any] = {
    "target_metadata": metadata,
    "version_table": "migrations",
    "version_table_schema": SCHEMA,
    "include_schemas": True,
}

if context.is_offline_mode():
    # Named, not the driver's format style, which would double every % of the functions' bodies.
    context.configure(dialect_name="postgresql", dialect_opts={"paramstyle": "named"}, **options)
    with context.begin_transaction():
        context.execute(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}")
        context.run_migrations()
else:
    context.configure(connection=context.config.attributes["connection"], **options)
    context.run_migrations()
