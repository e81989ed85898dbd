"""Shows that this process, a beat or a worker, is alive, without asking the database.

It writes the time into the process's file, and notifies systemd, every few seconds unless it is
stuck. `pgbeat health` reads these files (`probe`).
"""

import fcntl
import logging
import os
import socket
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from pgbeat.processes.probe import SUFFIX, folder

logger = logging.getLogger("pgbeat.health")

#: Seconds between two signs of life.
INTERVAL = 5.0


class Pulse:
    """The signs of life of this process, as long as it is not stuck.

    It is stuck if its loop has not turned for `patience` seconds, unless that rests or `is_busy`.
    """

    def __init__(self, role: str, patience: float) -> None:
        self._file = Path(folder()) / f"{role}-{os.getpid()}{SUFFIX}"
        self._pid, self._patience = os.getpid(), patience
        self._stopped = threading.Event()
        #: When the loop turned last, by the monotonic clock; `None` while it rests.
        self._turned_at: float | None = None
        #: Returns whether the loop works on something that may take any time.
        self.is_busy: Callable[[], bool] = lambda: False
        #: Whether there is a file.
        self._is_shown = False
        #: The file, locked as long as this process lives: its id may be another's later.
        self._held: IO[str] | None = None

    def turned(self) -> None:
        """Notes that the loop has turned."""
        self._turned_at = time.monotonic()

    def rests(self) -> None:
        """Notes that no loop runs for now."""
        self._turned_at = None

    def _is_stuck(self) -> bool:
        turned_at = self._turned_at
        if turned_at is None or self.is_busy():
            return False
        return time.monotonic() - turned_at > self._patience

    def start(self) -> None:
        """Gives the first sign, and begins to give more."""
        try:
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _require_own(self._file.parent)
            self._beat()
            self._is_shown = True
            self._held = self._file.open()
            fcntl.flock(self._held, fcntl.LOCK_SH)
        except OSError as error:
            logger.warning(
                "`pgbeat health --live` can't see this process: %s (PGBEAT_HEALTH_DIR)", error
            )
        notify("READY=1\nWATCHDOG=1")
        threading.Thread(target=self._run, name="pgbeat-pulse", daemon=True).start()

    def stop(self) -> None:
        """Ends the signs, as the process ends. Does nothing in a process forked from it."""
        if os.getpid() == self._pid:
            self._stopped.set()
            if self._is_shown:
                self._file.unlink(missing_ok=True)
            if self._held is not None:
                self._held.close()

    def _run(self) -> None:
        while not self._stopped.wait(INTERVAL):
            if os.getpid() != self._pid or self._is_stuck():
                continue
            notify("WATCHDOG=1")
            try:
                if self._is_shown:
                    self._beat()
            except OSError as error:  # the folder was deleted, or the disk is full
                logger.debug("%s: %s", self._file, error)

    def _beat(self) -> None:
        """Writes the system's monotonic clock, which no correction of its time moves.

        In full: rounded up, the sign would come from the future to who reads it at once.
        """
        self._file.write_text(f"{time.monotonic()}\n")


def _require_own(path: Path) -> None:
    """Raises `PermissionError` for a folder in which others could put a link in a file's place."""
    about = path.lstat()
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid() or about.st_mode & 0o022:
        raise PermissionError(f"{path} is not a folder in which only this user may write")


def notify(state: str) -> None:
    """Notifies the service manager, if it has started this process and wants to know."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection:
            connection.connect("\0" + address[1:] if address[0] == "@" else address)
            connection.sendall(state.encode())
    except OSError as error:
        logger.debug("NOTIFY_SOCKET: %s", error)
