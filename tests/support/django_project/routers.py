"""Keeps the second database free of tables."""

from typing import Any


class Router:
    """Migrates the default database only."""

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool | None:
        """Returns whether an app has tables in a database."""
        return db == "default"
