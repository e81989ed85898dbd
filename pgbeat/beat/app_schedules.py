"""Keeps the rows up to date that depend on the app's code and time zone."""

import logging
import time
from collections.abc import Callable, Mapping, Set
from typing import Any

from celery import Celery
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from pgbeat.beat import due
from pgbeat.config import Settings
from pgbeat.database import connections
from pgbeat.database.locks.lock_waits import LOCKED, Postponed, is_lock_timeout
from pgbeat.schedules import code, entries

logger = logging.getLogger("celery.beat.pgbeat")

#: Seconds after which the entries, or the zone, are applied again if rows were locked.
_AGAIN = 1.0


class AppSchedules:
    """Applies an app's entries and time zone to the database, later if rows are locked."""

    def __init__(
        self, app: Celery, settings: Settings, default_entries: Callable[[], Mapping[str, Any]]
    ) -> None:
        self._app, self._settings, self._default_entries = app, settings, default_entries
        #: When to apply each of them again (`time.monotonic()`).
        self._zone_at: float | None = None
        self._entries_at: float | None = None
        #: The other apps in the namespace that a warning has named.
        self._others: Set[str] = frozenset()
        self._postponed = Postponed()

    def resync(self) -> None:
        """Schedules the entries to be applied again at the next pass."""
        self._entries_at = time.monotonic()

    def apply(self, connection: Connection) -> None:
        """Applies the zone and the entries, and warns of other apps' schedules."""
        self._apply_zone(connection)
        self._apply_entries(connection)
        self.warn_of_others(connection)

    def step(self, connection: Connection) -> None:
        """Applies the entries or the zone again when they are due."""
        now = time.monotonic()
        if self._entries_at is not None and now >= self._entries_at:
            self._apply_entries(connection)
        if self._zone_at is not None and now >= self._zone_at:
            self._apply_zone(connection)

    def wake_in(self) -> float | None:
        """Returns the seconds until something must be applied again; `None` if nothing must."""
        times = [at for at in (self._entries_at, self._zone_at) if at is not None]
        return max(0.0, min(times) - time.monotonic()) if times else None

    def forget(self) -> None:
        """Forgets postponed work: another beat may lead next."""
        self._postponed.clear()

    def warn_of_others(self, connection: Connection) -> None:
        """Logs a warning if other apps' code has schedules in this app's namespace."""
        self._others = code.warn_of_others(connection, self._app, self._settings, self._others)

    def _apply_zone(self, connection: Connection) -> None:
        """Recomputes the times that depend on the app's zone, if the zone has changed."""
        zone = entries.zone_name(self._app)
        self._zone_at = None
        try:
            with connections.transaction(connection):
                moved = due.follow_zone(connection, zone, namespace=self._settings.namespace)
        except DBAPIError as error:
            if not is_lock_timeout(error):
                raise
            self._postponed.add("zone", "following the app's time zone", LOCKED)
            self._zone_at = time.monotonic() + _AGAIN
            return
        self._postponed.done(["zone"])
        if moved:
            logger.info(
                "The app's time zone is %s now: the next times of %d schedules are recomputed",
                zone,
                moved,
            )

    def _apply_entries(self, connection: Connection) -> None:
        self._entries_at = None
        try:
            later = code.apply(connection, self._app, self._settings, self._default_entries())
        except DBAPIError as error:
            if not is_lock_timeout(error):
                raise
            self._postponed.add("entries", "the app's entries", LOCKED)
            later = _AGAIN
        else:
            self._postponed.done(["entries"])
        if later is not None:
            self._entries_at = time.monotonic() + later
