"""Holds the leader's connection: it has the lock, runs transactions and hears of changes."""

import logging
import os
import time
from collections.abc import Callable
from typing import Protocol

import psycopg
from sqlalchemy import Connection, text
from sqlalchemy.engine import URL

from pgbeat.beat.leadership import standby
from pgbeat.beat.leadership.standby import StandingBy
from pgbeat.config import Settings
from pgbeat.database import channels, connections, fence, poolers, privileges
from pgbeat.database.locks import advisory_locks, lock_waits
from pgbeat.database.migrations import migrate
from pgbeat.database.server_errors import Outage
from pgbeat.database.watched import readable
from pgbeat.errors import SchemaError
from pgbeat.jobs.lanes.model import Room
from pgbeat.processes import known

logger = logging.getLogger("celery.beat.pgbeat")

#: Seconds between two looks for a newer server.
_LOOKS = 5.0


class Readable(Protocol):
    """Something that `select` can wait for."""

    def fileno(self) -> int:
        """Returns the file descriptor."""
        ...


class Leader:
    """One session of a beat, leader or standby.

    `on_lead` is called when it becomes the leader, `on_stand_by` while another leads. A beat that
    lost the lock has lost this connection, and can't commit.
    """

    def __init__(
        self,
        settings: Settings,
        interval: float,
        on_lead: Callable[[Connection], None],
        on_stand_by: Callable[[], object],
        direct_url: URL | None = None,
    ) -> None:
        self._settings, self._interval = settings, interval
        self._on_lead, self._on_stand_by = on_lead, on_stand_by
        self._name = known.session_name(os.getpid())
        #: The server's own DSN, for where a pooler answers at that of the settings.
        self._direct_url = direct_url
        self._connection: Connection | None = None
        self._lookout: fence.Lookout | None = None
        self._standing_by = StandingBy(settings, direct_url or settings.url, "pgbeat standby")
        self._leads = False
        self._outage = Outage()
        self._attempts = 0
        #: Whether a schedule has changed since this was last set to false.
        self.changed = False
        #: Lanes (namespace and name) that notifications named.
        self.lanes: set[Room] = set()

    def connect(self) -> Connection:
        """Returns the connection, in autocommit mode.

        Raises `SchemaError`, and `ConfigError` if only a transaction-mode pooler can be reached.
        """
        if self._connection is None:
            connection = poolers.connect(
                self._settings.url,
                self._name,
                direct_url=self._direct_url,
                purpose="Beat needs",
                thorough=True,
            )
            try:
                fence.require_newest(connection)
                with privileges.required():
                    migrate.check(connection, reads_schedules=True)
                    fence.require_original(connection)
                if self._outage.began is None:
                    migrate.warn_if_incomplete(connection)
                connections.prepare_session(connection, max(15.0, 4 * self._interval))
                connections.driver(connection).add_notify_handler(self._notified)
            except BaseException:
                connection.invalidate()
                connection.close()
                raise
            self._connection = connection
            self._lookout = fence.Lookout(connection.engine.url, _LOOKS)
        return self._connection

    def lead(self) -> bool:
        """Returns whether this beat leads now. A standby waits in here for most of the interval."""
        connection = self.connect()
        fence.require_not_left_behind(connection)
        if self._leads:
            return True
        wait = max(0.02, 0.8 * self._interval)
        if self._acquire(connection, wait):
            connection.execute(text("SELECT set_config('pgbeat.leader', 'on', false)"))
            connections.configure(connection, lock_waits.LIMITED)
            connection.execute(text(f"LISTEN {channels.SCHEDULES}"))
            connection.execute(text(f"LISTEN {channels.LANES}"))
            self._note_server(connection)
            self._on_lead(connection)
            self._leads = True
            before = self._standing_by.leader
            logger.info(
                "This beat leads (lock %d)%s",
                self._settings.leader_key,
                "" if before is None else f"; before it, {before.label} did",
            )
        if (lost_at := self._outage.began) is not None:
            logger.warning("The database is back after %.1f s", time.monotonic() - lost_at)
            self._outage.end()
            self._attempts = 0
        return self._leads

    def _note_server(self, connection: Connection) -> None:
        """Notes the server in the database, and says if it was promoted or restored."""
        before = fence.note(connection)
        if before is not None:
            logger.warning(
                "The server was promoted, or restored to a point in time: its timeline was %d "
                "before. If it was restored, run `pgbeat fence raise`",
                before,
            )

    def _acquire(self, connection: Connection, wait: float) -> bool:
        """Waits for the lock. A beat that has to stand by logs so soon."""
        key = self._settings.leader_key
        soon = min(wait, standby.SOON)
        if advisory_locks.acquire(connection, key, soon):
            return True
        self._standing_by.report_leader()
        self._on_stand_by()
        return advisory_locks.acquire(connection, key, wait - soon)

    @property
    def stood_by(self) -> bool:
        """Returns whether another beat led before, as far as this one knows."""
        return self._standing_by.leader is not None

    def wait(self, seconds: float, other: Readable) -> None:
        """Sleeps until a schedule is changed, or `other` is readable, or the time is up."""
        if self.changed:
            return
        raw = connections.driver(self.connect())
        sockets = [raw.fileno(), other.fileno()]
        if raw.fileno() in readable(sockets, max(0.0, seconds)):
            raw.pgconn.consume_input()
            while (notification := raw.pgconn.notifies()) is not None:
                self._note(notification.relname.decode(), notification.extra.decode())

    def disconnect(self, error: BaseException) -> None:
        """Gives up the connection because of an error, which it logs once."""
        is_first, why = self._outage.began is None, connections.first_line(error)
        if isinstance(error, SchemaError):  # a server may come back as another's copy, say
            if self._outage.is_news(str(error), at_once=True):
                logger.error("The database can't be used, trying again: %s", error)
        elif self._outage.is_news(why):
            if not is_first:
                logger.error("The database is still away, trying again: %s", why)
            elif connections.is_lost(error):
                logger.error("Lost the database, trying again until it is back: %s", why)
            else:
                logger.exception("The database refuses, trying again: %s", why)
        if self._leads:
            logger.warning("This beat no longer leads: its session has ended")
        self._standing_by.forget()
        self.drop()

    def back_off(self) -> None:
        """Sleeps for longer with each attempt."""
        self._attempts += 1
        time.sleep(min(0.05 * 2**self._attempts, 5.0, self._interval))

    def drop(self) -> None:
        """Closes the connection at once, whatever it is doing.

        The server rolls back and frees the lock.
        """
        connection, self._connection, self._leads = self._connection, None, False
        if connection is not None:
            connections.close(connection)
        if self._lookout is not None:
            self._lookout.stop()
            self._lookout = None

    def _notified(self, notification: psycopg.Notify) -> None:
        self._note(notification.channel, notification.payload)

    def _note(self, channel: str, payload: str) -> None:
        self.changed = True
        if channel == channels.LANES:
            namespace, _, name = payload.partition("/")
            self.lanes.add(Room(namespace, name))
