"""A beat in the test's own process, on a clock that the test sets."""

import time
from datetime import datetime, timedelta
from typing import Any

from celery import Celery
from sqlalchemy import Connection, TextClause, text

from pgbeat.beat import scheduler
from pgbeat.beat.due import DueSnapshot
from pgbeat.beat.scheduler import Pass
from pgbeat.database import sql
from pgbeat.schedules.ticks import Tick
from pgbeat.timetables import parse_duration


class Scheduler(scheduler.Scheduler):
    """pgbeat's scheduler on a clock that stands still until the test moves it.

    It decides as beat does, with the app's launchers and conditions on the real database, and never
    sleeps. `ticks` has all its decisions. Times that the database sets by itself (`created_at`,
    `decided_at`) are real ones; an interval counts from its schedule's `starts_at`.
    """

    def __init__(self, app: Celery, now: datetime | None = None, **kwargs: Any) -> None:
        #: The time on its clock, aware; `None` for the database's.
        self.now = now
        #: The decisions, oldest first.
        self.ticks: list[Tick] = []
        super().__init__(app, **kwargs)

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """Decides what is due now, without waiting. Returns 0, as a beat's tick does."""
        if self._leader.lead():
            self._run_pass()
        return 0.0

    def run_until(self, moment: datetime) -> list[Tick]:
        """Moves the clock from one due time to the next, up to a moment (aware).

        Decides what is due at each, as a beat that is never late. Returns the ticks.
        """
        before = len(self.ticks)
        self.run_due()
        while (next_run := self.next_run()) is not None and next_run <= moment:
            self.now = max(next_run, self.now or next_run)
            self.run_due()
        self.now = moment
        return self.ticks[before:]

    def advance(self, length: timedelta | str) -> datetime:
        """Moves the clock on, by a `timedelta` or in words (`2 hours`). Returns the new time.

        Decides nothing before `tick()` or `run_due()`, like a beat that was down for so long.
        """
        step = parse_duration(length) if isinstance(length, str) else length
        connection = self._leader.connect()
        self.now = self._snapshot(connection, []).now + step
        return self.now

    def next_run(self) -> datetime | None:
        """Returns when something is due next."""
        if not self._leader.lead():
            return None
        return self._snapshot(self._leader.connect(), []).next

    def suspended(self, job: Any, *, timeout: float = 10.0) -> str:
        """Waits until a job sleeps, or waits for an event. Returns the sleep's name or the key.

        The job is given by its id, itself or its task's result. Meanwhile jobs are sent, as by a
        beat, and workers must run. Raises `TimeoutError` after so many seconds.
        """
        return self._until_suspended(job, timeout, _SUSPENDED)

    def wake(self, job: Any, *, timeout: float = 10.0) -> str:
        """Ends a job's sleep, or has its wait time out, as if the time had passed.

        Waits for it, and returns its name, as `suspended` does.
        """
        name = self._until_suspended(job, timeout, _WAKE)
        self.tick()
        return name

    def _until_suspended(self, job: Any, timeout: float, statement: TextClause) -> str:
        job_id = str(getattr(job, "id", job))
        deadline = time.monotonic() + timeout
        while True:
            self.tick()
            name = self._leader.connect().scalar(statement, {"job": job_id})
            if name is not None:
                return str(name)
            if time.monotonic() > deadline:
                raise TimeoutError(f"job {job_id} neither sleeps nor waits after {timeout:g} s")
            time.sleep(0.02)

    def _snapshot(self, connection: Connection, held: list[int]) -> DueSnapshot:
        snapshot = super()._snapshot(connection, held)
        return snapshot if self.now is None else snapshot._replace(now=self.now)

    def _run_pass(self) -> Pass:
        done = super()._run_pass()
        self.ticks += [decision.tick for decision in done.decisions]
        return done


_SUSPENDED = text(sql.load("scheduler.sql", "suspended"))
_WAKE = text(sql.load("scheduler.sql", "wake"))
