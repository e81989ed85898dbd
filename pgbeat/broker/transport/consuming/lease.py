"""Keeps a consumer alive by a lease, where a transaction-mode pooler breaks session locks."""

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import psycopg

from pgbeat.broker.transport.consuming import consumers
from pgbeat.database import connections

if TYPE_CHECKING:
    from pgbeat.broker.transport.broker import Broker

logger = logging.getLogger("pgbeat.transport")


class Lease:
    """Renews a consumer's lease from its own thread, whatever the other threads are doing.

    If a lease is not renewed in time, the consumer's session ends, since others may release its
    claims.
    """

    def __init__(
        self, broker: "Broker", consumer: int, seconds: float, end: Callable[[BaseException], None]
    ) -> None:
        self._broker, self._consumer, self._seconds, self._end = broker, consumer, seconds, end
        self._until = time.monotonic() + seconds
        self._done = threading.Event()
        threading.Thread(target=self._renew, name="pgbeat lease", daemon=True).start()

    def check(self) -> None:
        """Raises `psycopg.OperationalError` if the lease has run out."""
        if time.monotonic() >= self._until:
            raise lapsed()

    def stop(self) -> None:
        """Stops renewing."""
        self._done.set()

    def _renew(self) -> None:
        while not self._done.wait(self._seconds / 4):
            asked = time.monotonic()
            try:
                with self._broker.work() as (connection, _):
                    is_renewed = consumers.renew(connection, self._consumer, self._seconds)
            except Exception as error:
                logger.warning(
                    "Could not renew the consumer's lease: %s", connections.first_line(error)
                )
                is_renewed = time.monotonic() < self._until
            else:
                if is_renewed:
                    self._until = asked + self._seconds
            if not is_renewed:
                self._end(lapsed())
                break
        try:
            with self._broker.work() as (connection, _):
                self._broker.end_abandoned(connection)
        except Exception as error:
            logger.debug("The next connection must end the lease: %s", error)


def lapsed() -> psycopg.OperationalError:
    """Returns the error for a consumer that counts as dead."""
    return psycopg.OperationalError(
        "this consumer counts as dead, and others have released its claims: it did not renew its "
        "lease in time, or its row in pgbeat.consumers was deleted"
    )
