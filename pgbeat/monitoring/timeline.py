"""Draws up the timeline: what each schedule did in a span, what it does, and what is due next.

What is shown of a schedule is bounded, whatever its history: its newest `MOST` executions and
ticks, which are added up by steps of the span in the database.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Literal, NamedTuple
from uuid import UUID

from sqlalchemy import Connection, text

from pgbeat.database import sql
from pgbeat.errors import InvalidInput, PgbeatError
from pgbeat.monitoring import timeline_schedules
from pgbeat.monitoring.schedule_health import Health
from pgbeat.schedules.calendars import model as calendars
from pgbeat.schedules.calendars.model import Calendar
from pgbeat.schedules.forecast import exclusion, is_certain, upcoming
from pgbeat.schedules.model import Schedule

#: The spans to choose from; three quarters of each are past.
SPANS = {"1h": timedelta(hours=1), "1d": timedelta(days=1), "1w": timedelta(weeks=1)}
USUAL = "1h"
#: Executions, and ticks, of a schedule that are read.
MOST = 300
#: Failed jobs of a schedule that are read.
MOST_FAILURES = 100
#: Steps of a span: what is alike and begins in one of them is one piece.
STEPS = 240
#: Due times to come that are listed of a schedule.
MOST_COMING = 60
#: Schedules that are shown.
ROWS = 20

Kind = Literal["completed", "failed", "running", "waiting", "cancelled", "skipped", "not_launched"]


class Piece(NamedTuple):
    """A run, a job that waits or a decision not to launch; or several of a kind, close together."""

    kind: Kind
    begin: datetime
    #: When the last of them ended; `None` if it still runs, or has no duration.
    end: datetime | None
    number: int
    #: The newest job, and why it failed, or the event that it waits for; of a decision, why it was
    #: made.
    job_id: UUID | None
    said: str | None
    #: The task of the job that failed, which may have been the schedule's only then.
    task: str | None = None


class Coming(NamedTuple):
    """A due time to come."""

    at: datetime
    #: Whether time alone decides that it is launched.
    is_certain: bool
    #: Why it will be skipped, if that is known.
    skip: str | None


class ScheduleTimeline(NamedTuple):
    """A schedule's part of a timeline; before `complete_since` it has only failed jobs."""

    schedule: Schedule
    health: Health
    complete_since: datetime
    pieces: list[Piece]
    coming: list[Coming]
    #: Whether more is due in the span than is listed.
    has_more_coming: bool
    #: Why nothing is known of what comes, such as an invalid timetable.
    trouble: str | None


class Timeline(NamedTuple):
    """Schedules × time; those that fail, are late or run come first."""

    span: str
    since: datetime
    now: datetime
    until: datetime
    rows: list[ScheduleTimeline]
    #: Whether other schedules were left out.
    has_more: bool


def timeline(
    connection: Connection,
    namespace: str,
    timezone: str,
    patience: timedelta,
    *,
    span: str = USUAL,
    search: str | None = None,
    limit: int = ROWS,
) -> Timeline:
    """Returns the timeline of up to `limit` schedules, of those with `search` in their names.

    `timezone` is for schedules that name none; `patience` is for how long a schedule may be due
    while all is well (`beats.patience`). Raises `InvalidInput`.
    """
    if span not in SPANS:
        message = f"span must be one of {', '.join(SPANS)}"
        raise InvalidInput.of("span", "invalid", message)
    now = connection.scalar(text("SELECT now()")).astimezone(UTC)
    length = SPANS[span]
    since, until = now - length * 3 / 4, now + length / 4
    schedules, healths, has_more = timeline_schedules.chosen(
        connection, namespace, patience, since=since, search=search, limit=limit
    )
    ids = [row.id for row in schedules]
    pieces, cut = _pieces(connection, ids, since, now, length / STEPS)
    named = [row.calendar for row in schedules if row.calendar]
    known = calendars.load(connection, named, namespace=namespace) if named else {}
    rows = []
    for row in schedules:
        coming, trouble = _coming(row, known, timezone, now, until)
        has_more_coming = len(coming) > MOST_COMING
        coming = coming[:MOST_COMING]
        rows.append(
            ScheduleTimeline(
                row,
                healths[row.id],
                cut.get(row.id, since),
                pieces[row.id],
                coming,
                has_more_coming,
                trouble,
            )
        )
    return Timeline(span, since, now, until, rows, has_more)


_PIECES = text(sql.load("timeline.sql", "pieces"))
#: Executions by state, and ticks by outcome.
_KINDS: dict[str, Kind] = {
    "completed": "completed",
    "failed": "failed",
    "running": "running",
    "waiting": "waiting",
    "cancelled": "cancelled",
    "skipped": "cancelled",
    "snoozed": "completed",
}
_DECISIONS: dict[str, Kind] = {"skipped": "skipped", "failed": "not_launched"}


def _pieces(
    connection: Connection, ids: Sequence[int], since: datetime, now: datetime, step: timedelta
) -> tuple[dict[int, list[Piece]], dict[int, datetime]]:
    """Returns each schedule's pieces, and from when on they are complete if they were cut."""
    pieces: dict[int, list[Piece]] = {key: [] for key in ids}
    tallies: dict[tuple[int, str], tuple[int, datetime]] = {}
    cut: dict[int, datetime] = {}
    values = {
        "ids": list(ids),
        "since": since,
        "before": since - (now - since),
        "soon": now + timedelta(minutes=1),
        "step": step.total_seconds(),
        "most": MOST,
        "failures": MOST_FAILURES,
    }
    rows = connection.execute(_PIECES, values) if ids else ()
    for key, source, kind, number, begin, until, is_open, job_id, message, task in rows:
        if source in ("run", "tick"):
            count, first = tallies.get((key, source), (0, now))
            tallies[key, source] = count, first = count + number, min(first, begin)
            if count >= MOST:
                cut[key] = max(cut.get(key, since), first)
        known = (_DECISIONS if source == "tick" else _KINDS).get(kind)
        if known is None or (source == "ended" and begin >= cut.get(key, since)):
            continue
        has_length = source in ("run", "before", "job")
        end = None if has_length and is_open else (until if has_length else None) or begin
        pieces[key].append(Piece(known, begin, end, number, job_id, message, task))
    return pieces, cut


def _coming(
    row: Schedule, known: Mapping[str, Calendar], timezone: str, now: datetime, until: datetime
) -> tuple[list[Coming], str | None]:
    """Returns the due times of a schedule before `until`, or why they are unknown.

    There is one more than `MOST_COMING` if there are more.
    """
    if not row.enabled or row.paused_at is not None or row.after is not None:
        return [], None
    try:
        timetable = row.timetable(timezone)
        if timetable is None:  # only the app's code knows more
            return [Coming(row.next_run, is_certain(row), None)] if row.next_run else [], None
        times = upcoming(row, timetable, now, excluded=exclusion(known, row, timezone))
        certain = is_certain(row)
        coming = []
        for due in islice(times, MOST_COMING + 1):
            if due.at >= until:
                break
            coming.append(Coming(due.at, certain, due.skip))
    except PgbeatError as error:
        return [], str(error)
    return coming, None
