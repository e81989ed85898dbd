"""Schedulers on a clock that the tests set, schedules for them, and what they decided."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from pgbeat.beat import scheduler as beat
from pgbeat.schedules.ticks import Tick
from pgbeat.testing import Scheduler
from tests.support.rows import Sql, make_schedule

#: Makes schedulers at a time; `START` unless told otherwise.
At = Callable[..., Scheduler]
#: Makes schedulers of the test's app, on the real clock.
Beat = Callable[..., beat.Scheduler]

#: A Monday.
START = datetime(2030, 1, 7, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


#: Adds a schedule of each hour, on the hour, unless told otherwise.
add = partial(make_schedule, starts_at=START - 24 * HOUR)


def row(sql: Sql, columns: str, name: str = "s") -> tuple[Any, ...]:
    """Returns columns of a schedule."""
    [found] = sql(f"SELECT {columns} FROM pgbeat.schedules WHERE name = %s", name)
    return found


def end(sql: Sql, state: str = "completed", job: Any = None) -> None:
    """Ends a job, or all, as a worker records it."""
    sql(
        "UPDATE pgbeat.jobs SET state = %s, finished_at = now() WHERE id = coalesce(%s, id) "
        "AND state IN ('pending', 'running')",
        state,
        job,
    )


def hours(ticks: list[Tick]) -> list[float]:
    """Returns due times of ticks, as hours after the start."""
    return [(tick.due_at - START) / HOUR for tick in ticks]


def said(ticks: list[Tick]) -> list[tuple[str, int]]:
    """Returns outcomes, each with the number of due times that were missed."""
    return [(tick.outcome, tick.missed) for tick in ticks]


def down(scheduler: Scheduler, length: str) -> list[Tick]:
    """Returns what the scheduler decides after it was down for so long."""
    scheduler.run_due()
    del scheduler.ticks[:]
    scheduler.advance(length)
    scheduler.run_due()
    return scheduler.ticks
