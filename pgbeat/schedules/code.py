"""Brings the rows of an app's code up to date, and warns of other apps' rows."""

import logging
from collections.abc import Mapping, Set
from typing import Any

from celery import Celery
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from pgbeat.config import Settings
from pgbeat.database import connections
from pgbeat.schedules import entries, sync, writes
from pgbeat.schedules.sync import SyncChanges

logger = logging.getLogger("celery.beat.pgbeat")

#: Seconds after which invalid entries are tried again.
_RETRY_AFTER = 10.0


def apply(
    connection: Connection, app: Celery, settings: Settings, builtin: Mapping[str, Any]
) -> float | None:
    """Makes the app's rows match its entries (`builtin` are Celery's) and logs the changes.

    Returns the seconds after which to try again if entries are invalid, else `None`. Waits for
    locks as long as the session does.
    """
    wanted = entries.from_app(app, builtin)
    defaults = writes.defaults(settings)
    name = entries.app_name(app, settings)
    try:
        with connections.transaction(connection):
            changes = sync.apply(connection, wanted, settings.namespace, app=name, **defaults)
    except DBAPIError as error:
        if not connections.is_refused(error):
            raise
        logger.error("The app's entries are left as they were: %s", connections.first_line(error))
        return _RETRY_AFTER
    _log(changes, name)
    return None


def _log(changes: SyncChanges, app: str | None) -> None:
    for verb in ("added", "changed", "removed"):
        names = getattr(changes, verb)
        if names:
            logger.info("Schedules %s by the app's code: %s", verb, ", ".join(sorted(names)))
    for name in changes.taken:
        logger.warning(_TAKEN, name)
    for name, owner in changes.foreign.items():
        logger.warning(_FOREIGN, name, owner, owner)
    if changes.orphaned:
        reason = "no app is recorded for them" if app else "this app has no name (pgbeat_app)"
        logger.warning(_ORPHANED, reason, ", ".join(sorted(changes.orphaned)))


_TAKEN = "Schedule '%s' is in the app's code and was made elsewhere too; the row is left as it is"
_FOREIGN = (
    "Schedule '%s' is in this app's code, but the row was made by the code of app '%s' and "
    "is left as it is. If that is this app's former name, set pgbeat_app = '%s'"
)
_ORPHANED = (
    "Schedules were made by an app's code and this app's has them no more. They are kept, "
    "because %s; remove them with `pgbeat remove`: %s"
)


def warn_of_others(
    connection: Connection, app: Celery, settings: Settings, known: Set[str] = frozenset()
) -> Set[str]:
    """Logs a warning if other apps' code has schedules in this app's namespace.

    Returns the names of those apps. There is no warning if all of them are `known`.
    """
    others = sync.other_apps(connection, settings.namespace, app=entries.app_name(app, settings))
    if others.keys() - known:
        logger.warning("%s. %s", described(others, settings.namespace), ADVICE)
    return others.keys()


def described(others: Mapping[str, int], namespace: str) -> str:
    """Returns a sentence that names the other apps in a namespace."""
    listed = ", ".join(
        f"'{name}' ({count} schedule{'s' if count != 1 else ''})" for name, count in others.items()
    )
    return f"Other apps use the namespace '{namespace}' too: {listed}"


ADVICE = (
    "Only one beat leads a namespace, and it launches the schedules of all apps in it through its "
    "own app's broker, routes and code: give each app its own namespace (pgbeat_namespace)."
)
