"""Computes what a job and its retries did when: the phases of its trace.

A pure function of rows. `trace_rows` reads them. Rows keep the last of some times only, such as the
last dispatch; what they don't tell apart is one phase.
"""

import json
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, NamedTuple
from uuid import UUID

from pgbeat.jobs.rows.model import Job
from pgbeat.jobs.running.steps import ShownStep

Kind = Literal[
    "created", "approval", "blocked", "scheduled", "backoff", "snoozed", "sleep", "wait", "paused",
    "lane", "lane_or_queue", "unsent", "queue", "running", "step", "ended"
]  # fmt: skip
#: Each kind in words.
WORDS: dict[Kind, str] = {
    "created": "created",
    "approval": "waiting for approval",
    "blocked": "waiting for other jobs",
    "scheduled": "not due yet",
    "backoff": "backing off",
    "snoozed": "snoozed",
    "sleep": "sleeping",
    "wait": "waiting for event",
    "paused": "paused",
    "lane": "waiting in lane",
    "lane_or_queue": "waiting in lane or queue",
    "unsent": "waiting for beat to send it",
    "queue": "in queue",
    "running": "running",
    "step": "step",
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
    #: What was odd about it.
    note: str | None = None


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
    #: Those that began in it, in order.
    steps: Sequence[ShownStep] = ()


def _over(step: ShownStep) -> datetime:
    """Returns when a step was over, or will be."""
    return min(step.finished_at or _NEVER, step.until or _NEVER)


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
    #: The lane, queue or worker; the name of a step, or an event's key.
    where: str | None = None
    #: What a step returned, or an event's value.
    value: Any = None
    #: What was odd about an execution.
    note: str | None = None

    @property
    def words(self) -> str:
        """Returns it in words, such as `waiting in lane gpu`."""
        if self.kind == "ended":
            return self.state or "ended"
        if self.kind == "sleep" and self.where == "sleep":
            return WORDS["sleep"]
        where = "" if not self.where else f" on {self.where}" if self.number else f" {self.where}"
        return f"{WORDS[self.kind]}{where}"

    @property
    def brief_value(self) -> str:
        """Returns the value as JSON of up to 60 characters; "" without one."""
        document = "" if self.value is None else json.dumps(self.value, ensure_ascii=False)
        return document if len(document) <= 60 else f"{document[:59]}…"

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


def trace(
    attempts: Sequence[TracedAttempt],
    now: datetime,
    *,
    steps: Sequence[ShownStep] = (),
    is_whole: bool = True,
) -> Trace:
    """Returns the trace of these jobs, which are ordered from the oldest on, and of their steps."""
    phases = [phase for attempt in _with_steps(attempts, steps) for phase in _of_job(attempt, now)]
    until = max((phase.end or now for phase in phases), default=now)
    since = min((phase.begin for phase in phases), default=now)
    return Trace(phases, since, until, is_whole and all(attempt.is_whole for attempt in attempts))


def _with_steps(
    attempts: Sequence[TracedAttempt], steps: Sequence[ShownStep]
) -> Iterator[TracedAttempt]:
    """Yields each attempt with the steps that began before the next one was made."""
    for number, attempt in enumerate(attempts, 1):
        end = attempts[number].job.created_at if number < len(attempts) else _NEVER
        own = [step for step in steps if step.began_at < end]
        steps = steps[len(own) :]
        yield attempt._replace(steps=own)


def _of_job(attempt: TracedAttempt, now: datetime) -> Iterator[Phase]:
    job, last = attempt.job, None
    cursor, end = job.created_at, job.finished_at
    left = deque(attempt.steps)
    held: ShownStep | None = None
    if attempt.is_whole:
        yield Phase(job.id, job.attempt, "created", cursor, cursor)
    for run in attempt.runs:
        if attempt.is_whole or last is not None:
            yield from _wait(attempt, last, held, run, cursor, run.started_at, now)
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
            note=run.note,
        )
        while left and left[0].began_at <= (run.finished_at or now):
            step = left.popleft()
            if step.kind != "step":
                held = step
            if step.kind == "step" or _over(step) < (run.finished_at or now):
                yield _of_step(job, step, step.began_at, _over(step))
        cursor, last = max(cursor, run.finished_at or now), run
    if end is None:
        if last is None or last.state != "running":
            yield from _wait(attempt, last, held, None, cursor, None, now)
    else:
        if last is None or last.state != job.state or end - cursor > _MOMENT:
            yield from _wait(attempt, last, held, None, cursor, end, now)
        yield Phase(job.id, job.attempt, "ended", end, end, job.state)


def _of_step(job: Job, step: ShownStep, begin: datetime, end: datetime | None) -> Phase:
    """Returns the phase of a step, or a part of it."""
    state = step.state if step.state == "timed_out" else None
    return Phase(
        job.id, job.attempt, step.kind, begin, end, state, where=step.name, value=step.value
    )


def _wait(
    attempt: TracedAttempt,
    last: TracedRun | None,
    held: ShownStep | None,
    following: TracedRun | None,
    begin: datetime,
    end: datetime | None,
    now: datetime,
) -> Iterator[Phase]:
    """Yields what a job did from its creation, or an execution, to the next or its end.

    `held` is its last sleep or wait.
    """
    if held is not None and _over(held) < begin:
        held = None
    if last is None:
        steps = _first(attempt, end)
    elif last.state == "snoozed":
        steps = _snoozed(attempt.job, held, begin, end)
    elif _is_retried(attempt.job, last, following):
        steps = [("backoff", _NEVER)]
    else:
        steps = []
    yield from _cut(attempt, held, _pieces(steps, begin, end or _NEVER), end, now)


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


def _snoozed(
    job: Job, held: ShownStep | None, begin: datetime, end: datetime | None
) -> list[_Step]:
    """Returns what a job waits for after a snooze, until it is sent again."""
    kind: Kind = "snoozed" if held is None else held.kind
    until = _NEVER if held is None else _over(held)
    before: Kind = "lane" if job.lane else "unsent"
    sent = job.dispatched_at
    if sent is not None and begin <= sent and (end is None or sent <= end):
        return [(kind, min(until, sent)), (before, sent)]
    if end is None and job.run_at is not None:
        return [(kind, min(until, job.run_at)), (before, _NEVER)]
    return [(kind, until), ("lane_or_queue" if job.lane else "queue", _NEVER)]


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
    attempt: TracedAttempt,
    held: ShownStep | None,
    pieces: Iterable[_Piece],
    end: datetime | None,
    now: datetime,
) -> Iterator[Phase]:
    """Yields pieces as phases, with the pauses in between."""
    job = attempt.job
    is_paused = job.state == "paused" and not job.awaits_approval
    holds = list(attempt.holds)
    if is_paused and job.paused_at is not None and all(hold.until for hold in holds):
        holds.append(Hold(job.paused_at, None))  # with many others: the log doesn't name it
    for kind, begin, stop in _with_holds(pieces, holds):
        lasts = end is None and stop > now
        if held is not None and kind == held.kind:
            yield _of_step(job, held, begin, None if lasts else stop)
            if lasts:
                return
            continue
        where = job.lane if kind == "lane" else job.queue if kind == "queue" else None
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
