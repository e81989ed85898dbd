"""Reads what the demo shows: ticks, how their jobs ended, which beat leads."""

import re
import time
from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from pgbeat.database import sql
from pgbeat.database.locks import advisory_locks
from pgbeat.demo.children import Children
from pgbeat.errors import PgbeatError

#: The advisory lock that the demo's beats compete for.
LOCK_KEY = 1050
#: Seconds that the processes may take to start; then the time of a limited demo runs anyway.
_START_UP = 60.0


@dataclass(frozen=True, slots=True)
class ObservedTick:
    """A tick and the state of its job."""

    id: int
    decided_at: datetime
    schedule: str
    outcome: str
    #: Why it was skipped, or the error that it failed with.
    why: str
    job: str
    #: The job's state; empty without a job.
    state: str
    error: str
    #: From the decision to the job's end.
    took: timedelta | None

    @property
    def ending(self) -> str:
        """The job's state, its duration and its error."""
        after = "" if self.took is None else f" after {self.took.total_seconds():.1f} s"
        return f"{self.state}{after}" + (f": {_unqualified(self.error)}" if self.error else "")


_TICKS = text(sql.load("watch.sql", "ticks"))
_DISABLED = text("SELECT name, disabled_reason FROM pgbeat.schedules WHERE NOT enabled")


def _unqualified(error: str) -> str:
    """Returns `package.module.SomeError: why` as `SomeError: why`."""
    return re.sub(r"^(?:\w+\.)+(?=\w+:)", "", error)


class Observer:
    """Reads the demo's database, and keeps what it has seen."""

    def __init__(self) -> None:
        self.begun = time.monotonic()
        self.led_since: float | None = None
        #: The database's time at its first look: earlier ticks were made up.
        self.since: datetime | None = None
        self.ticks: dict[int, ObservedTick] = {}
        self.leader = ""
        self.standbys: list[str] = []
        self.disabled: dict[str, str] = {}
        self.ended: list[str] = []
        #: Where the console is; empty until it is there.
        self.link = ""

    def look(self, connection: Connection, children: Children) -> None:
        """Reads what is new. Raises `PgbeatError` if the demo can't continue."""
        self.ended = children.check()
        self.link = self.link or children.link()
        try:
            self.since = self.since or connection.scalar(text("SELECT now()"))
            ticks = [
                ObservedTick(*row) for row in connection.execute(_TICKS, {"since": self.since})
            ]
            holders = advisory_locks.holders(connection, LOCK_KEY)
            self.disabled = dict(connection.execute(_DISABLED).tuples().all())
        except DBAPIError as error:
            raise PgbeatError(f"Postgres has ended: {error.orig}") from None
        self.ticks.update((tick.id, tick) for tick in reversed(ticks))
        names = {str(child.pid): name for name, child in children.running.items()}
        beats = []
        for holder in holders:
            pid = holder.application_name.rpartition(":")[2]
            beats.append((holder.leads, f"{names.get(pid, 'a beat')} (process {pid})"))
        self.leader = next((name for leads, name in beats if leads), "")
        self.standbys = [name for leads, name in beats if not leads]
        if self.leader and self.led_since is None:
            self.led_since = time.monotonic()

    def is_over(self, seconds: float | None) -> bool:
        """Returns whether a beat has led for that long, or none has led for far too long."""
        if seconds is None:
            return False
        begun = self.begun + _START_UP if self.led_since is None else self.led_since
        return time.monotonic() >= begun + seconds

    def summary(self) -> str:
        """Returns how many ticks and jobs there were, on one line."""
        outcomes = Counter(tick.outcome for tick in self.ticks.values())
        states = Counter(tick.state for tick in self.ticks.values() if tick.state)
        ticks = ", ".join(f"{outcomes[name]} {name}" for name in ("launched", "skipped", "failed"))
        jobs = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
        return f"Ticks: {ticks}. Jobs: {jobs or 'none'}."

    def missing(self) -> list[str]:
        """Returns the events of a full demonstration that this one has not shown."""
        seen = {tick.outcome for tick in self.ticks.values()}
        missing = [
            f"a {name} tick" for name in ("launched", "skipped", "failed") if name not in seen
        ]
        if all(tick.state != "completed" for tick in self.ticks.values()):
            missing.append("a completed job")
        return missing
