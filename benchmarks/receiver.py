"""Receives webhooks, as cheaply as Python can: `python -m receiver COUNT SECONDS HANGING`.

Listens on COUNT ports of loopback, and prints them. Each request is answered after SECONDS; the
last HANGING ports never answer. Connections are kept open.
"""

import asyncio
import re
import sys

_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_ANSWER = b"HTTP/1.1 204 No Content\r\nServer: bench\r\n\r\n"


class _Receiver(asyncio.Protocol):
    def __init__(self, seconds: float | None) -> None:
        self._seconds, self._buffer = seconds, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        end = self._buffer.find(b"\r\n\r\n")
        length = _LENGTH.search(self._buffer)
        if end < 0 or length is None or len(self._buffer) < end + 4 + int(length[1]):
            return
        self._buffer = b""
        if self._seconds is not None:
            asyncio.get_running_loop().call_later(self._seconds, self._answer)

    def _answer(self) -> None:
        if not self._transport.is_closing():
            self._transport.write(_ANSWER)


async def main(count: int, seconds: float, hanging: int) -> None:
    """Listens until it is killed."""
    loop = asyncio.get_running_loop()
    for number in range(count):
        delay = seconds if number < count - hanging else None
        server = await loop.create_server(
            lambda delay=delay: _Receiver(delay),  # type: ignore[misc]
            "127.0.0.1",
            0,
            backlog=1000,
        )
        print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])))
