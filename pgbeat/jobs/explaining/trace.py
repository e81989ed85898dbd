"""Computes what a job and its retries did when: the phases of its trace.

A pure function of rows. `trace_rows` reads them. Rows keep the last of some times only, such as the
last dispatch; what they don't tell apart is one phase.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Literal, NamedTuple
from uuid import UUID

from pgbeat.jobs.rows.model import Job
from pgbeat.jobs.running.steps import ShownStep

Kind = Literal[
    "created", "approval", "blocked", "scheduled", "backoff", "snoozed", "sleeping", "event",
    "paused", "lane", "lane_or_queue", "unsent", "queue", "running", "ended"
]  # fmt: skip
#: Each kind in words.
WORDS: dict[Kind, str] = {
    "created": "created",
    "approval": "waiting for approval",
    "blocked": "waiting for other jobs",
    "scheduled": "not due yet",
    "backoff": "backing off",
    "snoozed": "snoozed",
    "sleeping": "sleeping",
    "event": "waiting for an event",
    "paused": "paused",
    "lane": "waiting in lane",
    "lane_or_queue": "waiting in lane or queue",
    "unsent": "waiting for beat to send it",
    "queue": "in queue",
    "running": "running",
    "ended": "ended",
}
_NEVER = datetime.max.replace(tzinfo=UTC)
#: An execution that ended so shortly before its job ended the job.
_MOMENT = timedelta(seconds=1)


class TracedRun(NamedTuple):
    """An execution of one of the jobs."""

    job_id: UUID
    number: int
    state: str
    lost: bool
    retry_attempt: int
    worker: str
    started_at: datetime
    finished_at: datetime | None


class Hold(NamedTuple):
    """A pause: `until` is `None` while it lasts."""

    since: datetime
    until: datetime | None


class TracedAttempt(NamedTuple):
    """A job of a chain of retries, with its executions and pauses."""

    job: Job
    #: The oldest first.
    runs: Sequence[TracedRun] = ()
    #: Whether those are all of its executions.
    is_whole: bool = True
    #: Before which it was not to run for the first time.
    run_at: datetime | None = None
    #: When the last of the jobs ended for which it waited.
    blocked_until: datetime | None = None
    holds: Sequence[Hold] = ()
    #: Its sleeps, and waits for events, and other steps.
    steps: Sequence[ShownStep] = ()

    def suspension(self, at: datetime) -> ShownStep | None:
        """Returns the sleep or the wait that it was in."""
        those = [step for step in self.steps if step.kind != "step" and step.began_at <= at]
        return next((s for s in those[::-1] if s.finished_at is None or s.finished_at > at), None)


class Phase(NamedTuple):
    """A part of the trace. `created` and `ended` are moments."""

    job_id: UUID
    #: The attempt that the job is.
    attempt: int
    kind: Kind
    begin: datetime
    #: `None` if it lasts.
    end: datetime | None
    #: How it ended, of an execution (also `lost`) and of a job.
    state: str | None = None
    #: Of an execution.
    number: int | None = None
    #: The lane, queue or worker; the key of the event.
    where: str | None = None

    @property
    def words(self) -> str:
        """Returns it in words, such as `waiting in lane gpu`."""
        if self.kind == "ended":
            return self.state or "ended"
        if self.kind == "event":
            return f"waiting for {self.where}"
        where = "" if not self.where else f" on {self.where}" if self.number else f" {self.where}"
        return f"{WORDS[self.kind]}{where}"

    @property
    def is_moment(self) -> bool:
        """Returns whether it has no length."""
        return self.kind in ("created", "ended")

    def lasts(self, now: datetime) -> timedelta:
        """Returns its length, until now if it lasts."""
        return max((self.end or now) - self.begin, timedelta())


class Trace(NamedTuple):
    """The phases of a job and its retries, in order."""

    phases: list[Phase]
    since: datetime
    #: The end of the last job; now if it has not ended.
    until: datetime
    #: False if the oldest executions are left out.
    is_whole: bool


def trace(attempts: Sequence[TracedAttempt], now: datetime, *, is_whole: bool = True) -> Trace:
    """Returns the trace of these jobs, which are ordered from the oldest on."""
    phases = [phase for attempt in attempts for phase in _of_job(attempt, now)]
    until = max((phase.end or now for phase in phases), default=now)
    since = min((phase.begin for phase in phases), default=now)
    return Trace(phases, since, until, is_whole and all(attempt.is_whole for attempt in attempts))


def _of_job(attempt: TracedAttempt, now: datetime) -> Iterator[Phase]:
    job, last = attempt.job, None
    cursor, end = job.created_at, job.finished_at
    if attempt.is_whole:
        yield Phase(job.id, job.attempt, "created", cursor, cursor)
    for run in attempt.runs:
        if attempt.is_whole or last is not None:
            yield from _wait(attempt, last, run, cursor, run.started_at, now)
        state = "lost" if run.lost else run.state
        yield Phase(
            job.id,
            job.attempt,
            "running",
            run.started_at,
            run.finished_at,
            None if run.state == "running" else state,
            run.number,
            run.worker,
        )
        cursor, last = max(cursor, run.finished_at or now), run
    if end is None:
        if last is None or last.state != "running":
            yield from _wait(attempt, last, None, cursor, None, now)
    else:
        if last is None or last.state != job.state or end - cursor > _MOMENT:
            yield from _wait(attempt, last, None, cursor, end, now)
        yield Phase(job.id, job.attempt, "ended", end, end, job.state)


def _wait(
    attempt: TracedAttempt,
    last: TracedRun | None,
    following: TracedRun | None,
    begin: datetime,
    end: datetime | None,
    now: datetime,
) -> Iterator[Phase]:
    """Yields what a job did from its creation, or an execution, to the next or its end."""
    if last is None:
        steps = _first(attempt, end)
    elif last.state == "snoozed":
        steps = _snoozed(attempt.job, begin, end)
    elif _is_retried(attempt.job, last, following):
        steps = [("backoff", _NEVER)]
    else:
        steps = []
    yield from _cut(attempt, _pieces(steps, begin, end or _NEVER), end, now)


_Step = tuple[Kind, datetime]


def _first(attempt: TracedAttempt, end: datetime | None) -> list[_Step]:
    """Returns what a job waits for before its first execution, and until when."""
    job = attempt.job
    steps: list[_Step] = []
    if job.requires_approval:
        steps.append(("approval", job.approved_at or _NEVER))
    if job.is_blocked:
        steps.append(("blocked", _NEVER))
    elif attempt.blocked_until is not None:
        steps.append(("blocked", attempt.blocked_until))
    if attempt.run_at is not None:
        steps.append(("backoff" if job.retry_of else "scheduled", attempt.run_at))
    sent = job.dispatched_at or _NEVER
    if job.dispatched_at is not None and end is not None and sent > end:  # sent again since
        return [*steps, ("lane_or_queue", _NEVER)] if job.lane else steps
    return [*steps, ("lane" if job.lane else "unsent", sent)]


def _snoozed(job: Job, begin: datetime, end: datetime | None) -> list[_Step]:
    """Returns what a job waits for after a snooze, until it is sent again."""
    sent = job.dispatched_at
    if sent is not None and begin <= sent and (end is None or sent <= end):
        return [("snoozed", sent)]
    if end is None and job.run_at is not None:
        return [("snoozed", job.run_at), ("lane" if job.lane else "unsent", _NEVER)]
    return [("snoozed", _NEVER)]


def _is_retried(job: Job, last: TracedRun, following: TracedRun | None) -> bool:
    """Returns whether Celery retries the task after this execution."""
    if following is None:
        return job.state == "scheduled"
    return following.retry_attempt > last.retry_attempt


_Piece = tuple[Kind, datetime, datetime]


def _pieces(steps: Iterable[_Step], begin: datetime, end: datetime) -> Iterator[_Piece]:
    """Yields the steps that take time; the job is in its queue after them."""
    for kind, until in (*steps, ("queue", _NEVER)):
        stop = min(until, end)
        if stop > begin:
            yield kind, begin, stop
            begin = stop


def _cut(
    attempt: TracedAttempt, pieces: Iterable[_Piece], end: datetime | None, now: datetime
) -> Iterator[Phase]:
    """Yields pieces as phases, with the pauses in between."""
    job = attempt.job
    is_paused = job.state == "paused" and not job.awaits_approval
    holds = list(attempt.holds)
    if is_paused and job.paused_at is not None and all(hold.until for hold in holds):
        holds.append(Hold(job.paused_at, None))  # with many others: the log doesn't name it
    for kind, begin, stop in _with_holds(pieces, holds):
        lasts = end is None and stop > now
        where = job.lane if kind == "lane" else job.queue if kind == "queue" else None
        if kind == "snoozed" and (step := attempt.suspension(begin)):
            kind, where = ("sleeping", None) if step.kind == "sleep" else ("event", step.name)
        yield Phase(job.id, job.attempt, kind, begin, None if lasts else stop, where=where)
        if lasts:
            return


def _with_holds(pieces: Iterable[_Piece], holds: Sequence[Hold]) -> Iterator[_Piece]:
    for kind, begin, stop in pieces:
        for hold in holds:
            since, until = max(hold.since, begin), min(hold.until or _NEVER, stop)
            if since < until:
                if begin < since:
                    yield kind, begin, since
                yield "paused", since, until
                begin = until
        if begin < stop:
            yield kind, begin, stop
