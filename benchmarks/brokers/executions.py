"""The file that every task of a benchmark adds a record to: when it ran, and where.

One `write` of 24 bytes to a file that is open for appending, which processes and threads may do at
once: the same few microseconds for every broker. The parent counts by the file's size.
"""

import os
import time
from pathlib import Path
from struct import Struct
from typing import NamedTuple

_RECORD = Struct("=ddq")


class Execution(NamedTuple):
    """A task that ran: seconds since the epoch, of its start and its publishing; the process."""

    at: float
    sent: float
    pid: int


def note(descriptor: int, sent: float) -> None:
    """Adds a record for a task that starts now, from the process that runs it."""
    os.write(descriptor, _RECORD.pack(time.time(), sent, os.getpid()))


def opened(path: str) -> int:
    """The descriptor that `note` wants."""
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


class Executions:
    """The file, as the parent reads it."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self.clear()

    def clear(self) -> None:
        """Empties it; only while nothing runs."""
        self._path.write_bytes(b"")

    def count(self) -> int:
        """How many tasks have run."""
        return self._path.stat().st_size // _RECORD.size

    def read(self, since: int = 0) -> list[Execution]:
        """All records but the first `since`, by time."""
        with self._path.open("rb") as file:
            file.seek(since * _RECORD.size)
            content = file.read()
        whole = len(content) - len(content) % _RECORD.size
        return sorted(Execution(*values) for values in _RECORD.iter_unpack(content[:whole]))
