"""Ends the members of a batch in one transaction: that of the member whose message was sent.

Celery traces each member as a task of its own, so that its result, callbacks, chord, retry and
signals are those of any task. The ends of the others are kept until the first one's commit.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from celery.exceptions import Ignore, Reject, Retry

from pgbeat.jobs.messages import kept_messages
from pgbeat.jobs.rows.model import Job
from pgbeat.jobs.running.task_exceptions import Snooze
from pgbeat.results.ending import Claim, EndRecorder, TaskEnding, ignores_result
from pgbeat.results.store import Joined
from pgbeat.worker.finishing import attempt_ends
from pgbeat.worker.recording import process_recorder
from pgbeat.worker.recording.attempts import Attempt

#: Where the request of a member has how the batch came out for it.
BATCH_RUN = "pgbeat_batch_run"
_BACK = "its batch was not committed; it waits for another one"
#: Seconds for which a batch waits until that is recorded.
_PATIENCE = 2.0


class Recorded(EndRecorder, Protocol):
    """Records the executions of a batch."""

    attempt: Attempt
    others: list[Attempt]

    def lock(self, working: Joined) -> None:
        """Locks their jobs."""


class BatchRun(NamedTuple):
    """One member's part of a batch that has run."""

    job: Job
    batch: "BatchEnding"
    value: Any = None
    error: Exception | None = None

    def outcome(self) -> Any:
        """Returns what the batch returned for the member, or raises what it raised."""
        if self.error is not None:
            raise self.error
        return self.value


class _Kept(TaskEnding):
    """The end of a run whose job keeps the message that Celery made of it."""

    recorded: Recorded
    job: Job | None = None

    @property
    def keeps_message(self) -> bool:  # type: ignore[override]
        """Whether the job waits with its message if it runs again."""
        return self.job is not None

    def succeed(self, value: Any) -> None:
        """Ends a member. Raises `EncodeError` for a value that can't be stored: it fails alone."""
        self._backend.encode(value)
        super().succeed(value)

    def replaced(self, error: BaseException) -> None:
        """Ends a run that raised `Retry` or `Ignore`: a job that runs again waits with others."""
        if self.is_over:  # by the result of what was skipped or cancelled
            return
        if isinstance(error, Retry) and not self._held and self.job is not None:
            attempt, kept = self.recorded.attempt, self.job.message or {}
            retries = attempt.retry_attempt + (not isinstance(error, Snooze))
            self.recorded.raised(error, None)
            attempt.message = kept_messages.tried_again(kept, retries)
            attempt.runs_in = attempt_ends.seconds(error.when) or 0.0
        else:
            self.recorded.raised(error, None)
        self._commit(lambda: None)

    def rejected(self, error: Reject) -> None:
        """Fails a run that raised `Reject`: Celery can't reject the message that its job keeps.

        Raises `Ignore` if it does.
        """
        if error.requeue or not self.keeps_message:
            return
        task, request = self._task, self._request
        is_stored = not ignores_result(task, request) or task.store_errors_even_if_ignored
        self._backend.mark_as_failure(request.id, error, request=request, store_result=is_stored)
        if self.has_committed:
            raise Ignore(str(error)) from error

    def _acknowledges_failures(self) -> bool:
        return True

    def _calls_errbacks(self) -> bool:
        """Returns false: those that Celery calls in this process wait for the batch's commit."""
        return False


class BatchEnding(_Kept):
    """How a batch ends: by the end of the member whose message was sent."""

    def __init__(self, task: Any, claim: Claim, recorded: Recorded) -> None:
        super().__init__(task.backend, task, claim, is_always=True)
        self.execution = self.recorded = recorded
        self._members: list[MemberEnding] = []
        #: The other members that run, by the ids of their jobs.
        self._running: dict[str, Attempt] = {}
        #: Whether a member has completed: then what the task wrote is kept, if the first one fails.
        self.has_completed = False

    def begin(self, own: Job | None, others: list[Attempt]) -> None:
        """Notes the members that run: `own` if the job was sent as one, and the others."""
        self.job, self._running = own, {attempt.job_id: attempt for attempt in others}

    def add(self, member: "MemberEnding") -> None:
        """Adds a member's end to the transaction."""
        self._members.append(member)
        self.recorded.others.append(self._running.pop(member.recorded.attempt.job_id))

    def ended(self, member: "MemberEnding") -> None:
        """Notes a member that ends by itself: another function has its end."""
        self._running.pop(member.recorded.attempt.job_id, None)

    def replaced(self, error: BaseException) -> None:
        """Ends the batch whose first member raised `Retry` or `Ignore`."""
        if self._members or self._held or self.job is not None:
            super().replaced(error)

    def give_up(self) -> None:
        """Rolls back what the task wrote, unless a member has completed with it."""
        if not self.has_completed:
            super().give_up()

    def _publishes(self) -> bool:
        return bool(self._members) or super()._publishes()

    def _record(self, working: Joined) -> None:
        # A member that waits again has its message deleted: the acknowledgement comes before that.
        self.recorded.lock(working)
        self._acknowledge(working)
        self._write(working)

    def _publish(self, mark: Callable[[], None], block: Any) -> None:
        super()._publish(mark, block)
        for member in self._members:
            member.publish(block)

    def _leave(self) -> None:
        """Lets the members wait again whose ends were not committed."""
        super()._leave()
        if not self.has_committed:
            super().give_up()
        # Celery leaves the end of a member that raised `Reject` to its signal.
        left, self._running = [run for run in self._running.values() if run.ended is None], {}
        if not self.has_committed:
            left += self.recorded.others
            self._members, self.recorded.others = [], []
        recorder = process_recorder.get()
        for attempt in left:
            attempt.message = attempt.runs_in = attempt.result = attempt.traceback = None
            attempt.error = _BACK
            attempt.end("failed", "pending")
            if recorder is not None:
                recorder.record(attempt)
        # Before the first one is recorded, or delivered again: without it, these would pass for
        # members whose process died.
        if left and recorder is not None:
            recorder.record_now(left[-1], _PATIENCE)


class MemberEnding(_Kept):
    """How another member of a batch ends: as a part of the batch's transaction."""

    def __init__(self, task: Any, run: BatchRun, recorded: Recorded) -> None:
        super().__init__(task.backend, task, Claim(0, 0), is_always=True)
        self.execution = self.recorded = recorded
        self.job, self._batch = run.job, run.batch
        self._mark: Callable[[], None] = lambda: None

    def publish(self, block: Any) -> None:
        """Writes its result, and what it sends, in the transaction of the batch."""
        self._mark()
        self._held.publish(block)

    def _commit(self, mark: Callable[[], None]) -> None:
        self._mark = mark
        self.recorded.attempt.is_deferred = True
        self._batch.add(self)
        self.has_committed = True
        self._leave()

    def _leave(self) -> None:
        super()._leave()
        if not self.has_committed:
            self._batch.ended(self)
