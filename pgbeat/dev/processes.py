"""Starts processes that end with this one, and ends them in order."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import IO, Any

from pgbeat.errors import PgbeatError
from pgbeat.testing.embedded import child_command


def start(
    command: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
    output: IO[bytes] | int,
    *,
    errors: IO[bytes] | int = subprocess.STDOUT,
    keep: Sequence[int] = (),
) -> "subprocess.Popen[bytes]":
    """Starts a process in a new session; it keeps the file descriptors `keep`.

    A Ctrl-C in the terminal is for this process, which ends its children in order.
    """
    return subprocess.Popen(  # noqa: S603 - our own command
        child_command(command),
        cwd=folder,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=errors,
        pass_fds=keep,
        start_new_session=True,
    )


def stop(groups: Iterable[Sequence["subprocess.Popen[bytes]"]], patience: float) -> None:
    """Ends the processes, a group after the other: by TERM, then by KILL after `patience` seconds.

    An interruption kills all that are left at once.
    """
    groups = [list(group) for group in groups]
    try:
        for group in groups:
            for process in group:
                process.terminate()
            deadline = time.monotonic() + patience
            for process in group:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, deadline - time.monotonic()))
    finally:
        for process in chain.from_iterable(groups):
            # A pool's processes are of the worker's group.
            if process.poll() != 0:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def free_port(port: int, *, or_other: bool = True) -> int:
    """Returns the port, or another one if a process listens there.

    Raises `PgbeatError` if it is taken and no other will do.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            if not or_other:
                why = error.strerror or str(error)
                raise PgbeatError(
                    f"can't listen on port {port}: {why}; try another --port"
                ) from None
            probe.bind(("127.0.0.1", 0))
        chosen: int = probe.getsockname()[1]
        return chosen


class Interruption:
    """Whether a block was interrupted. Python drops exceptions in callbacks of its collector."""

    came = False


@contextmanager
def interruptible() -> Iterator[Interruption]:
    """Lets TERM and HUP interrupt the block as Ctrl-C does, unless they are ignored already."""
    interruption = Interruption()

    def interrupt(signum: int, frame: Any) -> None:
        interruption.came = True
        raise KeyboardInterrupt

    before = {}
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(signum) is not signal.SIG_IGN:
            before[signum] = signal.signal(signum, interrupt)
    try:
        yield interruption
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
