"""Holds the evaluation of a schedule's due time, and the decision that is written."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Literal, NamedTuple

from pgbeat.jobs.preparing.placeholders import Facts
from pgbeat.jobs.running.task_exceptions import Skip
from pgbeat.schedules import policies
from pgbeat.schedules.launchers import JobRequest
from pgbeat.schedules.model import Schedule
from pgbeat.schedules.ticks import Tick, Trigger


class Objection(NamedTuple):
    """A policy by which a schedule is not launched, and why."""

    policy: Literal["window", "max_runs", "min_interval", "calendar", "overlap", "lane", "unique"]
    reason: str


class Launch(NamedTuple):
    """The result of an evaluation that launches: a request for each job."""

    requests: Sequence[JobRequest]
    #: What fills in the placeholders of its jobs' arguments.
    facts: Facts


class Failure(NamedTuple):
    """The result of an evaluation that raised."""

    error: str
    #: Whether the server could not evaluate it: it is evaluated again.
    passes: bool = False


class Evaluation(NamedTuple):
    """What is determined for a due time of a schedule, and not written yet."""

    schedule: Schedule
    due_at: datetime
    trigger: Trigger
    #: The time after which the timetable continues.
    then: datetime
    #: Other due times that it accounts for, and why.
    missed: int = 0
    note: str | None = None
    #: The timetable's next time after `then`, if known already.
    following: datetime | None = None
    #: `None` until the condition and the launcher have been evaluated.
    result: Launch | Skip | Failure | None = None
    #: The launcher's cursor as JSON text; `None` leaves it as it is.
    cursor: str | None = None
    #: When to evaluate the launcher next, if it set that itself.
    snooze: timedelta | datetime | None = None
    #: Where the job comes from (`jobs.job_source`), and who asked, if not the scheduler.
    job_source: str = "scheduled_task"
    created_by: str | None = None

    @property
    def is_decided(self) -> bool:
        """Returns whether there is a result."""
        return self.result is not None

    @property
    def is_asked_for(self) -> bool:
        """Returns whether somebody asked for it, so that the timetable stays as it is."""
        return self.created_by is not None

    @property
    def nominal(self) -> datetime:
        """Returns the due time that it is for: of a retry, the one that failed."""
        if self.trigger != "retry":
            return self.due_at
        return policies.retried(self.schedule, self.due_at)

    @property
    def requests(self) -> Sequence[JobRequest]:
        """Returns what to launch: a request for each job."""
        return self.result.requests if isinstance(self.result, Launch) else ()

    @property
    def job_ids(self) -> list[str]:
        """Returns the ids of its jobs; if it launches none, the id that a single job would have."""
        row, keys = self.schedule, [request.run_key for request in self.requests] or [None]
        return [row.job_id(self.due_at, key) for key in keys]


class Decision(NamedTuple):
    """A written tick, with its effect on its schedule."""

    tick: Tick
    schedule: Schedule
    retry_count: int
    next_run: datetime | None
    disabled_reason: str | None
    #: Whether it is disabled because nothing is left to do.
    is_complete: bool = False
