"""Delivers webhooks in threads of the leading beat, so that no worker waits for receivers.

One thread claims deliveries and writes their outcomes, many in one transaction, over its own
connection. Another one makes the requests. Nothing is lost if the beat dies: an attempt without an
outcome is made again after its lease.
"""

import logging
import os
import socket
import threading
import time
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Literal
from uuid import UUID

from sqlalchemy import Connection, text

from pgbeat.config import Settings
from pgbeat.database import connections
from pgbeat.database.locks import lock_waits
from pgbeat.webhooks import outbox as webhook_outbox
from pgbeat.webhooks.outbox import DeliveryAttempt, DeliveryRoom, Origin, Outcome
from pgbeat.webhooks.sender import Sender

logger = logging.getLogger("celery.beat.pgbeat")

# Requests at once: at most, as long as a webhook may have several, and at one host. A process may
# commonly open 1,024 files, and up to 256 other connections are kept.
_REQUESTS, _SHARED, _PER_HOST = 384, 256, 64
# Seconds without work after which the connection is closed.
_IDLE = 10.0
# Seconds to wait for a lock, and before outcomes whose rows are locked are tried again.
_PATIENCE, _BUSY = 1.0, 0.5
# Seconds before the database is tried again after it failed: at first, and at most.
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 5.0

# A message to the deliverer's thread.
_Command = Literal["deliver", "pause", "close"]


class Deliverer:
    """Delivers webhooks for one beat.

    Its methods may be called in a signal's handler. None of them waits, except `close`.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._origin = Origin(settings.namespace, settings.web_url)
        self._name = f"beat {socket.gethostname()}:{os.getpid()}"
        self._engine = connections.engine(
            settings.url, f"pgbeat webhooks {socket.gethostname()}:{os.getpid()}"[:63]
        )
        self._connection: Connection | None = None
        # SimpleQueue.put is safe in a signal's handler.
        self._inbox: SimpleQueue[_Command | Outcome] = SimpleQueue()
        self._sender = Sender(self._inbox.put, private=settings.webhook_private)
        self._thread: threading.Thread | None = None
        self._under_way = 0
        self._outcomes: list[Outcome] = []
        self._delivers = self._is_closing = False
        #: When (`time.monotonic()`) to claim, to write what was locked, and to try the database.
        self._claim_at: float | None = None
        self._write_at = self._away_until = self._wait = 0.0

    def deliver(self) -> None:
        """Delivers what is due, and retries in time, until `pause` is called."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="pgbeat webhooks", daemon=True)
            self._thread.start()
        self._inbox.put("deliver")

    def pause(self) -> None:
        """Begins no more attempts: another beat may lead."""
        self._inbox.put("pause")

    def close(self, seconds: float) -> None:
        """Begins no more attempts, and waits up to so many seconds for those under way."""
        if self._thread is not None:
            self._inbox.put("close")
            self._thread.join(seconds)

    # -- the thread

    def _run(self) -> None:
        while not (self._is_closing and not self._under_way and not self._outcomes):
            self._receive()
            if time.monotonic() < self._away_until:
                continue
            try:
                self._step()
            except Exception as error:
                self._fail(error)
        self._disconnect()
        self._sender.stop()

    def _receive(self) -> None:
        """Waits until there is something to do, and takes all commands and outcomes."""
        with suppress(Empty):
            item = self._inbox.get(timeout=self._sleep())
            while True:
                if isinstance(item, Outcome):
                    self._under_way -= 1
                    self._outcomes.append(item)
                else:
                    self._obey(item)
                item = self._inbox.get_nowait()

    def _obey(self, command: _Command) -> None:
        self._delivers = command == "deliver" and not self._is_closing
        self._is_closing = self._is_closing or command == "close"
        self._claim_at = 0.0 if self._delivers else None
        if command == "close" and self._under_way:
            logger.info("Waiting for %d webhook deliveries before the end", self._under_way)

    def _sleep(self) -> float:
        now = time.monotonic()
        if now < self._away_until:
            return self._away_until - now
        times = [now + _IDLE]
        if self._claim_at is not None and self._under_way < _REQUESTS:
            times.append(self._claim_at)
        if self._outcomes:
            times.append(self._write_at)
        return max(0.0, min(times) - now)

    def _step(self) -> None:
        """Writes outcomes and begins what is due, in one transaction."""
        now = time.monotonic()
        batch = self._batch() if now >= self._write_at else []
        room = _REQUESTS - self._under_way if self._is_due(now) or (batch and self._delivers) else 0
        if not batch and not room:
            if not (self._under_way or self._outcomes):
                self._disconnect()
            return
        locked: list[UUID] = []
        begun: list[DeliveryAttempt] = []
        connection = self._connect()
        with connections.transaction(connection):
            connection.execute(_PREPARE)
            lock_waits.limit_waiting(connection, _PATIENCE)
            if batch:
                locked = list(webhook_outbox.finish(connection, batch))
            if room:
                begun = webhook_outbox.claim(
                    connection,
                    origin=self._origin,
                    worker=self._name,
                    room=DeliveryRoom(room, _SHARED - self._under_way, _PER_HOST),
                )
        self._wait = 0.0
        if room:
            # Again until none is left: `deliver` is called only when another becomes due.
            self._claim_at = 0.0 if begun else None
        if begun:
            self._under_way += len(begun)
            self._sender.send(begun)
        self._written(batch, locked)

    def _is_due(self, now: float) -> bool:
        return self._claim_at is not None and now >= self._claim_at

    def _batch(self) -> list[Outcome]:
        """Returns outcomes of different deliveries: of two for the same one, only the first."""
        batch: dict[UUID, Outcome] = {}
        for outcome in self._outcomes:
            batch.setdefault(outcome.attempt.id, outcome)
        return list(batch.values())

    def _written(self, batch: list[Outcome], locked: list[UUID]) -> None:
        left = set(locked)
        now = time.monotonic()
        for outcome in batch:
            if outcome.attempt.id in left:
                self._write_at = now + _BUSY
                continue
            self._outcomes.remove(outcome)
            _log(outcome)
            if outcome.delay is not None and self._delivers:
                again = now + outcome.delay
                self._claim_at = again if self._claim_at is None else min(self._claim_at, again)

    # -- the connection

    def _connect(self) -> Connection:
        if self._connection is None:
            connection = self._engine.connect()
            self._connection = connection.execution_options(isolation_level="AUTOCOMMIT")
        return self._connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connections.close(connection)

    def _fail(self, error: Exception) -> None:
        """Closes the connection, and waits before it tries the database again."""
        self._disconnect()
        if not self._wait:
            logger.warning(
                "Webhooks wait, trying again until the database takes them: %s",
                connections.first_line(error),
                exc_info=None if connections.is_lost(error) else error,
            )
        self._wait = min(self._wait * 2 or _FIRST_WAIT, _LONGEST_WAIT)
        self._away_until = time.monotonic() + self._wait


# If the database crashes, the last outcomes may be lost. Their events are then sent again.
_PREPARE = text("SELECT set_config('synchronous_commit', 'off', true)")


def _log(outcome: Outcome) -> None:
    attempt, reply = outcome
    # Not the URL: many receivers have a secret in it.
    kind = "Webhook" if attempt.payload is not None else "Schedule"
    what = (kind, attempt.webhook, attempt.event, attempt.id)
    if reply.is_delivered:
        logger.info("%s '%s': %s %s delivered in %.0f ms", *what, reply.ms)
    else:
        next_step = "it is tried again" if outcome.state == "pending" else "it is given up"
        logger.warning(
            "%s '%s': %s %s failed (attempt %d), %s: %s",
            *(*what, attempt.number, next_step, reply.error),
        )
