"""Finds past due times that no tick launched."""

from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import Connection, text

from pgbeat.database import sql
from pgbeat.errors import InvalidSchedule
from pgbeat.schedules.calendars import model as calendars
from pgbeat.schedules.forecast import exclusion
from pgbeat.schedules.model import Schedule
from pgbeat.timetables import TICK, Timetable

#: Due times of a period, at most.
MOST = 1_000_000
#: Before it, some zone's clock shows no date.
_EARLIEST = datetime(1, 1, 3, tzinfo=UTC)


@dataclass(slots=True)
class Missed:
    """The due times of a period in the past."""

    #: Those that were not launched, oldest first.
    times: list[datetime]
    #: How many were launched, are excluded by the calendar, and await beat's decision.
    launched: int
    excluded: int
    pending: int


def _due_times(
    row: Schedule, start: datetime, end: datetime, timezone: str, most: int
) -> Timetable:
    """Returns the timetable by which a schedule was due, at most so often in the period."""
    timetable = None if row.after is not None else row.timetable(timezone)
    if timetable is None:
        why = "has its timetable in the app's code, which doesn't say when it was due"
        if row.after is not None:
            why = f"comes after {row.after} and has no times of its own"
        raise InvalidSchedule.of("", "no_times", f"schedule {row.name!r} {why}")
    total = timetable.count(start - TICK, end)
    if total > most:
        raise InvalidSchedule.of(
            "start",
            "out_of_range",
            f"schedule {row.name!r} was due {total:,} times then, more than the {most:,} that are "
            "looked at; give a shorter period",
        )
    return timetable


def check_period(start: datetime, end: datetime, now: datetime) -> None:
    """Raises `InvalidSchedule` unless the period is in the past, and begins before it ends."""
    for name, moment in (("start", start), ("end", end)):
        if moment > now:
            raise InvalidSchedule.of(
                name,
                "out_of_range",
                f"{moment.isoformat()} is in the future; beat launches what is due then",
            )
    if end < start:
        raise InvalidSchedule.of(
            "end", "out_of_range", f"the end, {end.isoformat()}, is before {start.isoformat()}"
        )


def find(
    connection: Connection,
    row: Schedule,
    start: datetime,
    end: datetime,
    *,
    timezone: str = "UTC",
    limit: int = MOST,
    most: int = MOST,
) -> Missed:
    """Returns which of a schedule's due times from `start` to `end`, inclusive, were not launched.

    A due time was launched if its tick was, or that of a retry after it failed. It is pending if
    beat has still to decide it, by the catch-up policy or by a retry. `timezone` is the app's.
    Raises `InvalidSchedule` for more due times than `most`, for more than `limit` that were not
    launched, for a schedule without a timetable, and for an invalid calendar.
    """
    start = max(start, _EARLIEST)
    timetable = _due_times(row, start, end, timezone, most)
    named = [row.calendar] if row.calendar else []
    known = calendars.load(connection, named, namespace=row.namespace)
    total = Missed([], 0, 0, 0)
    launched = _launched(connection, row, start, end)
    excluded = exclusion(known, row, timezone)
    undecided = _undecided(row)
    moment = timetable.next_after(start - TICK)
    while moment is not None and moment <= end:
        is_launched = launched.get(moment, False)
        if is_launched:
            total.launched += 1
        elif is_launched is None or (undecided is not None and moment >= undecided):
            total.pending += 1
        elif excluded(moment) is not None:
            total.excluded += 1
        else:
            total.times.append(moment)
        moment = timetable.next_after(moment)
    if len(total.times) > limit:
        raise InvalidSchedule.of(
            "limit",
            "out_of_range",
            f"{len(total.times):,} due times of schedule {row.name!r} were not launched then, more "
            f"than the limit {limit:,}; raise it, or give a shorter period",
        )
    return total


def _undecided(row: Schedule) -> datetime | None:
    """Returns the first due time that beat has still to decide, if any."""
    if not row.enabled or row.paused_at is not None:
        return None
    return row.due_at or row.next_run or row.undecided_once


_LAUNCHED = text(sql.load("missed.sql", "launched"))


def _launched(
    connection: Connection, row: Schedule, start: datetime, end: datetime
) -> dict[datetime, bool | None]:
    """Returns due times: launched (`True`), failed (`False`), or to be retried (`None`)."""
    retrying = row.enabled and row.paused_at is None and row.retry_count > 0
    values = {"schedule": row.id, "start": start, "end": end, "retrying": retrying}
    launched: dict[datetime, bool | None] = {}
    for due_at, is_launched in connection.execute(_LAUNCHED, values):
        launched[due_at] = launched.get(due_at) or is_launched
    return launched


def is_launched(connection: Connection, row: Schedule, due_at: datetime) -> bool:
    """Returns whether a due time was launched."""
    return bool(_launched(connection, row, due_at, due_at).get(due_at))


_FORGET = text(
    """
    DELETE FROM pgbeat.ticks WHERE schedule_id = :schedule AND due_at = :due_at
       AND trigger = 'backfill' AND outcome <> 'launched'
    """
)


def forget(connection: Connection, row: Schedule, due_at: datetime) -> None:
    """Deletes a backfill's earlier decision on a due time, if it didn't launch.

    A due time has one decision of each kind.
    """
    connection.execute(_FORGET, {"schedule": row.id, "due_at": due_at})
