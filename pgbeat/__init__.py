"""pgbeat: a Celery beat scheduler on Postgres.

Importing the package is cheap and opens no connection: the names below are loaded when first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pgbeat.errors import PgbeatError as PgbeatError
    from pgbeat.launchers import Context as Context
    from pgbeat.launchers import GenericLauncher as GenericLauncher
    from pgbeat.launchers import JobRequest as JobRequest
    from pgbeat.launchers import Launcher as Launcher
    from pgbeat.launchers import Skip as Skip
    from pgbeat.launchers import launcher as launcher
    from pgbeat.scheduler import Scheduler as Scheduler

__version__ = "0.1.0"

_HOME = {
    "Context": "pgbeat.launchers",
    "GenericLauncher": "pgbeat.launchers",
    "JobRequest": "pgbeat.launchers",
    "Launcher": "pgbeat.launchers",
    "PgbeatError": "pgbeat.errors",
    "Scheduler": "pgbeat.scheduler",
    "Skip": "pgbeat.launchers",
    "launcher": "pgbeat.launchers",
}

__all__ = ["__version__", *sorted(_HOME)]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'pgbeat' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
