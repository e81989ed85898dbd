"""Defines the exceptions with which a running task ends its job other than by an error."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from celery.exceptions import Ignore, Retry

from pgbeat.errors import InvalidTimetable
from pgbeat.timetables import parse_duration, span


class Skip(Ignore):  # type: ignore[misc,unused-ignore]
    """Says that the conditions for a run are not met. A launcher returns or raises it.

    If a task raises it, the job ends as `skipped`, which is not a failure. Its result is that it
    was revoked, with the reason. For a task that is no job, Celery stores none, as for `Ignore`.
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

    The task should clean up and raise it again. Then the job ends as `cancelled`, and its result is
    that it was revoked.
    """


class Snooze(Retry):  # type: ignore[misc,unused-ignore]
    """Says that the job should run again later. Raise it in a task, for example after HTTP 429.

    The job keeps its id, spends no attempt, and gives its lane's slot back until it is due again.
    Waits for its result continue. In a task that is no job, it is Celery's own retry,
    which doesn't count either.

        raise pgbeat.Snooze("10 minutes")
    """

    def __init__(self, delay: str | float | timedelta) -> None:
        """`delay` is text such as `10 minutes`, seconds or a `timedelta`.

        Raises `ValueError` or `TypeError` for no delay, a negative one, or one over 100 years.
        """
        if isinstance(delay, bool) or not isinstance(delay, str | int | float | timedelta):
            raise TypeError(f"a delay must be text, seconds or a timedelta, got {delay!r}")
        if isinstance(delay, str):
            try:
                delay = parse_duration(delay)
            except InvalidTimetable as error:
                raise ValueError(str(error)) from None
        elif not isinstance(delay, timedelta):
            delay = timedelta(seconds=delay) if abs(delay) <= LONGEST else timedelta.max
        if not timedelta(0) <= delay <= timedelta(seconds=LONGEST):
            raise ValueError(f"a delay must be 0 seconds to 100 years, got {delay}")
        #: How long.
        self.delay = delay
        super().__init__(f"snoozed for {span(delay)}", when=delay.total_seconds())

    def __str__(self) -> str:
        return f"snoozed for {span(self.delay)}"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.delay,)


class Suspended(Snooze):
    """Says that the job sleeps or waits. `pgbeat.sleep` and `wait_for` raise it in the task."""

    def __init__(self, delay: float | timedelta, waits_for: Mapping[str, Any]) -> None:
        """Takes what the job's message has of it: `step` (its id), `key`, `since` and `until`."""
        super().__init__(delay)
        self.waits_for = waits_for

    def __str__(self) -> str:
        key = self.waits_for["key"]
        return f"sleeps for {span(self.delay)}" if key is None else f"waits for {key}"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.delay, self.waits_for)


class Failed(Exception):
    """Says which members of a batch failed. The others have completed.

    raise pgbeat.Failed({3: error})
    """

    def __init__(
        self, errors: Mapping[int, Exception], results: Sequence[Any] | None = None
    ) -> None:
        """`errors` has the error of each that failed, by its place in the list of members.

        `results` are those of all members, in order; `None` if they have none. What stands there
        for one that failed is ignored. Raises `TypeError` for another key or error.
        """
        for place, error in errors.items():
            if isinstance(place, bool) or not isinstance(place, int):
                raise TypeError(f"a member's place must be a whole number, got {place!r}")
            if not isinstance(error, Exception):
                raise TypeError(f"the error of member {place} must be an exception, got {error!r}")
        super().__init__(f"{len(errors)} members failed: {dict(errors)!r}")
        self.errors, self.results = dict(errors), results


LONGEST = 36_500 * 86_400
