"""Cron expressions: when they are due."""

from calendar import monthrange
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from functools import lru_cache

from pgbeat.timetables.clocks import Elapsed, Fixed
from pgbeat.timetables.cron_fields import LAST, CronFields, parse_cron
from pgbeat.timetables.days import DaysAndTimes, DaySet, EachOf
from pgbeat.timetables.zones import zone


@dataclass(frozen=True, slots=True)
class Cron:
    """A cron expression in a time zone.

    It has five fields (minute hour day month weekday), six with seconds last, or is a name such as
    `@daily`. Two rules are those of cron(8):

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
    """Returns the timetable of a valid expression. Raises `InvalidTimetable`."""
    zone(timezone)
    parse_cron(expression)
    return Cron(expression, timezone)


@lru_cache(maxsize=4096)
def _next(expression: str, timezone: str, moment: datetime) -> datetime | None:
    return _clock(expression, timezone).next_after(moment)


@lru_cache(maxsize=4096)
def _previous(expression: str, timezone: str, moment: datetime) -> datetime | None:
    return _clock(expression, timezone).previous(moment)


@lru_cache(maxsize=16_384)
def _clock(expression: str, timezone: str) -> Elapsed | Fixed:
    fields = parse_cron(expression)
    wall = DaysAndTimes(_CronDays(fields), EachOf(fields.hours, fields.minutes, fields.seconds))
    return (Elapsed if fields.repeats else Fixed)(wall, zone(timezone))


class _CronDays(DaySet):
    """The days that match, by months (year × 12 + month - 1)."""

    #: Every month has begun on every weekday, and February so with 29 days, within 40 years.
    reach = 41 * 366

    def __init__(self, fields: CronFields) -> None:
        self._months = fields.months
        self._days = fields.days, fields.weekdays, fields.nth_weekdays, fields.both

    def page_of(self, day: int) -> int:
        """Returns the month that a day is in."""
        found = date.fromordinal(day)
        return found.year * 12 + found.month - 1

    def page(self, number: int) -> tuple[int, Sequence[int]]:
        """Returns the matching days of a month."""
        year, month = divmod(number, 12)
        first = date(year, month + 1, 1).toordinal()
        if month + 1 not in self._months:
            return first, ()
        return first, _matching(*self._days, *monthrange(year, month + 1))


@lru_cache(maxsize=8192)
def _matching(
    days: Sequence[int],
    weekdays: Sequence[int],
    nth_weekdays: Sequence[tuple[int, int]],
    both: bool,
    first: int,
    length: int,
) -> tuple[int, ...]:
    """Returns the days, from 0, that match in a month of this length.

    `first` is the weekday of its first day (0 is Monday), the others are as in `CronFields`. A
    month of each kind is looked at once, for all expressions with the same days.
    """
    by_day = {length - 1 if day == LAST else day - 1 for day in days}
    by_weekday = set()
    for day in range(length):
        weekday = (first + day + 1) % 7
        numbers = (day // 7 + 1, 0 if day + 7 >= length else None)
        if weekday in weekdays or any((weekday, n) in nth_weekdays for n in numbers):
            by_weekday.add(day)
    found = by_day & by_weekday if both else by_day | by_weekday
    return tuple(sorted(day for day in found if day < length))
