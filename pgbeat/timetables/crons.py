"""Cron expressions: when they are due."""

from calendar import monthrange
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import lru_cache

from croniter import croniter

from pgbeat.timetables.clocks import Both, Elapsed, Fixed, Wall
from pgbeat.timetables.cron_fields import LAST, CronFields, check_cron, cron_lines, parse_cron
from pgbeat.timetables.days import DaysAndTimes, DaySet, EachOf, Together
from pgbeat.timetables.timetable import Timetable
from pgbeat.timetables.zones import zone


@dataclass(frozen=True, slots=True)
class Cron:
    """A cron expression in a time zone, or several, each on its own line.

    One has five fields (minute hour day month weekday), six with seconds last, or is a name such as
    `@daily`. A time that several share comes once. Two rules are those of cron(8):

    Day and weekday, if both are given, match when either does; if one of them begins with `*`,
    both must match. When clocks go forward, times in the gap come right after it. When they go
    back, a fixed time comes once, and one whose minute or hour begins with `*` in both hours.
    """

    expression: str
    timezone: str = "UTC"

    def next_after(self, moment: datetime) -> datetime | None:
        """Returns the next match, cached: schedules often share an expression and a moment."""
        return _next(self.expression, self.timezone, moment)

    def previous(self, moment: datetime) -> datetime | None:
        """Returns the last match, cached as the next one is."""
        return _previous(self.expression, self.timezone, moment)

    def count(self, after: datetime, until: datetime) -> int:
        """Returns how many matches are in (after, until]."""
        return _clock(self.expression, self.timezone).count(after, until)


@lru_cache(maxsize=16_384)
def cron(expression: str, timezone: str) -> Cron:
    """Returns the timetable of an expression, or of several, each on its own line.

    Raises `InvalidTimetable`.
    """
    zone(timezone)
    check_cron(expression)
    return Cron("\n".join(cron_lines(expression)), timezone)


@lru_cache(maxsize=4096)
def _next(expression: str, timezone: str, moment: datetime) -> datetime | None:
    return _clock(expression, timezone).next_after(moment)


@lru_cache(maxsize=4096)
def _previous(expression: str, timezone: str, moment: datetime) -> datetime | None:
    return _clock(expression, timezone).previous(moment)


@lru_cache(maxsize=16_384)
def _clock(expression: str, timezone: str) -> Timetable:
    where = zone(timezone)
    lines = [parse_cron(line) for line in cron_lines(expression)]
    repeating = [line for line in lines if line.repeats]
    others = [line for line in lines if not line.repeats]
    if not repeating:
        return Fixed(_wall(lines), where)
    if not others:
        return Elapsed(_wall(lines), where)
    return Both(Fixed(_wall(others), where), Elapsed(_wall(repeating), where), _wall(lines))


def _wall(lines: Sequence[CronFields]) -> Wall:
    parts = [(_CronDays(line), EachOf(line.hours, line.minutes, line.seconds)) for line in lines]
    return DaysAndTimes(*parts[0]) if len(parts) == 1 else Together(parts)


class _CronDays(DaySet):
    """The days that match, by months (year × 12 + month - 1)."""

    #: Every month has begun on every weekday, and February so with 29 days, within 40 years.
    reach = 41 * 366

    def __init__(self, fields: CronFields) -> None:
        self._months = frozenset(fields.months)
        self._both = fields.both
        numbers = [day for day in fields.days if day != LAST]
        self._day = _parts(numbers, 31, ["l"] if LAST in fields.days else [])
        nths = [f"{day}#{n}" if n else f"l{day}" for day, n in fields.nth_weekdays]
        self._weekday = _parts(fields.weekdays, 7, nths)

    def page_of(self, day: int) -> int:
        first = date.fromordinal(day)
        return first.year * 12 + first.month - 1

    def page(self, number: int) -> tuple[int, Sequence[int]]:
        first, weekday, length = _month(number)
        if number % 12 + 1 not in self._months:
            return first, ()
        return first, _matching(self._day, self._weekday, self._both, weekday, length)


@lru_cache(maxsize=8192)
def _month(number: int) -> tuple[int, int, int]:
    """Returns a month's first day, that day's weekday, and the month's length."""
    year, month = divmod(number, 12)
    return date(year, month + 1, 1).toordinal(), *monthrange(year, month + 1)


def _parts(numbers: Sequence[int], size: int, others: Sequence[str]) -> tuple[str, ...]:
    """Returns a field in parts that croniter reads as cron(8) does; none if every day matches."""
    if len(numbers) == size:
        return ()
    return (*([",".join(map(str, numbers))] if numbers else []), *others)


@lru_cache(maxsize=8192)
def _matching(
    day: tuple[str, ...], weekday: tuple[str, ...], both: bool, first: int, length: int
) -> tuple[int, ...]:
    """Returns the days, from 0, that match in a month of this length.

    `first` is the weekday of its first day (0 is Monday).
    """
    every = frozenset(range(length))
    by_day = frozenset().union(*(_found(f"{part} * *", first, length) for part in day))
    by_weekday = frozenset().union(*(_found(f"* * {part}", first, length) for part in weekday))
    by_day, by_weekday = by_day if day else every, by_weekday if weekday else every
    return tuple(sorted(by_day & by_weekday if both else by_day | by_weekday))


#: A month of each kind, by the weekday of its first day (0 is Monday) and its length.
_KINDS = {
    monthrange(year, month): (year, month) for year in range(2001, 2029) for month in range(1, 13)
}


@lru_cache(maxsize=8192)
def _found(fields: str, first: int, length: int) -> frozenset[int]:
    """Returns the days, from 0, that croniter finds in such a month.

    It walks through a month of each kind once, whatever the expression and the zone.
    """
    start = datetime(*_KINDS[first, length], 1)  # noqa: DTZ001
    iterator, days = croniter(f"0 0 {fields}", start - timedelta(minutes=1)), set()
    while (moment := iterator.get_next(datetime)).month == start.month:
        days.add(moment.day - 1)
    return frozenset(days)
