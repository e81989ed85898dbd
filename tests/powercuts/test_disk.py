"""The disk of the power cuts: what was flushed is there after a cut, what was not is lost."""

import random
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.powercuts.disk import BLOCK, Disk

_READ, _WRITE, _DISCONNECT, _FLUSH = range(4)
CHANCE = random.Random(1)  # noqa: S311
_OLD, _NEW = b"o" * BLOCK, b"n" * BLOCK


class Client:
    """A client that knows what `proto.md` says, and nothing of the disk's code."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(str(path))
        self.stream = self.socket.makefile("rb")
        assert self.stream.read(18) == b"NBDMAGICIHAVEOPT\0\3"
        self.socket.sendall(struct.pack(">I8sII", 3, b"IHAVEOPT", 7, 2) + b"no")  # NBD_OPT_GO
        assert self.stream.read(20)[-8:-4] == b"\x80\0\0\1"
        self.socket.sendall(struct.pack(">8sII", b"IHAVEOPT", 1, 0))
        self.size, self.flags = struct.unpack(">QH", self.stream.read(10))

    def ask(
        self, command: int, block: int = 0, content: bytes = b"", size: int = 0, fua: bool = False
    ) -> bytes:
        """Sends a command; returns what it reads."""
        size = size or len(content)
        header = struct.pack(">IHHQQI", 0x25609513, fua, command, 7, block * BLOCK, size)
        self.socket.sendall(header + content)
        assert struct.unpack(">IIQ", self.stream.read(16)) == (0x67446698, 0, 7)
        return self.stream.read(size) if command == _READ else b""


@contextmanager
def connected(disk: Disk, folder: Path) -> Iterator[Client]:
    """A client, which dies at the end."""
    disk.plug_in()
    client = Client(folder / "nbd")
    try:
        yield client
    finally:
        client.stream.close()
        client.socket.close()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """A disk of a hundred blocks."""
    (tmp_path / "image").write_bytes(_OLD * 100)
    disk = Disk(tmp_path / "image", tmp_path / "nbd")
    yield disk
    disk.close()


def test_only_what_was_flushed_outlives_a_cut(disk: Disk, tmp_path: Path) -> None:
    with connected(disk, tmp_path) as client:
        assert (client.size, client.flags) == (100 * BLOCK, 0b1101)
        client.ask(_WRITE, 1, _NEW * 2)
        client.ask(_FLUSH)
        client.ask(_WRITE, 3, _NEW)
        client.ask(_WRITE, 4, _NEW, fua=True)
        client.ask(_WRITE, 5, _NEW)
        assert client.ask(_READ, 0, size=7 * BLOCK) == _OLD + 5 * _NEW + _OLD
    assert disk.cut(0.0, CHANCE) == (2, 0)
    with connected(disk, tmp_path) as client:
        assert client.ask(_READ, 0, size=7 * BLOCK) == _OLD + 2 * _NEW + _OLD + _NEW + 2 * _OLD
    assert disk.cut(0.0, CHANCE) == (0, 0)


def test_a_client_that_dies_in_a_write_leaves_nothing_of_it(disk: Disk, tmp_path: Path) -> None:
    with connected(disk, tmp_path) as client:
        header = struct.pack(">IHHQQI", 0x25609513, 0, _WRITE, 7, 0, 2 * BLOCK)
        client.socket.sendall(header + _NEW)
    assert disk.cut(1.0, CHANCE) == (0, 0)


def test_a_cut_may_keep_some_of_the_cache(disk: Disk, tmp_path: Path) -> None:
    with connected(disk, tmp_path) as client:
        client.ask(_WRITE, 0, _NEW * 100)
    lost, kept = disk.cut(0.5, CHANCE)
    assert lost + kept == 100
    with connected(disk, tmp_path) as client:
        blocks = client.ask(_READ, 0, size=100 * BLOCK)
    assert (blocks.count(_OLD), blocks.count(_NEW)) == (lost, kept)
    assert 20 < kept < 80
