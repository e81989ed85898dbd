"""Closes connections whose clients are slow to send or to read, to keep room for others.

uvicorn waits for the rest of a request, and for the client to read its answer, for ever. Some
thousand such connections would take all file descriptors of the process, which has no room then for
other clients or for the database.
"""

import asyncio
import resource
import time
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

#: Seconds within which a request must arrive, with its body of at most 1 MB, and within which a
#: client must take some of its answer.
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
    """uvicorn's HTTP, in which a request has to arrive, and its answer to be read, by a deadline.

    Where there are too many connections, the one whose client is slow for longest is closed.
    """

    _timer: asyncio.TimerHandle | None = None
    #: Since when the client has owed the rest of a request, by the monotonic clock.
    _owes_since: float | None = None
    _write_timer: asyncio.TimerHandle | None = None
    #: Since when the client was last seen to take something of its answer, and what was left then.
    _took_at: float | None = None
    _left = 0

    def connection_made(self, transport: Any) -> None:
        """Expects a request."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)  # tells of whatever the client doesn't take
        self._expect()
        if len(self.connections) > most_connections():
            connections: set[Any] = self.connections
            slow = [connection for connection in connections if connection.slow_since is not None]
            min(slow, key=lambda connection: connection.slow_since).transport.abort()

    @property
    def slow_since(self) -> float | None:
        """Since when the client has kept the server waiting; `None` if it doesn't."""
        times = [at for at in (self._owes_since, self._took_at) if at is not None]
        return min(times, default=None)

    def data_received(self, data: bytes) -> None:
        """Handles what has arrived, and expects the rest."""
        super().data_received(data)
        if self.conn.their_state not in _INCOMPLETE:
            self._settle()
        elif self._timer is None:
            self._expect()

    def pause_writing(self) -> None:
        """Expects that the client takes what is left."""
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        """Notes that the client has taken everything."""
        super().resume_writing()
        self._settle_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Expects nothing more."""
        self._settle()
        self._settle_writing()
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

    def _watch(self) -> None:
        self._left, self._took_at = self.transport.get_write_buffer_size(), time.monotonic()
        self._write_timer = self.loop.call_later(DEADLINE, self._look)

    def _settle_writing(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
        self._write_timer = self._took_at = None

    def _look(self) -> None:
        # Also of a connection that is closed once all is sent: `close` waits for that.
        if self.transport.get_write_buffer_size() < self._left:
            self._watch()
        else:
            self.transport.abort()
