"""Defines the exceptions with which a running task ends its job as skipped or cancelled."""

from datetime import datetime, timedelta

from celery.exceptions import Ignore


class Skip(Ignore):  # type: ignore[misc,unused-ignore]
    """Says that the conditions for a run are not met. A launcher returns or raises it.

    If a task raises it, the job ends as `skipped`, which is not a failure. Celery stores no result,
    as for its own `Ignore`.
    """

    def __init__(
        self, reason: str = "conditions not met", *, snooze: timedelta | datetime | None = None
    ) -> None:
        super().__init__(reason)
        self.reason = str(reason) or "conditions not met"
        #: When to evaluate the launcher next, instead of at the timetable's next time.
        self.snooze = snooze


class Cancelled(Ignore):  # type: ignore[misc,unused-ignore]
    """Says that somebody has cancelled the job. `progress` and `checkpoint` raise it in the task.

    The task should clean up and raise it again. Then the job ends as `cancelled`. Celery stores no
    result, as for its own `Ignore`.
    """
