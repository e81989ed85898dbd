"""Returns an app's settings, and their names there."""

from typing import Any

from pgbeat.config.app_state import current_state
from pgbeat.config.settings import Settings


def settings_of(app: Any) -> Settings:
    """Returns the Celery app's settings, read again once its `conf` changes.

    Raises `ConfigError`.
    """
    return current_state(app).settings


def spelling(app: Any, setting: str) -> str:
    """Returns a setting's name among the Celery app's settings; `app` may be `None`."""
    namespace = getattr(app, "namespace", None)
    return f"{namespace}_pgbeat_{setting}".upper() if namespace else f"pgbeat_{setting}"
