"""Collects acknowledgements until they are sent.

Those of ordinary messages are sent with the next claim. Those of messages that start a job have
their own statement, which also records the worker that accepted the job.
"""

import time
from collections import deque

from pgbeat.broker import message_ends
from pgbeat.broker.transport.consuming.claims import Request
from pgbeat.database.prepared import array

#: Messages in one statement.
_BATCH = 10_000
#: Seconds for which acceptances are collected under load.
_INTERVAL = 0.003


class Acks:
    """One consumer's acknowledgements. Any thread may add to them; one at a time takes them."""

    def __init__(self, consumer: int) -> None:
        self._consumer = consumer
        self._plain: deque[int] = deque()
        self._of_jobs: deque[int] = deque()
        #: When acceptances may be sent again (`time.monotonic()`).
        self._accept_at = 0.0

    def add(self, message: int, *, starts_job: bool) -> None:
        """Adds an acknowledgement."""
        (self._of_jobs if starts_job else self._plain).append(message)

    def __bool__(self) -> bool:
        return bool(self._plain or self._of_jobs)

    @property
    def is_due(self) -> bool:
        """Whether some may be sent now."""
        return bool(self._plain) or self.accept_in(time.monotonic()) == 0.0

    def accept_in(self, now: float) -> float | None:
        """Returns the seconds until acceptances may be sent, `None` if there are none."""
        return max(0.0, self._accept_at - now) if self._of_jobs else None

    def take_plain(self) -> bytes:
        """Takes those of ordinary messages, as an array to send with a claim."""
        return _take(self._plain)

    def accept(self, now: float) -> Request | None:
        """Returns the statement that accepts jobs, if it is due."""
        if self.accept_in(now) != 0.0:
            return None
        self._accept_at = now + _INTERVAL
        worker = message_ends.accepting_worker()
        accepted_by = None if worker is None else b"%d" % worker
        parameters = (_take(self._of_jobs), b"%d" % self._consumer, accepted_by)
        return Request(message_ends.ACCEPT, parameters)

    def next(self, *, at_once: bool = False) -> Request | None:
        """Returns the next statement to send; with `at_once`, even if acceptances are not due."""
        now = time.monotonic()
        if at_once:
            self._accept_at = now
        request = self.accept(now)
        if request is None and self._plain:
            parameters = (self.take_plain(), b"%d" % self._consumer)
            request = Request(message_ends.ACK, parameters)
        return request


def _take(messages: deque[int]) -> bytes:
    return array([messages.popleft() for _ in range(min(len(messages), _BATCH))])
