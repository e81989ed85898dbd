"""Decides when a recorder writes next: at once at first, seldom under load.

Times are seconds by the caller's monotonic clock. The pacer reads no clock itself.
"""

#: Seconds between two writes under load, and how many may come without that pause.
_INTERVAL, _BURST = 0.05, 4
#: After a write, an urgent change waits half as long as that write took, up to so many seconds.
_SOON = 0.015
#: After a write that left nothing to do, the next waits this many times as long as that write took,
#: up to so many seconds.
_SHARE, _LONGEST_PAUSE = 20.0, 0.2


class Pacer:
    """Spaces out the writes of one recorder."""

    def __init__(self) -> None:
        #: When the next write is due.
        self.write_at = 0.0
        self._soon_at = 0.0
        #: Whether an end came since the last write began, for which something waits; and whether
        #: its record can't wait.
        self._is_soon = self._is_now = False

    def hurry(self, *, at_once: bool = False) -> None:
        """Moves the next write forward, since a lane or a group waits for an end."""
        # Before `write_at`: another thread may just end a write.
        self._is_soon, self._is_now = True, at_once or self._is_now
        self._move_forward()

    def _move_forward(self) -> None:
        if self._is_now:
            self.write_at = 0.0
        elif self._is_soon:
            self.write_at = min(self.write_at, self._soon_at)

    def begin(self, now: float) -> None:
        """Notes that a write begins, which may fail."""
        self._is_soon = self._is_now = False
        due = max(self.write_at, now - _BURST * _INTERVAL) + _INTERVAL
        self.write_at = min(due, now + _INTERVAL)

    def end(self, began: float, ended: float, *, has_more: bool) -> None:
        """Notes that a write succeeded; `has_more` if a full batch is left to write."""
        took = ended - began
        self._soon_at = ended + min(took / 2, _SOON)
        if not has_more:
            pause = min(_SHARE * took, _LONGEST_PAUSE)
            self.write_at = max(self.write_at, ended + pause)
        self._move_forward()

    def delay(self, until: float) -> None:
        """Delays the next write, since the broker is unreachable."""
        self.write_at = until
