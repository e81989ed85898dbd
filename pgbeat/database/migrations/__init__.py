"""The schema: its migrations, their environment for Alembic, and what it consists of."""
