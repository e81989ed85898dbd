"""The writer: what a recorder has to write, until it is written.

What another transaction has locked is written later, in order for each job, and delays nothing
else. What the database refuses is written without the parts that it may have refused.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

import kombu.exceptions

from pgbeat.database import batches, connections
from pgbeat.jobs.job_reports import JobReport
from pgbeat.worker import attempts
from pgbeat.worker.attempts import Attempt
from pgbeat.worker.locked_attempts import LockedAttempts
from pgbeat.worker.recorder_session import Lane, RecorderSession, Shape

logger = logging.getLogger("celery.worker.pgbeat")

#: Attempts in one transaction.
BATCH = 500
#: Attempts that are kept while the database is away, and as many while their rows are locked.
_KEPT = 10_000
#: Seconds that one call waits for other transactions' locks, altogether, and until what the main
#: process says of a locked job is tried again.
_LOCK_BUDGET, _LOCKED = 0.3, 0.25


class ExecutionWriter:
    """Of one recorder. Any thread may add to it; the recorder's thread writes."""

    def __init__(
        self, session: RecorderSession, complain: Callable[[str, Exception], None]
    ) -> None:
        self._session, self._complain = session, complain
        #: Attempts that have changed.
        self.queue: deque[Attempt] = deque()
        self._locked = LockedAttempts()
        self._reports: deque[JobReport] = deque()
        self._reports_at = 0.0
        self._written = threading.Condition()
        self._dropped = 0

    # ----- by any thread

    def push(self, attempt: Attempt) -> None:
        """Adds an attempt that has changed."""
        if attempt.is_queued:
            return
        attempt.is_queued = True
        self.queue.append(attempt)
        if len(self.queue) > _KEPT:
            with suppress(IndexError):
                self.queue.popleft().is_queued = False
            self._drop("the database is away too long")

    def add_report(self, report: JobReport) -> None:
        """Adds what the main process says of a job."""
        self._reports.append(report)
        self._reports_at = 0.0

    def wait_for(self, attempt: Attempt, change: int, seconds: float) -> bool:
        """Waits until a change of an attempt is written; returns whether it is."""
        with self._written:
            return self._written.wait_for(lambda: attempt.written >= change, seconds)

    # ----- by the recorder's thread

    @property
    def is_empty(self) -> bool:
        """Whether all is written."""
        return not (self.queue or self._locked or self._reports)

    def is_awaited(self) -> bool:
        """Whether a task waits until it is written."""
        return any(attempt.changes > attempt.written for attempt in self.queue)

    def has_reports(self, now: float) -> bool:
        """Whether something that the main process says is to be written now."""
        return bool(self._reports) and now >= self._reports_at

    def times(self) -> list[float]:
        """Returns when there is something to write beside the queue (`time.monotonic()`)."""
        times = [self._reports_at] if self._reports else []
        retry_at = self._locked.retry_at
        return times if retry_at is None else [*times, retry_at]

    def write_queue(self) -> set[Lane]:
        """Writes the queue, up to a batch; returns the lanes that have room now."""
        batch: list[Attempt] = []
        held = self._locked.jobs()
        while self.queue and len(batch) < BATCH:
            attempt = self.queue.popleft()
            attempt.is_queued = False  # what changes from now on is for the next time
            if attempt.job_id in held:
                self._postpone([attempt])
            else:
                batch.append(attempt)
        return self._write_batch(batch)

    def write_locked(self, now: float) -> set[Lane]:
        """Tries what was locked again, if it is time to; returns the lanes that have room now."""
        if self._locked.retry_at is None or now < self._locked.retry_at:
            return set()
        taken = self._locked.take()
        try:
            return self._write_batch(taken)
        finally:
            self._locked.forget_wait()

    def write_reports(self) -> set[Lane]:
        """Writes what the main process says of jobs; returns the lanes that have room now."""
        reports = list(self._reports)
        left: list[JobReport] = []
        freed: list[set[Lane]] = []
        try:
            freed, left = batches.each_unlocked(
                reports,
                self._session.record_reports,
                key=lambda each: each.job_id,
                budget=_LOCK_BUDGET,
            )
        except Exception as error:
            if connections.is_lost(error):
                raise
            self._complain("Can't write how jobs ended", error)
        for _ in reports:
            self._reports.popleft()
        self._reports.extendleft(reversed(left))
        self._reports_at = time.monotonic() + _LOCKED if left else 0.0
        return set().union(*freed)

    # ----- attempts

    def _write_batch(self, batch: Sequence[Attempt]) -> set[Lane]:
        """Writes attempts; postpones those of jobs that another transaction has locked."""
        todo = dict.fromkeys(batch)
        freed: set[Lane] = set()

        def part(some: Sequence[Attempt], wait: float | None = batches.WAIT) -> None:
            freed.update(self._write(some, wait=wait))
            for attempt in some:
                del todo[attempt]

        try:
            if self._locked:
                self._set_aside(todo)
            try:
                part(list(todo), None)
            except Exception as error:
                if not batches.is_locked(error):
                    raise
                self._set_aside(todo)
                _, left = batches.each_unlocked(
                    list(todo), part, key=lambda attempt: attempt.job_id, budget=_LOCK_BUDGET
                )
                self._postpone(left)
        except Exception as error:
            for attempt in todo:
                attempt.was_tried = attempt.was_tried or not attempt.is_known
            if connections.is_lost(error) or isinstance(error, kombu.exceptions.OperationalError):
                self._put_back(todo)
                raise
            for attempt in list(todo):
                freed |= self._write_alone(attempt)
        return freed

    def _set_aside(self, todo: dict[Attempt, None]) -> None:
        """Postpones those attempts whose jobs are locked just now."""
        if not todo:
            return
        locked = self._session.locked([attempt.job_id for attempt in todo])
        self._postpone([attempt for attempt in todo if attempt.job_id in locked])
        for attempt in list(todo):
            if attempt.job_id in locked:
                del todo[attempt]

    def _write(
        self, batch: Sequence[Attempt], shape: Shape = dict, *, wait: float | None = None
    ) -> set[Lane]:
        """Writes attempts in one transaction; returns the lanes that have room now."""
        if not batch:
            return set()
        seen = [(attempt, attempt.changes) for attempt in batch]
        lanes = self._session.write(batch, shape, wait=wait)
        for attempt, changes in seen:
            attempt.is_known = True
            attempt.written = changes
        with self._written:
            self._written.notify_all()
        return lanes

    def _write_alone(self, attempt: Attempt) -> set[Lane]:
        """Writes an attempt of a batch that was refused. The one that is to blame is written
        without what others have put into it."""
        for shape in (dict, attempts.bare):
            try:
                return self._write([attempt], shape)
            except Exception as error:
                if connections.is_lost(error):
                    self._put_back([attempt])
                    raise
                if batches.is_locked(error):
                    self._postpone([attempt])
                    return set()
                self._complain("Can't write how a job fares", error)
        return set()

    def _put_back(self, attempts: Collection[Attempt]) -> None:
        for attempt in reversed(list(attempts)):
            if not attempt.is_queued:
                attempt.is_queued = True
                self.queue.appendleft(attempt)

    def _postpone(self, attempts: Collection[Attempt]) -> None:
        self._locked.add(attempts)
        while len(self._locked) > _KEPT:
            self._locked.drop()
            self._drop("other transactions lock their rows too long")

    def _drop(self, why: str) -> None:
        if not self._dropped:
            logger.warning("Of more than %d executions the oldest are not recorded: %s", _KEPT, why)
        self._dropped += 1
