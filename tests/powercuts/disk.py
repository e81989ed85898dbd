"""A disk with a cache that loses its content when the power is cut.

It serves an image by the NBD protocol (doc/proto.md of NetworkBlockDevice/nbd), to one client at a
time. A write stays in memory until the client flushes, or writes with FUA; only then it is in the
image. The client's death alone loses nothing: `cut` does.
"""

import os
import random
import socket
import struct
import threading
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

#: Bytes of a block: it is lost or kept as a whole.
BLOCK = 4096

# The handshake.
_HELLO = struct.pack(">8s8sH", b"NBDMAGIC", b"IHAVEOPT", 1 << 0 | 1 << 1)  # no zeroes at its end
_OPTION = struct.Struct(">8sII")
_ANSWER = struct.Struct(">QIII")
_ANSWER_MAGIC, _UNSUPPORTED, _EXPORT_NAME = 0x3E889045565A9, 1 << 31 | 1, 1
#: What the export can: flush, and write with FUA.
_FEATURES = 1 << 0 | 1 << 2 | 1 << 3
# The transmission.
_REQUEST = struct.Struct(">IHHQQI")
_REPLY = struct.Struct(">IIQ")
_REPLY_MAGIC, _INVALID = 0x67446698, 22
_READ, _WRITE, _DISCONNECT, _FLUSH = range(4)
_FUA = 1


class Disk:
    """A disk that serves its image at a Unix socket. Clients use whole blocks."""

    def __init__(self, image: Path, path: Path) -> None:
        self._image = os.open(image, os.O_RDWR)
        self._size = image.stat().st_size
        self._cache: dict[int, bytes] = {}
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()

    def close(self) -> None:
        """Ends it, after its client."""
        self._client.join()
        self._listener.close()
        os.close(self._image)

    def plug_in(self) -> None:
        """Serves the next client."""
        self._client = threading.Thread(target=self._serve, daemon=True)
        self._client.start()

    def cut(self, kept: float, chance: random.Random) -> tuple[int, int]:
        """Cuts the power of a client that was killed; returns how many blocks were lost, and kept.

        A real disk writes its cache in any order: each block is kept with the probability `kept`.
        """
        self._client.join()
        survivors = [block for block in self._cache if chance.random() < kept]
        lost = len(self._cache) - len(survivors)
        self._keep(survivors)
        self._cache.clear()
        return lost, len(survivors)

    def _keep(self, blocks: list[int]) -> None:
        for block in blocks:
            os.pwrite(self._image, self._cache.pop(block), block * BLOCK)

    def _serve(self) -> None:
        client, _ = self._listener.accept()
        # A dead client ends the thread in the midst of a request.
        with client, client.makefile("rb") as stream, suppress(ConnectionError, struct.error):
            self._shake_hands(client, stream)
            while self._answer(client, stream):
                pass

    def _shake_hands(self, client: socket.socket, stream: BinaryIO) -> None:
        client.sendall(_HELLO)
        stream.read(4)  # the client's flags
        while True:
            _, option, length = _OPTION.unpack(stream.read(_OPTION.size))
            stream.read(length)
            if option == _EXPORT_NAME:
                client.sendall(struct.pack(">QH", self._size, _FEATURES))
                return
            client.sendall(_ANSWER.pack(_ANSWER_MAGIC, option, _UNSUPPORTED, 0))

    def _answer(self, client: socket.socket, stream: BinaryIO) -> bool:
        _, flags, command, handle, offset, length = _REQUEST.unpack(stream.read(_REQUEST.size))
        error, answer = 0, b""
        blocks = range(offset // BLOCK, (offset + length) // BLOCK)
        if command == _DISCONNECT:
            return False
        if offset % BLOCK or length % BLOCK:
            error = _INVALID
        elif command == _READ:
            answer = self._read(blocks)
        elif command == _WRITE:
            self._write(blocks, stream.read(length))
            if flags & _FUA:
                self._keep(list(blocks))
        elif command == _FLUSH:
            self._keep(list(self._cache))
        client.sendall(_REPLY.pack(_REPLY_MAGIC, error, handle) + answer)
        return True

    def _read(self, blocks: range) -> bytes:
        content = bytearray(os.pread(self._image, len(blocks) * BLOCK, blocks.start * BLOCK))
        for place, block in enumerate(blocks):
            if block in self._cache:
                content[place * BLOCK : (place + 1) * BLOCK] = self._cache[block]
        return bytes(content)

    def _write(self, blocks: range, content: bytes) -> None:
        if len(content) < len(blocks) * BLOCK:
            raise ConnectionError("the client died while it sent this")
        for place, block in enumerate(blocks):
            self._cache[block] = content[place * BLOCK : (place + 1) * BLOCK]
