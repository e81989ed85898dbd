"""Exceptions by which a running task ends its job as skipped or cancelled."""

from datetime import datetime, timedelta

from celery.exceptions import Ignore


class Skip(Ignore):  # type: ignore[misc,unused-ignore]
    """Conditions are not met, and why. Returned or raised by a launcher; never a failure.

    Raised in a task, it ends the job as `skipped`; Celery stores no result, as for its `Ignore`.
    """

    def __init__(
        self, reason: str = "conditions not met", *, snooze: timedelta | datetime | None = None
    ) -> None:
        super().__init__(reason)
        self.reason = str(reason) or "conditions not met"
        #: When to evaluate the launcher next, instead of at the timetable's next time.
        self.snooze = snooze


class Cancelled(Ignore):  # type: ignore[misc,unused-ignore]
    """The job is to be cancelled; raised in its task by `progress` and `checkpoint`.

    Clean up and let it pass, and the job is cancelled. As with Celery's `Ignore`, no result is
    stored.
    """
