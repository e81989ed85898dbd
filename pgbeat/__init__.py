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
    from pgbeat.transaction import in_transaction as in_transaction

__version__ = "0.1.0"

_HOME = {
    "Context": "pgbeat.launchers",
    "GenericLauncher": "pgbeat.launchers",
    "JobRequest": "pgbeat.launchers",
    "Launcher": "pgbeat.launchers",
    "PgbeatError": "pgbeat.errors",
    "Scheduler": "pgbeat.scheduler",
    "Skip": "pgbeat.launchers",
    "in_transaction": "pgbeat.transaction",
    "launcher": "pgbeat.launchers",
}

__all__ = ["__version__", *sorted(_HOME)]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'pgbeat' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__


def _register_transport() -> None:
    """Makes `pgbeat+postgresql://` known to kombu, without loading the transport."""
    from kombu.transport import TRANSPORT_ALIASES

    # kombu takes the part before the plus, but after a failover the whole scheme.
    for scheme in ("", "+postgresql", "+postgres", "+postgresql+psycopg"):
        TRANSPORT_ALIASES[f"pgbeat{scheme}"] = "pgbeat.transport:Transport"


_register_transport()
