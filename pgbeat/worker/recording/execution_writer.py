"""Writes the contents of a recorder's outbox in batches.

Rows that another transaction has locked, or that the server can't write now, are written later, in
order for each job, and delay nothing else. If the database refuses a row, it is written without the
task's own data.
"""

import time
from collections.abc import Callable, Collection, Sequence

from pgbeat.database import connections, privileges
from pgbeat.database.locks import batches
from pgbeat.errors import BrokerUnavailable
from pgbeat.jobs.lanes.model import Room
from pgbeat.jobs.running.job_reports import JobReport
from pgbeat.worker.recording import attempts
from pgbeat.worker.recording.attempts import Attempt
from pgbeat.worker.recording.execution_batches import Shape
from pgbeat.worker.recording.locked_attempts import LockedAttempts
from pgbeat.worker.recording.outbox import KEPT, Outbox
from pgbeat.worker.recording.recorder_session import RecorderSession

#: Attempts in one transaction.
BATCH = 500
#: Seconds that one call waits for other transactions' locks, altogether, and until the reports of
#: locked jobs are tried again.
_LOCK_BUDGET, _LOCKED = 0.3, 0.25


class ExecutionWriter:
    """Writes for one recorder, on its thread. Its methods return the lanes that have room now."""

    def __init__(
        self, session: RecorderSession, outbox: Outbox, complain: Callable[[str, Exception], None]
    ) -> None:
        self._session, self._outbox, self._complain = session, outbox, complain
        self._locked = LockedAttempts()

    @property
    def is_done(self) -> bool:
        """Whether everything is written."""
        return self._outbox.is_empty and not self._locked

    def due_reports(self, now: float) -> list[JobReport]:
        """Returns the reports to write now."""
        return list(self._outbox.reports) if now >= self._outbox.reports_at else []

    def times(self) -> list[float]:
        """Returns when reports and locked attempts are due (`time.monotonic()`)."""
        times = [self._outbox.reports_at] if self._outbox.reports else []
        retry_at = self._locked.retry_at
        return times if retry_at is None else [*times, retry_at]

    def write(self) -> set[Room]:
        """Writes attempts, up to a batch."""
        batch: list[Attempt] = []
        held = self._locked.jobs()
        while self._outbox.attempts and len(batch) < BATCH:
            attempt = self._outbox.take()
            if attempt.job_id in held:
                self._postpone([attempt])
            else:
                batch.append(attempt)
        return self._write_batch(batch)

    def write_locked(self, now: float) -> set[Room]:
        """Tries the locked attempts again, if it is time to."""
        if self._locked.retry_at is None or now < self._locked.retry_at:
            return set()
        taken = self._locked.take()
        try:
            return self._write_batch(taken)
        finally:
            self._locked.forget_wait()

    def write_reports(self, reports: Sequence[JobReport]) -> set[Room]:
        """Writes the due reports of jobs whose attempts are all written."""
        outbox = self._outbox
        held = self._locked.jobs() | outbox.jobs()
        done = batches.in_parts(
            [report for report in reports if report.job_id not in held],
            self._session.record_reports,
            may_fail=lambda error: not _ends_session(error),
            key=lambda report: report.job_id,
            budget=_LOCK_BUDGET,
        )
        left = done.late
        for report, error in done.failed:
            if self._must_wait(error):
                left.append(report)
            else:
                self._complain("Can't record how a job ended", error)
        for _ in reports:
            outbox.reports.popleft()
        left += [report for report in reports if report.job_id in held]
        outbox.reports.extendleft(reversed(left))
        outbox.reports_at = time.monotonic() + _LOCKED if left else 0.0
        return set().union(*done.results)

    def _write_batch(self, batch: Sequence[Attempt]) -> set[Room]:
        """Writes attempts; postpones those of jobs that another transaction has locked."""
        todo = dict.fromkeys(batch)
        freed: set[Room] = set()

        def part(some: Sequence[Attempt], wait: float | None = batches.WAIT) -> None:
            freed.update(self._write_now(some, wait=wait))
            for attempt in some:
                del todo[attempt]

        try:
            if self._locked:
                self._set_aside(todo)
            try:
                part(list(todo), None)
            except Exception as error:
                if not self._must_wait(error):
                    raise
                if batches.is_locked(error):
                    self._set_aside(todo)
                # Ends of one kind may need the same lock, such as that of a webhook.
                kinds = {attempt.job_id: attempt.job_state for attempt in todo}
                _, left = batches.each_unlocked(
                    sorted(todo, key=lambda attempt: kinds[attempt.job_id]),
                    part,
                    may_fail=self._must_wait,
                    key=lambda attempt: attempt.job_id,
                    budget=_LOCK_BUDGET,
                )
                self._postpone(left)
        except Exception as error:
            if _ends_session(error):
                self._outbox.put_back(todo)
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

    def _write_now(
        self, batch: Sequence[Attempt], shape: Shape = dict, *, wait: float | None = None
    ) -> set[Room]:
        """Writes attempts in one transaction, without those that are withdrawn."""
        claimed = self._outbox.claim(batch)
        if not claimed:
            return set()
        try:
            seen = [(attempt, attempt.changes) for attempt in claimed]
            over = [attempt for attempt in claimed if attempt.is_fully_noted]
            lanes = self._session.write(claimed, shape, wait=wait)
            for attempt, changes in seen:
                attempt.is_known = True
                attempt.written = changes
            self._outbox.forget_notes(over)
            self._outbox.note_ends([attempt for attempt in claimed if attempt.ended is not None])
            return lanes
        except Exception as error:
            if not batches.is_locked(error):  # its commit may have succeeded
                for attempt in claimed:
                    attempt.was_tried = attempt.was_tried or not attempt.is_known
            raise
        finally:
            self._outbox.release(claimed)

    def _write_alone(self, attempt: Attempt) -> set[Room]:
        """Writes an attempt of a batch that was refused, if need be without the task's data."""
        for shape in (dict, attempts.bare):
            try:
                return self._write_now([attempt], shape)
            except Exception as error:
                if _ends_session(error):
                    self._outbox.put_back([attempt])
                    raise
                if self._must_wait(error):
                    self._postpone([attempt])
                    return set()
                self._complain("Can't record an execution", error)
        self._outbox.forget_notes([attempt])
        return set()

    def _must_wait(self, error: Exception) -> bool:
        """Returns whether what failed is for later: the server or another transaction delays it."""
        if batches.is_locked(error):
            return True
        if not privileges.is_refused(error):
            return False
        self._complain("Can't record executions now, trying until it works", error)
        return True

    def _postpone(self, attempts: Collection[Attempt]) -> None:
        self._locked.add(attempts)
        while len(self._locked) > KEPT:
            self._outbox.forget_notes([self._locked.drop()])
            self._outbox.warn_of_drop("other transactions lock their rows, or the server is full")


def _ends_session(error: Exception) -> bool:
    return connections.is_lost(error) or isinstance(error, BrokerUnavailable)
