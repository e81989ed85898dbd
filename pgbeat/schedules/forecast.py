"""The forecast: what will be due when, if beat is on time and nothing is changed meanwhile.

It follows whatever depends on time alone: timetables, windows, jitter, calendars, what is overdue,
`max_runs` and `min_interval`. Whether a condition will hold can't be known, nor how long a job will
run: such due times are uncertain, and nothing is concluded from them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from heapq import merge, nsmallest
from itertools import islice
from typing import NamedTuple

from sqlalchemy import Connection

from pgbeat.errors import PgbeatError
from pgbeat.jobs.preparing import placeholders
from pgbeat.schedules import policies
from pgbeat.schedules.calendars import model as calendars
from pgbeat.schedules.calendars.model import Calendar
from pgbeat.schedules.model import Schedule
from pgbeat.timetables import TICK, Interval, Timetable

#: Due times of a schedule that are followed one by one, at most.
MOST = 100_000
_MINUTE = timedelta(minutes=1)
_DAY = timedelta(days=1)


class Expected(NamedTuple):
    """A future due time."""

    #: When beat decides it.
    at: datetime
    schedule: Schedule
    #: Its time by the timetable, for which calendars are asked.
    due_at: datetime
    #: Why it will be skipped.
    skip: str | None = None
    #: Which other due times it accounts for.
    note: str | None = None


class MinuteLoad(NamedTuple):
    """How many due times a minute has, without skips."""

    minute: datetime
    launches: int
    uncertain: int


@dataclass(slots=True)
class Forecast:
    """What is due from `start` until before `end`."""

    start: datetime
    end: datetime
    #: The first due times, in order.
    times: list[Expected] = field(default_factory=list)
    launches: int = 0
    uncertain: int = 0
    skipped: int = 0
    #: The minutes with due times, in order.
    minutes: list[MinuteLoad] = field(default_factory=list)
    #: Schedules that are launched after another one's jobs.
    after: list[Schedule] = field(default_factory=list)
    #: Why nothing is known of some schedules, by name.
    unknown: dict[str, str] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """Returns how many due times there are."""
        return self.launches + self.uncertain + self.skipped

    @property
    def peak(self) -> MinuteLoad | None:
        """Returns the busiest minute, the first of several."""
        return max(self.minutes, key=lambda load: load.launches + load.uncertain, default=None)

    def within(self, times: Iterable[Expected]) -> Iterator[Expected]:
        """Yields the times within the forecast; they must be in order."""
        for due in times:
            if due.at >= self.end:
                return
            if due.at >= self.start:
                yield due


def is_certain(row: Schedule) -> bool:
    """Returns whether time alone decides that it is launched."""
    is_conditional = row.launcher != "GenericLauncher" or row.condition_sql is not None
    return not is_conditional and row.has_timetable and row.after is None


def upcoming(
    row: Schedule,
    timetable: Timetable,
    now: datetime,
    *,
    since: datetime | None = None,
    excluded: Callable[[datetime], str | None] = lambda moment: None,
) -> Iterator[Expected]:
    """Yields the due times of a schedule from now on, in order, as beat will find them.

    There may be no end of them. Those between now and `since` may be left out. `excluded` returns
    why its calendar excludes a time.
    """
    certain, clock = is_certain(row), now
    if certain and _counts_launches(row) and since and timetable.count(now, since) <= MOST:
        since = None
    runs, launched = row.run_count, row.last_success
    state: Schedule | None = row
    times = _first(row, timetable, now)
    while times is not None and (row.max_runs is None or runs < row.max_runs):
        at, nominal = times
        if state is None and at < clock:  # while the one before it was put off
            state = row._replace(retry_count=0, waiting_for=None, last_run=clock)
        clock = max(clock, at)
        due, asked = policies.Due(nominal, nominal), nominal
        if state is not None:
            due = policies.settle(state._replace(next_run=at, due_at=nominal), timetable, clock)
            asked = policies.retried(row, due.at) if state.retry_count else due.at
            state = None
        skip = due.skip
        if skip is None and row.min_interval is not None:
            skip = policies.too_soon(row._replace(last_success=launched), clock)
        skip = skip or excluded(asked)
        yield Expected(clock, row, due.at, skip, due.note)
        then = due.then
        if certain and skip is None:
            runs, launched = runs + 1, clock
        if since is not None and (jump := since - row.jitter - TICK) > then:
            runs += timetable.count(then, jump) if certain else 0
            then = jump
        moment = timetable.next_after(then)
        times = None if moment is None else (row.jittered(moment), moment)


def _counts_launches(row: Schedule) -> bool:
    """Returns whether what is skipped before a time matters to what is launched after it."""
    return row.min_interval is not None or (row.max_runs is not None and row.calendar is not None)


class Call(NamedTuple):
    """The arguments of a due time's job."""

    #: `None` if they stay in the app's code.
    args: list[object] | None
    kwargs: dict[str, object]


def call(due: Expected, timetable: Timetable, timezone: str) -> Call:
    """Returns the row's arguments for a due time, placeholders filled in.

    A launcher may prepare others. `timezone` is for a row that names none. Raises
    `InvalidPlaceholder`.
    """
    row, at = due.schedule, due.due_at
    if not row.has_placeholders:
        return Call(row.args, row.kwargs)
    trigger = "timetable" if row.after is None else "after"
    if row.retry_count and at == row.next_run:
        trigger = "retry"
    elif policies.is_out_of_turn(row, timetable, at):
        trigger = "manual"
    facts = policies.facts(row, timetable, timezone, trigger, at)
    return Call(
        placeholders.fill(row.args, facts, "args"), placeholders.fill(row.kwargs, facts, "kwargs")
    )


def _first(row: Schedule, timetable: Timetable, now: datetime) -> tuple[datetime, datetime] | None:
    """Returns when it is due next, and the timetable's time for that."""
    if row.next_run is not None:
        return row.next_run, row.due_at or row.next_run
    if (once_at := row.undecided_once) is not None:
        return once_at, once_at  # it may be late: its policies decide
    moment = timetable.next_after(now)
    return None if moment is None else (row.jittered(moment), moment)


def forecast(
    rows: Iterable[Schedule],
    timetable: Callable[[Schedule], Timetable],
    known: Mapping[str, Calendar],
    now: datetime,
    end: datetime,
    *,
    start: datetime | None = None,
    timezone: str = "UTC",
    limit: int | None = None,
) -> Forecast:
    """Returns the due times from `start` (by default, now) until before `end`.

    Rows that are not in service are ignored. `timetable` returns a row's timetable, and may raise;
    `known` are the calendars that rows name; `timezone` is for rows that name none. Everything is
    counted, and the first `limit` due times are listed.
    """
    result = Forecast(start or now, end)
    tally = _Tally(now, result.start, end)
    shared: dict[tuple[Timetable, str | None, str], _Shared] = {}
    listed: list[tuple[datetime, str, Iterator[Expected]]] = []
    for row in rows:
        if not row.enabled or row.paused_at is not None:
            continue
        if row.after is not None:
            result.after.append(row)
        excluded = exclusion(known, row, timezone)
        try:
            times = timetable(row)
            due = times.next_after(now)
            excluded(now)
            expected = partial(upcoming, row, times, now, since=start, excluded=excluded)
            few = None
            if not _is_simple(row, due):
                few = list(islice(result.within(expected()), MOST + 1))
        except PgbeatError as error:
            result.unknown[row.name] = str(error)
            continue
        if _is_too_often(row, times, start or now, end, few):
            result.unknown[row.name] = f"it is due more than {MOST:,} times; give a shorter period"
            continue
        if few is None:
            due = due if start is None else times.next_after(start - TICK)
            if due is not None and due < end:
                zone = (row.timezone or timezone) if row.calendar else ""
                shared.setdefault((times, row.calendar, zone), _Shared(excluded)).add(row)
        else:
            due = tally.add(few, certain=is_certain(row))
        if due is not None and due < end:
            listed.append((due, row.name, result.within(expected())))
    for (times, calendar, _), group in shared.items():
        tally.add_all(times, group, has_calendar=calendar is not None)
    tally.report(result)
    result.times = _merged(listed, limit)
    return result


def _merged(
    listed: list[tuple[datetime, str, Iterator[Expected]]], limit: int | None
) -> list[Expected]:
    """Returns the first due times of schedules, given as first due time, name and all of them."""
    if limit is not None:  # the others come later than these
        listed = nsmallest(limit, listed)
    in_order = merge(*(due for _, _, due in listed), key=lambda due: (due.at, due.schedule.name))
    return list(islice(in_order, limit))


def of_schedule(
    connection: Connection, row: Schedule, timetable: Timetable, now: datetime, timezone: str
) -> Iterator[Expected]:
    """Yields the due times of a schedule from now on, and says which its calendar excludes.

    `timezone` is for a row that names none.
    """
    named = [row.calendar] if row.calendar else []
    known = calendars.load(connection, named, namespace=row.namespace)
    return upcoming(row, timetable, now, excluded=exclusion(known, row, timezone))


def exclusion(
    known: Mapping[str, Calendar], row: Schedule, timezone: str
) -> Callable[[datetime], str | None]:
    """Returns a function that returns why a row's calendar, one of `known`, excludes a time.

    `timezone` is for a row that names none. The function raises what `calendars.exclusion` raises.
    """
    name, zone = row.calendar, row.timezone or timezone
    return lambda moment: calendars.exclusion(known, name, moment, zone)


def _is_simple(row: Schedule, first: datetime | None) -> bool:
    """Returns whether it is due just at its timetable's times, whatever its policies.

    It is then counted together with other schedules of the same timetable.
    """
    return (
        not row.jitter
        and row.min_interval is None
        and row.max_runs is None
        and row.once_at is None
        and row.after is None
        and row.retry_count == 0
        and row.waiting_for is None
        and (row.next_run is None or row.next_run == first)
        and row.has_timetable
    )


def _is_too_often(
    row: Schedule, times: Timetable, begin: datetime, end: datetime, few: list[Expected] | None
) -> bool:
    """Returns whether it has too many due times to ask its policies, or its calendar, about each.

    `few` are those that were followed, if they can't be counted together.
    """
    if few is None:
        return row.calendar is not None and times.count(begin, end) > MOST
    return len(few) > MOST


class _Shared:
    """The number of schedules that are due at the same times."""

    def __init__(self, excluded: Callable[[datetime], str | None]) -> None:
        self.excluded = excluded
        self.certain = self.uncertain = 0

    def add(self, row: Schedule) -> None:
        if is_certain(row):
            self.certain += 1
        else:
            self.uncertain += 1


class _Tally:
    """Counts by minute."""

    def __init__(self, now: datetime, start: datetime, end: datetime) -> None:
        # What counts is between these two, without either.
        self._before, self._end = max(now, start - TICK), end
        self._zero = start.replace(second=0, microsecond=0)
        size = max(0, -((self._zero - end) // _MINUTE))
        self._launches, self._uncertain = [0] * size, [0] * size
        self.skipped = 0

    def add(self, times: Iterable[Expected], *, certain: bool) -> datetime | None:
        """Counts the due times of a schedule; returns the first of them."""
        counts = self._launches if certain else self._uncertain
        zero, first = self._zero, None
        for due in times:
            first = first or due.at
            if due.skip is None:
                counts[(due.at - zero) // _MINUTE] += 1
            else:
                self.skipped += 1
        return first

    def add_all(self, times: Timetable, group: _Shared, *, has_calendar: bool) -> None:
        """Counts the due times that schedules share."""
        minutes: Iterable[tuple[int, int]]
        until = self._end - TICK
        if has_calendar:
            minutes = self._walked(times, group)
        elif isinstance(times, Interval) and times.every >= _MINUTE and times.every % _DAY:
            self._step(times, group)
            return
        elif times.count(self._before, until) > len(self._launches):
            minutes = self._counted(times, until)
        else:
            minutes = self._walked(times, group)
        for minute, number in minutes:
            self._launches[minute] += number * group.certain
            self._uncertain[minute] += number * group.uncertain

    def _walked(self, times: Timetable, group: _Shared) -> Iterator[tuple[int, int]]:
        moment = times.next_after(self._before)
        while moment is not None and moment < self._end:
            if group.excluded(moment) is None:
                yield (moment - self._zero) // _MINUTE, 1
            else:
                self.skipped += group.certain + group.uncertain
            moment = times.next_after(moment)

    def _counted(self, times: Timetable, until: datetime) -> Iterator[tuple[int, int]]:
        """Yields minutes and their counts, for a timetable with several due times a minute."""
        before = self._before
        for minute in range(len(self._launches)):
            stop = min(until, self._zero + (minute + 1) * _MINUTE - TICK)
            yield minute, times.count(before, stop)
            before = stop

    def _step(self, times: Interval, group: _Shared) -> None:
        """Counts elapsed time in whole microseconds: there may be millions of due times."""
        first = times.next_after(self._before)
        if first is None:
            return
        begin, stop = ((moment - self._zero) // TICK for moment in (first, self._end))
        step, minute = times.every // TICK, _MINUTE // TICK
        counted = (self._launches, group.certain), (self._uncertain, group.uncertain)
        for counts, number in counted:
            if number:
                for moment in range(begin, stop, step):
                    counts[moment // minute] += number

    def report(self, forecast: Forecast) -> None:
        """Writes the counts to the forecast."""
        forecast.launches, forecast.uncertain = sum(self._launches), sum(self._uncertain)
        forecast.skipped = self.skipped
        forecast.minutes = [
            MinuteLoad(self._zero + number * _MINUTE, *pair)
            for number, pair in enumerate(zip(self._launches, self._uncertain, strict=True))
            if any(pair)
        ]
