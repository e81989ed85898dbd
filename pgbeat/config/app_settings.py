"""Returns an app's settings, and what they are called there."""

from typing import Any

from pgbeat.config.app_state import current_state
from pgbeat.config.settings import Settings


def settings_of(app: Any) -> Settings:
    """Returns what `Settings.load` makes of the Celery app's `conf`, read again once that changes.

    Raises `ConfigError`.
    """
    return current_state(app).settings


def spelling(app: Any, setting: str) -> str:
    """Returns what a setting is called where the Celery app's are written; `None` is no app."""
    namespace = getattr(app, "namespace", None)
    return f"{namespace}_pgbeat_{setting}".upper() if namespace else f"pgbeat_{setting}"
