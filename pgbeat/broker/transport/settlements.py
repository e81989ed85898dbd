"""Retries of requeues and rejections that another session's row locks kept from happening."""

import time
from collections.abc import Callable, Sequence

#: Settles messages; returns those that it must be called with again.
Settle = Callable[[Sequence[int]], list[int]]

#: Seconds between two attempts: they double from the first to the last.
_FIRST, _LAST = 0.02, 1.0


class Settlements:
    """Requeues and rejections of claimed messages that are still to be done."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Settle, list[int]]] = []
        self._delay = _FIRST
        #: When to try again, by the monotonic clock.
        self.next_at: float | None = None

    def settle(self, settle: Settle, messages: Sequence[int]) -> None:
        """Settles messages now, and keeps those that are locked for `retry`."""
        if left := settle(messages):
            self._waiting.append((settle, left))
            self._delay = _FIRST
            self.next_at = time.monotonic() + self._delay

    def retry(self, now: float) -> None:
        """Tries again if it is time to."""
        if self.next_at is None or now < self.next_at:
            return
        self._waiting = [
            (settle, left) for settle, waiting in self._waiting if (left := settle(waiting))
        ]
        self._delay = min(self._delay * 2, _LAST)
        self.next_at = time.monotonic() + self._delay if self._waiting else None
