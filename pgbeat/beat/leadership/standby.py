"""Logs which beat leads, for one that stands by: at first, and whenever that changes."""

import logging
import time

from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError

from pgbeat.config import Settings
from pgbeat.database import connections
from pgbeat.monitoring import beats
from pgbeat.monitoring.beats import Beat

logger = logging.getLogger("celery.beat.pgbeat")

#: Seconds for which a beat waits for the lock before it logs that it stands by; and at least
#: between two queries for the leader.
SOON, _EVERY = 0.2, 5.0


class StandingBy:
    """Finds out which beat leads, on another connection: the standby's waits for the lock."""

    def __init__(self, settings: Settings, url: URL, name: str) -> None:
        self._settings = settings
        self._engine = connections.engine(url, name)
        self._next_report = 0.0
        #: The session that led at the last call.
        self._seen: int | None = None
        #: What is known about that beat; `None` before the first call.
        self.leader: Beat | None = None

    def report_leader(self) -> None:
        """Logs which beat leads, if that has changed since the last call."""
        now = time.monotonic()
        if now < self._next_report:
            return
        self._next_report = now + _EVERY
        try:
            with self._engine.connect() as connection:
                leader = beats.leader(connection, self._settings)
        except DBAPIError:
            logger.debug("It is not known which beat leads", exc_info=True)
            return
        if leader is None or leader.session.pid == self._seen:
            return
        self._seen, self.leader = leader.session.pid, leader
        key = self._settings.leader_key
        fields = {"leader": leader.label, "lock": key}
        if leader.is_beat:
            logger.info("Standing by: beat %s leads (lock %d)", leader.label, key, extra=fields)
        else:
            logger.warning(
                "Standing by: lock %d is held by %s, which is no beat; set pgbeat_lock_key to "
                "another number",
                key,
                leader.label,
                extra=fields,
            )

    def forget(self) -> None:
        """Makes the next call log which beat leads."""
        self._next_report, self._seen, self.leader = 0.0, None, None
