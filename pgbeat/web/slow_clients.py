"""Closes connections whose clients are slow to send a request, to keep room for others.

uvicorn waits for the rest of a request for ever. Some thousand half-sent ones would take all file
descriptors of the process, which has no room then for other clients or for the database.
"""

import asyncio
import resource
import time
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

#: Seconds within which a request must arrive, with its body of at most 1 MB.
DEADLINE = 30.0
#: File descriptors that are left for the database, logs and sockets; the most connections.
_SPARE, _MOST = 200, 10_000
#: States in which a client has still to send something.
_INCOMPLETE = (h11.IDLE, h11.SEND_BODY)


def most_connections() -> int:
    """Returns how many connections the process may have open, by its limit of open files."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST if files == resource.RLIM_INFINITY else min(max(files - _SPARE, files // 2), _MOST)


class PunctualProtocol(H11Protocol):
    """uvicorn's HTTP, in which a request has to arrive by a deadline.

    Where there are too many connections, the one that has waited longest for its request is closed.
    """

    _timer: asyncio.TimerHandle | None = None
    #: Since when the client has owed the rest of a request, by the monotonic clock.
    _owes_since: float | None = None

    def connection_made(self, transport: Any) -> None:
        """Expects a request."""
        super().connection_made(transport)
        self._expect()
        if len(self.connections) > most_connections():
            connections: set[Any] = self.connections
            owing = [connection for connection in connections if connection._owes_since is not None]
            min(owing, key=lambda connection: connection._owes_since).transport.abort()

    def data_received(self, data: bytes) -> None:
        """Handles what has arrived, and expects the rest."""
        super().data_received(data)
        if self.conn.their_state not in _INCOMPLETE:
            self._settle()
        elif self._timer is None:
            self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        """Expects nothing more."""
        self._settle()
        super().connection_lost(exc)

    def _expect(self) -> None:
        self._owes_since = time.monotonic()
        self._timer = self.loop.call_later(DEADLINE, self._end)

    def _settle(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._owes_since = None

    def _end(self) -> None:
        if self.flow.read_paused:  # the app is slow, not the client
            self._expect()
        else:
            self.transport.abort()
