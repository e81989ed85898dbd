"""Launches past due times that no tick launched, oldest first."""

from collections.abc import Generator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import NamedTuple

from celery import Celery
from sqlalchemy import Connection, text

from pgbeat.beat.enqueuer import Note
from pgbeat.beat.evaluation import Decision
from pgbeat.beat.manual import attempts, deciding
from pgbeat.config import Settings
from pgbeat.errors import InvalidSchedule
from pgbeat.schedules.calendars import Calendar
from pgbeat.schedules.forecast import exclusion
from pgbeat.schedules.model import Schedule
from pgbeat.timetables import Timetable

#: Due times of a period, at most.
MOST = 1_000_000
#: Attempts to decide a schedule that changes meanwhile.
_TRIES = 5
_INSTANT = timedelta(microseconds=1)
#: Before it, some zone's clock shows no date.
_EARLIEST = datetime(1, 1, 3, tzinfo=UTC)


class Gaps(NamedTuple):
    """The due times of a period in the past."""

    #: Those that were not launched, oldest first.
    times: list[datetime]
    #: How many were launched, are excluded by the calendar, and are still for beat to decide.
    launched: int
    excluded: int
    pending: int


def due_times(row: Schedule, default_timezone: str) -> Timetable:
    """Returns the timetable by which a schedule was due.

    Raises `InvalidSchedule` for one that has no times of its own.
    """
    if row.after is not None:
        raise InvalidSchedule.of(
            "",
            "no_times",
            f"schedule {row.name!r} comes after {row.after} and has no times of its own",
        )
    timetable = row.timetable(default_timezone)
    if timetable is None:
        raise InvalidSchedule.of(
            "",
            "no_times",
            f"schedule {row.name!r} has its timetable in the app's code, which doesn't tell when "
            "it was due",
        )
    return timetable


def gaps(
    connection: Connection,
    row: Schedule,
    timetable: Timetable,
    known: Mapping[str, Calendar],
    start: datetime,
    end: datetime,
    *,
    timezone: str = "UTC",
    most: int = MOST,
) -> Gaps:
    """Returns which of a schedule's due times from `start` to `end`, inclusive, were not launched.

    A due time was launched if its tick was, or that of a retry after it failed. It is pending if
    beat has still to decide it, by the catch-up policy or by a retry. Raises `InvalidSchedule` for
    more due times than `most`, and for an invalid calendar.
    """
    start = max(start, _EARLIEST)
    total = timetable.count(start - _INSTANT, end)
    if total > most:
        raise InvalidSchedule.of(
            "start",
            "out_of_range",
            f"schedule {row.name!r} was due {total:,} times then, more than the {most:,} that are "
            "looked at; give a shorter period",
        )
    launched = _launched(connection, row, start, end)
    excluded = exclusion(known, row, timezone)
    undecided = _undecided(row)
    times: list[datetime] = []
    before = left_out = pending = 0
    moment = timetable.next_after(start - _INSTANT)
    while moment is not None and moment <= end:
        is_launched = launched.get(moment, False)
        if is_launched:
            before += 1
        elif is_launched is None or (undecided is not None and moment >= undecided):
            pending += 1
        elif excluded(moment) is not None:
            left_out += 1
        else:
            times.append(moment)
        moment = timetable.next_after(moment)
    return Gaps(times, before, left_out, pending)


def _undecided(row: Schedule) -> datetime | None:
    """Returns the first due time that beat has still to decide; `None` if there is none."""
    if not row.enabled or row.paused_at is not None:
        return None
    if row.next_run is None and row.once_at is not None and row.last_run is None:
        return row.once_at
    return row.due_at or row.next_run


# A failed due time is launched when the first decision after its retries is a launch; while none
# has been made, that is open (NULL), if the schedule is in retry.
_LAUNCHED = text(
    """
    SELECT t.due_at, true FROM pgbeat.ticks t
     WHERE t.schedule_id = :schedule AND t.due_at BETWEEN :start AND :end
       AND t.outcome = 'launched' AND t.trigger <> 'manual'
     UNION ALL
    SELECT f.due_at, CASE WHEN n.outcome IS NOT NULL THEN n.trigger = 'retry'
                               AND n.outcome = 'launched'
                          WHEN :retrying THEN NULL ELSE false END
      FROM pgbeat.ticks f LEFT JOIN LATERAL (
           SELECT n.outcome, n.trigger FROM pgbeat.ticks n
            WHERE n.schedule_id = f.schedule_id AND n.due_at > f.due_at
              AND (n.trigger = 'timetable' OR n.trigger = 'retry' AND n.outcome <> 'failed')
            ORDER BY n.due_at LIMIT 1) n ON true
     WHERE f.schedule_id = :schedule AND f.due_at BETWEEN :start AND :end
       AND f.outcome = 'failed' AND f.trigger = 'timetable'
    """
)


def _launched(
    connection: Connection, row: Schedule, start: datetime, end: datetime
) -> dict[datetime, bool | None]:
    """Returns due times: launched (`True`), failed (`False`), or to be retried (`None`)."""
    retrying = row.enabled and row.paused_at is None and row.retry_count > 0
    values = {"schedule": row.id, "start": start, "end": end, "retrying": retrying}
    found: dict[datetime, bool | None] = {}
    for due_at, is_launched in connection.execute(_LAUNCHED, values):
        found[due_at] = found.get(due_at) or is_launched
    return found


# What a backfill decided before, if it didn't launch: a due time has one decision of each kind.
_FORGET = text(
    """
    DELETE FROM pgbeat.ticks WHERE schedule_id = :schedule AND due_at = :due_at
       AND trigger = 'backfill' AND outcome <> 'launched'
    """
)


def backfill(
    connection: Connection,
    app: Celery,
    settings: Settings,
    name: str,
    times: Sequence[datetime],
    *,
    job_source: str,
    created_by: str,
    note: Note | None = None,
) -> Generator[Decision, None, None]:
    """Decides due times of a schedule in the order given, a transaction and a decision for each.

    Each is decided when the generator is asked for it. Conditions are evaluated as things are now,
    with `due_at` of then. The schedule's run state stays, and so does what was launched meanwhile.
    `connection` is in autocommit mode; `note` is as for `manual.trigger`. Raises `NotFound`, and
    `Busy` for a schedule that keeps changing.
    """
    with deciding(connection, app, settings, note) as decider:
        for due_at in times:
            for row in attempts(connection, name, settings.namespace, _TRIES):
                if _launched(connection, row, due_at, due_at).get(due_at):
                    break
                decision = decider.decide(
                    row, "backfill", due_at, job_source=job_source, created_by=created_by,
                    before_commit=partial(
                        connection.execute, _FORGET, {"schedule": row.id, "due_at": due_at}
                    ),
                )  # fmt: skip
                if decision is not None:
                    yield decision
                    break
