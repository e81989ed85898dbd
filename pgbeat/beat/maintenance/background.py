"""Runs periodic work in a thread, on a separate connection."""

import logging
import threading
import time
from collections.abc import Callable

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from pgbeat.config import Settings
from pgbeat.database import connections
from pgbeat.database.kept import kept
from pgbeat.database.locks import lock_waits
from pgbeat.database.server_errors import Outage

logger = logging.getLogger("celery.beat.pgbeat")

#: Seconds until a round after one that locks held up.
_AGAIN = 5.0


class Background:
    """Runs rounds of maintenance for which the leader's connection must not wait."""

    def __init__(
        self,
        settings: Settings,
        what: str,
        do: Callable[[Connection], object],
        *,
        first: float,
        every: float,
    ) -> None:
        """`do` gets a connection in autocommit mode; `first` and `every` are seconds."""
        self._settings, self._what, self._do, self._every = settings, what, do, every
        self._thread: threading.Thread | None = None
        self._outage = Outage()
        self._next_at = time.monotonic() + first

    def step(self, now: float) -> None:
        """Begins a round if it is time to (`time.monotonic()`); returns at once."""
        if now < self._next_at or (self._thread is not None and self._thread.is_alive()):
            return
        self._next_at = now + self._every
        self._thread = threading.Thread(
            target=self._round, name=f"pgbeat {self._what}", daemon=True
        )
        self._thread.start()

    def _round(self) -> None:
        try:
            with kept(self._settings.url, "pgbeat upkeep") as connection:
                connections.configure(connection, connections.UNLIMITED)
                self._do(connection)
        except DBAPIError as error:
            why = connections.first_line(error)
            if not lock_waits.is_lock_timeout(error):
                if self._outage.is_news(why, at_once=True):
                    logger.warning("%s failed: %s", self._what, why)
                return
            self._next_at = time.monotonic() + _AGAIN
            logger.debug("Postponed %s: %s", self._what, why)
        else:
            self._outage.end()

    def close(self, seconds: float) -> None:
        """Waits up to so many seconds for a round that is under way."""
        if self._thread is not None:
            self._thread.join(seconds)
