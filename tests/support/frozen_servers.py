"""Freezes servers: they keep their sockets open, and answer nothing."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pgbeat.testing.databases import TemporaryServer


@contextmanager
def frozen(server: TemporaryServer) -> Iterator[None]:
    """Stops all of a server's processes (SIGSTOP) during the block."""
    postmaster = server.pid
    os.kill(postmaster, signal.SIGSTOP)  # so that no more are forked
    children = Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split()
    processes = [postmaster, *map(int, children)]
    _signal(processes, signal.SIGSTOP)
    try:
        yield
    finally:
        _signal(processes, signal.SIGCONT)


def _signal(processes: list[int], sign: signal.Signals) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, sign)
