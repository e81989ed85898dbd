"""Limits how many changes users make in a minute, in this process."""

import threading
import time

from pgbeat.errors import TooMany

_MINUTE = 60.0
#: Users that are remembered, at most.
_MOST = 10_000


class Rates:
    """Counts each user's changes of the minute that began with the first."""

    def __init__(self, most: int) -> None:
        """Takes how many each user may make; 0 for any number."""
        self._most = most
        self._lock = threading.Lock()
        #: When a user's minute began, and the changes since.
        self._counts: dict[str, tuple[float, int]] = {}

    def take(self, name: str) -> None:
        """Counts a change. Raises `TooMany` if it is one too many."""
        if not self._most:
            return
        now = time.monotonic()
        with self._lock:
            began, count = self._counts.pop(name, (now, 0))
            if now - began >= _MINUTE:
                began, count = now, 0
            self._counts[name] = began, count + 1  # the newest at the end
            if len(self._counts) > _MOST:
                del self._counts[next(iter(self._counts))]
        if count >= self._most:
            message = f"you make more than {self._most} changes in a minute"
            raise TooMany(message, seconds=began + _MINUTE - now, advice="try again later")
