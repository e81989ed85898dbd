"""Alembic's environment and the migrations of the schema."""
