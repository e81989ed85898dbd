"""Keeps attempts whose rows another transaction has locked, to write them later."""

import time
from collections.abc import Iterable

from pgbeat.worker.recording.attempts import Attempt

#: Seconds until locked attempts are tried again: the first time, and at most.
_FIRST, _LONGEST = 0.1, 2.0


class LockedAttempts:
    """The locked attempts of one recorder, in the order in which they must be written."""

    def __init__(self) -> None:
        self._attempts: dict[Attempt, None] = {}
        self._wait = _FIRST
        #: When to try again (`time.monotonic()`); `None` if there are none.
        self.retry_at: float | None = None

    def __len__(self) -> int:
        return len(self._attempts)

    def __contains__(self, attempt: Attempt) -> bool:
        return attempt in self._attempts

    def jobs(self) -> set[str]:
        """Returns the jobs' ids; later attempts at them must wait for the locked ones."""
        return {attempt.job_id for attempt in self._attempts}

    def add(self, attempts: Iterable[Attempt]) -> None:
        """Adds attempts, to write after those already there."""
        for attempt in attempts:
            self._attempts.setdefault(attempt)
        if self._attempts and self.retry_at is None:
            self.retry_at = time.monotonic() + self._wait

    def take(self) -> list[Attempt]:
        """Takes out all attempts, to try them again. The next ones wait longer."""
        taken, self._attempts, self.retry_at = list(self._attempts), {}, None
        self._wait = min(self._wait * 2, _LONGEST)
        return taken

    def drop(self) -> Attempt:
        """Drops the oldest attempt, and returns it."""
        oldest = next(iter(self._attempts))
        del self._attempts[oldest]
        return oldest

    def forget_wait(self) -> None:
        """Resets the wait for the next ones, if nothing is locked any more."""
        if not self._attempts:
            self._wait = _FIRST
