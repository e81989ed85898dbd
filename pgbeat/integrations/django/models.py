"""Has no models, but Django sends `pre_migrate` only to apps with this module.

pgbeat's tables are its own: Alembic's migrations make them (`pgbeat.database.migrate`).
"""
