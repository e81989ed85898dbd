"""Retries requeues and rejections of messages whose rows another session has locked."""

import time
from collections.abc import Callable, Sequence

#: Requeues or rejects messages; returns those that were locked.
Settle = Callable[[Sequence[int]], list[int]]

#: Seconds until the next attempt: the first, doubled each time up to the last.
_FIRST, _LAST = 0.02, 1.0


class Settlements:
    """The requeues and rejections that one session still has to do."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Settle, list[int]]] = []
        self._delay = _FIRST
        #: When to try again, by the monotonic clock.
        self.next_at: float | None = None

    def settle(self, settle: Settle, messages: Sequence[int]) -> None:
        """Settles messages now, and keeps locked ones for `retry`."""
        if left := settle(messages):
            self._waiting.append((settle, left))
            self._delay = _FIRST
            self.next_at = time.monotonic() + self._delay

    def retry(self, now: float) -> None:
        """Tries again, if it is time."""
        if self.next_at is None or now < self.next_at:
            return
        self._waiting = [
            (settle, left) for settle, waiting in self._waiting if (left := settle(waiting))
        ]
        self._delay = min(self._delay * 2, _LAST)
        self.next_at = time.monotonic() + self._delay if self._waiting else None
