"""Sends requests over one connection to a receiver of webhooks, one after the other."""

import asyncio
import http.client
import io
import re
import select
from typing import Any, NamedTuple

# Bytes that a response's head may have, and of its body those that are read.
_HEAD, _BODY = 131_072, 65_536
_HEAD_END = re.compile(rb"\n\r?\n")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;[^\n]*)?\r?\n")


class Origin(NamedTuple):
    """Where requests go. Those for the same one may share connections."""

    is_secure: bool
    host: str
    port: int


class Connection(asyncio.Protocol):
    """A connection to a receiver, at an address that was checked."""

    def __init__(self, origin: Origin, now: float) -> None:
        #: Where it leads, when it was made and last used.
        self.origin, self.made_at, self.used_at = origin, now, now
        self._transport: Any = None
        self._buffer = bytearray()
        self._is_ended = False
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    # -- what the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remembers the transport."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Collects data, up to as much as is read of a response."""
        self._buffer += data
        if len(self._buffer) > _HEAD:
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> None:
        """Remembers that nothing more comes; the loop closes the connection."""
        self._is_ended = True
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        """Remembers why nothing more comes."""
        self._is_ended, self._error = True, error
        self._wake()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    # -- requests

    @property
    def is_clean(self) -> bool:
        """Returns whether it is open, and nothing came that no request asked for."""
        if self._is_ended or self._buffer or self._transport.is_closing():
            return False
        unread = select.poll()  # what the event loop has not seen yet
        unread.register(self._transport.get_extra_info("socket").fileno(), select.POLLIN)
        return not unread.poll(0)

    def close(self) -> None:
        """Closes it at once."""
        self._transport.abort()

    async def send(self, request: bytes) -> http.client.HTTPResponse:
        """Sends a request, and returns the head of its response. Closes itself on errors.

        Raises `RemoteDisconnected` if the connection ends before, other `HTTPException`s if what
        comes is not HTTP, and `OSError`.
        """
        try:
            self._transport.write(request)
            head = await self._head()
            while head.startswith(b"HTTP/") and head.split(None, 2)[1:2] == [b"100"]:
                head = await self._head()
            response = http.client.HTTPResponse(_Received(head), method="POST")  # type: ignore[arg-type]
            response.begin()
            return response
        except BaseException:
            self.close()
            raise

    async def _head(self) -> bytes:
        """Returns the data up to an empty line, or the beginning of what is no head."""
        seen = 0
        while True:
            end = _HEAD_END.search(self._buffer, max(0, seen - 2))
            if end is not None:
                return self._taken(end.end())
            is_other = b"\n" in self._buffer and not self._buffer.startswith(b"HTTP/")
            seen = len(self._buffer)
            if seen > _HEAD or is_other or not await self._more():
                return self._taken(len(self._buffer))

    def _taken(self, size: int) -> bytes:
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        return taken

    async def _more(self) -> bool:
        """Waits for more data. Returns whether some came; raises `OSError`."""
        seen = len(self._buffer)
        if not self._is_ended:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if len(self._buffer) > seen:
            return True
        if self._error is not None:
            raise self._error
        return False

    async def read_body(self, response: http.client.HTTPResponse) -> bool:
        """Reads the body, or its beginning. Returns whether the connection can be used again.

        Raises `OSError`.
        """
        if response.chunked:
            is_whole = await self._skip_chunks()
        else:
            length = response.length
            is_whole = await self._skip(_BODY if length is None else min(length, _BODY))
            is_whole = is_whole and length is not None and length <= _BODY
        return is_whole and not response.will_close and self.is_clean

    async def _skip(self, size: int) -> bool:
        while len(self._buffer) < size:
            if not await self._more():
                return False
        del self._buffer[:size]
        return True

    async def _skip_chunks(self) -> bool:
        left = _BODY
        while True:
            chunk = _CHUNK.match(self._buffer)
            if chunk is not None:
                size = int(chunk[1], 16)
                if size == 0:  # trailers are not expected: with some, the connection is not clean
                    return await self._skip(chunk.end() + 2)
                left -= chunk.end() + size + 2
                if left < 0 or not await self._skip(chunk.end() + size + 2):
                    return False
            elif b"\n" in self._buffer or len(self._buffer) > _BODY or not await self._more():
                return False


class _Received:
    """A head that was received, as `HTTPResponse` reads it from a socket."""

    def __init__(self, head: bytes) -> None:
        self._head = head

    def makefile(self, mode: str) -> io.BytesIO:
        """Returns a file that reads it."""
        return io.BytesIO(self._head)
