"""Holds a process's attempts and reports until its recorder writes them."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TypeVar

from sqlalchemy import Connection

from pgbeat.jobs.running.job_reports import JobReport
from pgbeat.worker.recording.attempts import Attempt
from pgbeat.worker.recording.shared_notes import SharedNotes

logger = logging.getLogger("celery.worker.pgbeat")

T = TypeVar("T")

#: Attempts that are kept while they can't be written, and how many of them with their tasks' logs.
KEPT, WITH_LOGS = 10_000, 2_000
#: Written ends that are kept, and for how many seconds: a failover may undo what was committed.
_WRITTEN, _UNDONE = 2_000, 60.0


class Outbox:
    """The outbox of one recorder.

    Any thread may add to it, and wakes the recorder's thread if it must act; only that thread takes
    out. Methods that the tasks' threads call take no lock, since appending to a deque is atomic;
    only `withdraw` may wait.

    An attempt is written in one place at a time: by the recorder, between `claim` and `release`, or
    by the transaction that ends its task, from `withdraw` until the attempt is added again.
    """

    def __init__(self, notes: SharedNotes | None = None) -> None:
        self._notes = notes
        #: Attempts that have changed since they were written, each once.
        self.attempts: deque[Attempt] = deque()
        self.reports: deque[JobReport] = deque()
        #: When the reports may be written (`time.monotonic()`).
        self.reports_at = 0.0
        self.queries: deque[Callable[[Connection], object]] = deque()
        #: Whether a task waits for what was added, and whether nothing more will be added.
        self.is_urgent = self.is_closing = False
        #: Attempts that have begun and not ended, by their ids, and those that have progress.
        self._running: dict[str, Attempt] = {}
        self._progress: set[Attempt] = set()
        self._wake = threading.Event()
        self._is_idle = False
        self._written = threading.Condition()
        #: The ended attempts that were written last, and when (`time.monotonic()`).
        self._ended: deque[tuple[float, Attempt]] = deque(maxlen=_WRITTEN)
        self._has_dropped = False

    # ----- any thread

    def add(self, attempt: Attempt) -> None:
        """Adds an attempt that began or ended, for the recorder to write."""
        attempt.is_withdrawn = False
        if attempt.ended is None:
            self._running[attempt.id] = attempt
            if self._notes is not None:
                self._notes.begin(attempt)
        else:
            if len(self.attempts) > WITH_LOGS:
                attempt.log = None
            self._running.pop(attempt.id, None)
            if self._notes is not None:
                self._notes.end(attempt)
        self.push(attempt)

    def push(self, attempt: Attempt) -> None:
        """Adds an attempt that has changed."""
        if not attempt.is_queued:
            attempt.is_queued = True
            self.attempts.append(attempt)
            if len(self.attempts) > KEPT:
                with suppress(IndexError):
                    dropped = self.attempts.popleft()
                    dropped.is_queued = False
                    self.forget_notes([dropped])
                self.warn_of_drop("the database is unreachable")
        # A recorder with something left to write wakes up by itself.
        if self._is_idle:
            self._wake.set()

    def withdraw(self, attempt: Attempt) -> None:
        """Leaves the writes of an attempt to the caller, until it is added again.

        Waits while the recorder is writing it, for one transaction at most. So what the caller
        changes of the attempt is not written by the recorder.
        """
        attempt.is_withdrawn = True
        # The recorder claims an attempt before it looks whether it is withdrawn.
        if attempt.is_claimed:
            with self._written:
                self._written.wait_for(lambda: not attempt.is_claimed)

    def drop(self, attempt: Attempt) -> None:
        """Drops an attempt that is recorded and over."""
        self._running.pop(attempt.id, None)
        self._progress.discard(attempt)
        self.forget_notes([attempt])

    def forget_notes(self, attempts: Iterable[Attempt]) -> None:
        """Deletes the notes of attempts that are recorded, or never will be."""
        if self._notes is not None:
            self._notes.forget(attempts)

    def add_progress(self, attempt: Attempt) -> None:
        """Adds an attempt whose progress is written with the next check of what runs."""
        self._progress.add(attempt)

    def add_report(self, report: JobReport) -> None:
        """Adds the main process's report on a job."""
        self.reports.append(report)
        if len(self.reports) > KEPT:
            self.reports.popleft()
            self.warn_of_drop("they can't be written")
        self.reports_at = 0.0
        self.hurry()

    def add_query(self, query: Callable[[Connection], object]) -> None:
        """Adds a query whose result nothing waits for."""
        self.queries.append(query)
        self.hurry()

    def query(self, query: Callable[[Connection], T], seconds: float) -> T | None:
        """Returns the result of a query, `None` if it takes longer than `seconds`."""
        answered = threading.Event()
        results: list[T] = []

        def run(connection: Connection) -> None:
            results.append(query(connection))
            answered.set()

        self.add_query(run)
        answered.wait(seconds)
        return results[0] if results else None

    def wait_for(self, attempt: Attempt, change: int, seconds: float) -> bool:
        """Waits until a change of an attempt is written; returns whether it is."""
        with self._written:
            return self._written.wait_for(lambda: attempt.written >= change, seconds)

    def hurry(self) -> None:
        """Makes the recorder act at once."""
        self.is_urgent = True
        self.wake()

    def wake(self) -> None:
        """Makes the recorder check again when to act."""
        self._wake.set()

    def close(self) -> None:
        """Tells the recorder to write everything and end."""
        self.is_closing = True
        self.hurry()

    # ----- the recorder's thread

    def sleep(self, seconds: float | None, *, is_idle: bool) -> None:
        """Sleeps until woken, for at most `seconds`.

        `is_idle`: there was no attempt to write, so the next one must wake the recorder.
        """
        self._is_idle = is_idle
        # An attempt that came before this was set has not woken the recorder.
        if not (is_idle and self.attempts):
            self._wake.wait(seconds)
        self._is_idle = False
        if not self.is_closing:
            self._wake.clear()

    @property
    def has_running(self) -> bool:
        """Whether an attempt runs, or has progress to write."""
        return bool(self._running or self._progress)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing left to take out and write."""
        return not (self.attempts or self.reports or self.queries or self._progress)

    def jobs(self) -> set[str]:
        """Returns the ids of the jobs whose attempts have changed since they were written."""
        return {attempt.job_id for attempt in self.attempts.copy()}

    def is_awaited(self) -> bool:
        """Returns whether a task waits until its attempt is written."""
        return any(attempt.changes > attempt.written for attempt in self.attempts.copy())

    def running_since(self, moment: float) -> list[Attempt]:
        """Returns the running attempts that began before then (`time.monotonic()`)."""
        return [attempt for attempt in list(self._running.values()) if attempt.began < moment]

    def push_progress(self) -> None:
        """Queues the attempts that have progress and have not ended."""
        while self._progress:
            attempt = self._progress.pop()
            if attempt.ended is None:
                self.push(attempt)

    def take(self) -> Attempt:
        """Takes out the oldest attempt; later changes are for the next write."""
        attempt = self.attempts.popleft()
        attempt.is_queued = False
        return attempt

    def put_back(self, attempts: Iterable[Attempt]) -> None:
        """Puts attempts that could not be written back in front of the others."""
        for attempt in reversed(list(attempts)):
            if not attempt.is_queued:
                attempt.is_queued = True
                self.attempts.appendleft(attempt)

    def note_ends(self, attempts: Iterable[Attempt]) -> None:
        """Notes that the ends of these attempts are written."""
        now = time.monotonic()
        self._ended.extend((now, attempt) for attempt in attempts)
        while self._ended and self._ended[0][0] < now - _UNDONE:
            self._ended.popleft()

    def push_again(self) -> None:
        """Queues what runs and what ended lately: a server that took over may not have it."""
        since = time.monotonic() - _UNDONE
        ended = [attempt for at, attempt in self._ended if at > since]
        self._ended.clear()
        for attempt in [*ended, *self._running.values()]:
            if not attempt.is_recorded:
                attempt.is_known, attempt.was_tried = False, True
                self.push(attempt)

    def claim(self, attempts: Iterable[Attempt]) -> list[Attempt]:
        """Claims attempts to write them; returns them without those that are withdrawn."""
        claimed = []
        for attempt in attempts:
            attempt.is_claimed = True
            if attempt.is_withdrawn:
                self.release([attempt])
            else:
                claimed.append(attempt)
        return claimed

    def release(self, attempts: Iterable[Attempt]) -> None:
        """Ends a claim, and wakes the tasks that wait for it, or for a write of their attempt."""
        for attempt in attempts:
            attempt.is_claimed = False
        with self._written:
            self._written.notify_all()

    def warn_of_drop(self, why: str) -> None:
        """Logs, once, that attempts are dropped."""
        if not self._has_dropped:
            logger.warning("Dropping the oldest of %d unrecorded executions: %s", KEPT, why)
        self._has_dropped = True
