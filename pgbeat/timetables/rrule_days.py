"""The days of a recurrence rule, by years, as dateutil finds them, and the times on them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import MAXYEAR, date, datetime
from functools import lru_cache
from itertools import compress, groupby
from math import gcd

from dateutil import rrule as dateutil

from pgbeat.timetables.days import CYCLE, DaysAndTimes, DaySet, Listed, Times
from pgbeat.timetables.rrule_parts import DAILY, MONTHLY, WEEKLY, YEARLY, RuleParts


@dataclass(frozen=True, slots=True)
class RuleDays(DaySet):
    """The days of a rule, apart from its times.

    Rules that differ only in their times, or in a start that makes no difference, are equal and
    share what was found.
    """

    #: DAILY or longer; what repeats within a day counts as DAILY.
    frequency: int
    interval: int
    #: The number of the first year, month, week or day, modulo the interval.
    phase: int
    week_start: int
    months: tuple[int, ...]
    week_numbers: tuple[int, ...]
    year_days: tuple[int, ...]
    month_days: tuple[int, ...]
    weekdays: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, parts: RuleParts, start: datetime) -> "RuleDays":
        """Returns the days of a rule; its start fills in the parts that the rule leaves open."""
        frequency = max(parts.frequency, DAILY)
        interval = parts.interval if parts.frequency >= DAILY else 1
        months, month_days, weekdays = parts.months, parts.month_days, parts.weekdays
        if not (parts.week_numbers or parts.year_days or month_days or weekdays):
            if frequency == YEARLY:
                months, month_days = months or (start.month,), (start.day,)
            elif frequency == MONTHLY:
                month_days = (start.day,)
            elif frequency == WEEKLY:
                weekdays = ((start.weekday(), 0),)
        phase = _period(start.toordinal(), frequency, parts.week_start) % interval
        rest = parts.week_numbers, parts.year_days, month_days, weekdays
        return cls(frequency, interval, phase, parts.week_start, months, *rest)

    @property
    def is_every(self) -> bool:
        """Returns whether every day is one of them."""
        lists = self.months, self.week_numbers, self.year_days, self.month_days, self.weekdays
        return self.frequency == DAILY and self.interval == 1 and not any(lists)

    def page_of(self, day: int) -> int:
        """Returns the year of a day."""
        return date.fromordinal(day).year

    def page(self, number: int) -> tuple[int, Sequence[int]]:
        """Returns the rule's days of a year."""
        return date(number, 1, 1).toordinal(), _days_of_year(self, number)

    def period(self, day: int) -> int:
        """Returns the number of the rule's year, month, week or day that a day is in."""
        return _period(day, self.frequency, self.week_start)


def _period(day: int, frequency: int, week_start: int) -> int:
    if frequency == DAILY:
        return day
    if frequency == WEEKLY:
        return (day - 1 - week_start) // 7
    start = date.fromordinal(day)
    return start.year if frequency == YEARLY else start.year * 12 + start.month


@lru_cache(maxsize=8192)
def _days_of_year(rule: RuleDays, year: int) -> Sequence[int]:
    """Returns the days of a year, from 0.

    One pass of dateutil through the year finds what the rule filters by; the interval then thins
    it out.
    """
    first = date(year, 1, 1).toordinal()
    length = date(year, 12, 31).toordinal() - first + 1
    filters = rule.week_numbers, rule.year_days, rule.month_days, rule.weekdays
    if rule.frequency == YEARLY and year % rule.interval != rule.phase:
        return ()
    if not (rule.months or any(filters)):
        return range((rule.phase - first) % rule.interval, length, rule.interval)
    months = rule.months or tuple(range(1, 13))
    if rule.frequency == MONTHLY and rule.interval > 1:
        months = tuple(m for m in months if (year * 12 + m) % rule.interval == rule.phase)
    if not months:
        return ()
    try:
        days = [
            moment.toordinal() - first for moment in _filtered(rule, year, months, any(filters))
        ]
    except ValueError:  # dateutil on the weeks of the year 1
        return ()
    if rule.frequency in (DAILY, WEEKLY) and rule.interval > 1:
        days = [day for day in days if rule.period(first + day) % rule.interval == rule.phase]
    return tuple(days)


def _filtered(
    rule: RuleDays, year: int, months: tuple[int, ...], has_days: bool
) -> Iterator[datetime]:
    # By the month, a weekday's number is of the month; else of the year.
    by_month = rule.frequency != YEARLY or rule.months
    weekdays = rule.weekdays
    if any(number for _, number in weekdays):
        # For a list such as 2MO,TU dateutil would require a day to be both.
        every_number = range(1, 6) if by_month else range(1, 54)
        weekdays = tuple(
            (day, n) for day, number in weekdays for n in ([number] if number else every_number)
        )
    moments: Iterator[datetime] = iter(
        dateutil.rrule(
            dateutil.YEARLY,
            dtstart=datetime(year, 1, 1),  # noqa: DTZ001
            interval=MAXYEAR,  # just one pass: dateutil checks for the end only when it finds a day
            wkst=rule.week_start,
            bymonth=months if by_month else None,
            byweekno=rule.week_numbers or None,
            byyearday=rule.year_days or None,
            bymonthday=(rule.month_days or None) if has_days else tuple(range(1, 32)),
            byweekday=[dateutil.weekday(day, n or None) for day, n in weekdays] or None,
            byhour=0,
            byminute=0,
            bysecond=0,
        )
    )
    return moments


@dataclass(frozen=True, slots=True)
class ChosenDays(DaySet):
    """The days with a time that BYSETPOS chooses."""

    days: RuleDays
    #: In seconds from midnight.
    times: tuple[int, ...]
    positions: tuple[int, ...]

    def page_of(self, day: int) -> int:
        """Returns the year of a day."""
        return self.days.page_of(day)

    def page(self, number: int) -> tuple[int, Sequence[int]]:
        """Returns the days of a year."""
        first = date(number, 1, 1).toordinal()
        return first, tuple(day - first for day in _chosen(self, number))


@lru_cache(maxsize=4096)
def _chosen(chosen: ChosenDays, year: int) -> dict[int, list[int]]:
    """Returns the chosen times by day.

    They are those at the positions among all times of a period, from 1, or from the end by -1.
    """
    days, times = chosen.days, chosen.times
    first, last = date(year, 1, 1).toordinal(), date(year, 12, 31).toordinal()
    by_day: dict[int, list[int]] = {}
    # A week may begin in the year before, and end in the one after.
    around = days.between(max(1, first - 6), min(date.max.toordinal(), last + 6))
    for _, group in groupby(around, days.period):
        period = list(group)
        size = len(period) * len(times)
        for index in sorted({n - 1 if n > 0 else size + n for n in chosen.positions}):
            if 0 <= index < size and first <= period[index // len(times)] <= last:
                day, time = divmod(index, len(times))
                by_day.setdefault(period[day], []).append(times[time])
    return by_day


class ChosenTimes(DaysAndTimes):
    """The days and times that BYSETPOS chooses."""

    def __init__(self, days: ChosenDays) -> None:
        super().__init__(days, Listed(()))
        self._chosen = days

    def times_of(self, day: int) -> Times:
        """Returns the chosen times on one of the days."""
        return Listed(_chosen(self._chosen, self._chosen.page_of(day))[day])

    def count_between(self, first: int, last: int) -> int:
        """Returns how many there are on the days from `first` to `last`, both included."""
        return sum(len(self.times_of(day)) for day in self._chosen.between(first, last))


@dataclass(frozen=True, slots=True)
class Units:
    """Every `interval` hours, minutes or seconds, restricted to the lists."""

    #: The length of one unit in seconds.
    size: int
    interval: int
    hours: tuple[int, ...]
    minutes: tuple[int, ...]
    seconds: tuple[int, ...]

    @property
    def a_day(self) -> int:
        """Returns how many hours, minutes or seconds there are in a day."""
        return 86_400 // self.size

    @property
    def cycle(self) -> int:
        """Returns after how many days the times of day are the same again."""
        return self.interval // gcd(self.interval, self.a_day)


_NONE = Listed(())


class UnitTimes(DaysAndTimes):
    """Every so many hours, minutes or seconds from a start, on the days of a rule."""

    def __init__(self, days: RuleDays, units: Units, start: datetime) -> None:
        super().__init__(days, _NONE)
        self._is_every = days.is_every
        if days.is_every:
            self.reach = min(units.cycle, CYCLE)
        second = start.hour * 3600 + start.minute * 60 + start.second
        self._units, self._start = units, start.toordinal() * units.a_day + second // units.size

    def times_of(self, day: int) -> Times:
        """Returns the times on one of the days."""
        first = self._first(day)
        return _unit_times(self._units, first) if first < self._units.a_day else _NONE

    def _first(self, day: int) -> int:
        """Returns the number of a day's first unit, which may be of a later day."""
        return (self._start - day * self._units.a_day) % self._units.interval

    def count_between(self, first: int, last: int) -> int:
        """Returns how many there are on the days from `first` to `last`, both included."""
        units, cycle = self._units, self._units.cycle
        if cycle == 1:
            return self._days.count(first, last) * len(self.times_of(first))
        total, days = 0, last - first + 1
        if self._is_every and days > cycle:
            whole, rest = divmod(days, cycle)
            total = (whole - 1) * self.count_between(first, first + cycle - 1)
            first = last - rest - cycle + 1
        among = self._days.between(first, last)
        return total + sum(_number_of_times(units, self._first(day)) for day in among)


@lru_cache(maxsize=64)
def _is_listed(units: Units) -> bytes:
    """Returns 1 for each unit of a day that the lists have, and 0 for the others."""
    hours, minutes = units.hours or range(24), units.minutes or range(60)
    seconds = units.seconds or range(60)
    return bytes(
        start // 3600 in hours
        and (units.size == 3600 or start // 60 % 60 in minutes)
        and (units.size > 1 or start % 60 in seconds)
        for start in range(0, 86_400, units.size)
    )


@lru_cache(maxsize=64)
def _within(units: Units) -> Sequence[int]:
    """Returns the times within a unit, in seconds from its start."""
    return [
        minute * 60 + second
        for minute in ((units.minutes or range(60)) if units.size == 3600 else (0,))
        for second in ((units.seconds or range(60)) if units.size >= 60 else (0,))
    ]


@lru_cache(maxsize=16_384)
def _number_of_times(units: Units, first: int) -> int:
    return _is_listed(units)[first :: units.interval].count(1) * len(_within(units))


@lru_cache(maxsize=64)
def _unit_times(units: Units, first: int) -> Listed:
    """Returns the times of a day whose first unit has the number `first`."""
    starts = range(first * units.size, 86_400, units.interval * units.size)
    listed = _is_listed(units)[first :: units.interval]
    within = _within(units)
    return Listed([start + offset for start in compress(starts, listed) for offset in within])
