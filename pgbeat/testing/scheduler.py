"""A beat in the test's own process, whose clock the test sets."""

from datetime import datetime, timedelta
from typing import Any

from celery import Celery
from sqlalchemy import Connection

from pgbeat.beat import scheduler
from pgbeat.beat.due import Snapshot
from pgbeat.beat.scheduler import Pass
from pgbeat.schedules.ticks import Tick
from pgbeat.timetables import parse_duration


class Scheduler(scheduler.Scheduler):
    """pgbeat's scheduler on a clock of its own, which stands still until it is moved.

    It decides as beat does, with the app's launchers and conditions on the real database; it
    never sleeps. `ticks` has every decision that it made. Times that the database sets by itself
    (`created_at`, `decided_at`) are real ones; an interval counts from its schedule's `starts_at`.
    """

    def __init__(self, app: Celery, now: datetime | None = None, **kwargs: Any) -> None:
        #: The time that it believes it is; aware. `None`: the database's.
        self.now = now
        #: What was decided, oldest first.
        self.ticks: list[Tick] = []
        super().__init__(app, **kwargs)

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """One look at the schedules, without waiting; 0, as a beat's tick."""
        if self._leader.lead():
            self._run_pass()
        return 0.0

    def run_until(self, moment: datetime) -> list[Tick]:
        """Moves the clock from one due time to the next, up to a moment (aware), and decides what
        is due at each, as a beat would that is never late; the ticks."""
        before = len(self.ticks)
        self.run_due()
        while (next_run := self.next_run()) is not None and next_run <= moment:
            self.now = max(next_run, self.now or next_run)
            self.run_due()
        self.now = moment
        return self.ticks[before:]

    def advance(self, length: timedelta | str) -> datetime:
        """Moves the clock on, by a `timedelta` or in words (`2 hours`); the new time.

        Nothing is decided until `tick()` or `run_due()`: so much later does a beat look that was
        down.
        """
        step = parse_duration(length) if isinstance(length, str) else length
        connection = self._leader.connect()
        self.now = self._snapshot(connection, []).now + step
        return self.now

    def next_run(self) -> datetime | None:
        """When something is due next."""
        if not self._leader.lead():
            return None
        return self._snapshot(self._leader.connect(), []).next

    def _snapshot(self, connection: Connection, held: list[int]) -> Snapshot:
        snapshot = super()._snapshot(connection, held)
        return snapshot if self.now is None else snapshot._replace(now=self.now)

    def _run_pass(self) -> Pass:
        done = super()._run_pass()
        self.ticks += [decision.tick for decision in done.decisions]
        return done
