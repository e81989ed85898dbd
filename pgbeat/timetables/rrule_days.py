"""The days of a recurrence rule, by years, as dateutil finds them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import MAXYEAR, date, datetime
from functools import lru_cache
from itertools import groupby
from math import gcd

from dateutil import rrule as dateutil

from pgbeat.timetables.days import CYCLE, Days, DaysAndTimes, Listed, Times
from pgbeat.timetables.rrule_parts import DAILY, MONTHLY, WEEKLY, YEARLY, RuleParts


@dataclass(frozen=True, slots=True)
class RuleDays(Days):
    """The days of a rule, whatever it says of their times. Rules that differ in these alone, or in
    a start that makes no difference, are equal and share what was found."""

    #: DAILY or longer; what repeats within a day is of every day.
    frequency: int
    interval: int
    #: What remains of the number of the first year, month, week or day, divided by the interval.
    phase: int
    week_start: int
    months: tuple[int, ...]
    week_numbers: tuple[int, ...]
    year_days: tuple[int, ...]
    month_days: tuple[int, ...]
    weekdays: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, parts: RuleParts, start: datetime) -> "RuleDays":
        """The days of a rule that starts then, which says what the rule leaves open."""
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
        return cls(
            frequency, interval, phase, parts.week_start, months, parts.week_numbers,
            parts.year_days, month_days, weekdays,
        )  # fmt: skip

    @property
    def is_every(self) -> bool:
        """Whether every day is one of them."""
        lists = self.months, self.week_numbers, self.year_days, self.month_days, self.weekdays
        return self.frequency == DAILY and self.interval == 1 and not any(lists)

    def page_of(self, day: int) -> int:
        """The year of a day."""
        return date.fromordinal(day).year

    def page(self, number: int) -> tuple[int, Sequence[int]]:
        """The rule's days of a year."""
        return date(number, 1, 1).toordinal(), _days_of_year(self, number)

    def period(self, day: int) -> int:
        """The number of the rule's year, month, week or day that a day is in."""
        return _period(day, self.frequency, self.week_start)


def _period(day: int, frequency: int, week_start: int) -> int:
    if frequency == DAILY:
        return day
    if frequency == WEEKLY:
        return (day - 1 - week_start) // 7
    found = date.fromordinal(day)
    return found.year if frequency == YEARLY else found.year * 12 + found.month


@lru_cache(maxsize=8192)
def _days_of_year(rule: RuleDays, year: int) -> Sequence[int]:
    """The days, from 0: one pass of dateutil through the year, for what the rule filters by, and
    of those the ones that its interval leaves."""
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
        # dateutil would want a day to be both, where a list has 2MO and TU.
        each = range(1, 6) if by_month else range(1, 54)
        weekdays = tuple(
            (day, n) for day, number in weekdays for n in ([number] if number else each)
        )
    found: Iterator[datetime] = iter(
        dateutil.rrule(
            dateutil.YEARLY,
            dtstart=datetime(year, 1, 1),  # noqa: DTZ001
            interval=MAXYEAR,  # one pass: dateutil looks at its end only where it finds a day
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
    return found


@dataclass(frozen=True, slots=True)
class ChosenDays(Days):
    """The days on which BYSETPOS leaves a time."""

    days: RuleDays
    #: In seconds from midnight.
    times: tuple[int, ...]
    positions: tuple[int, ...]

    def page_of(self, day: int) -> int:
        """The year of a day."""
        return self.days.page_of(day)

    def page(self, number: int) -> tuple[int, Sequence[int]]:
        """The days of a year."""
        first = date(number, 1, 1).toordinal()
        return first, tuple(day - first for day in _chosen(self, number))


@lru_cache(maxsize=4096)
def _chosen(chosen: ChosenDays, year: int) -> dict[int, list[int]]:
    """The times that are left, by day: those of the positions among all of a period, counted from
    1 or from the end by -1."""
    days, times = chosen.days, chosen.times
    first, last = date(year, 1, 1).toordinal(), date(year, 12, 31).toordinal()
    found: dict[int, list[int]] = {}
    # A week may begin in the year before, and end in the one after.
    around = days.between(max(1, first - 6), min(date.max.toordinal(), last + 6))
    for _, group in groupby(around, days.period):
        period = list(group)
        size = len(period) * len(times)
        for index in sorted({n - 1 if n > 0 else size + n for n in chosen.positions}):
            if 0 <= index < size and first <= period[index // len(times)] <= last:
                day, time = divmod(index, len(times))
                found.setdefault(period[day], []).append(times[time])
    return found


class ChosenTimes(DaysAndTimes):
    """What BYSETPOS leaves of days and times."""

    def __init__(self, days: ChosenDays) -> None:
        super().__init__(days, Listed(()))
        self._chosen = days

    def times_of(self, day: int) -> Times:
        """The times that are left on one of the days."""
        return Listed(_chosen(self._chosen, self._chosen.page_of(day))[day])

    def count_between(self, first: int, last: int) -> int:
        """How many there are on the days from one to another, both included."""
        return sum(len(self.times_of(day)) for day in self._chosen.between(first, last))


@dataclass(frozen=True, slots=True)
class Units:
    """Every so many hours, minutes or seconds, those among them that are in the lists."""

    #: The length of one, in seconds, and how many from one to the next.
    size: int
    interval: int
    hours: tuple[int, ...]
    minutes: tuple[int, ...]
    seconds: tuple[int, ...]

    @property
    def a_day(self) -> int:
        """How many hours, minutes or seconds there are in a day."""
        return 86_400 // self.size

    @property
    def cycle(self) -> int:
        """After how many days the times of day are the same again."""
        return self.interval // gcd(self.interval, self.a_day)


class UnitTimes(DaysAndTimes):
    """Every so many hours, minutes or seconds from a start, on some days."""

    def __init__(self, days: RuleDays, units: Units, start: datetime) -> None:
        super().__init__(days, Listed(()))
        self._is_every = days.is_every
        # Where the times differ from day to day, and the days have their own order, anything may
        # be until the calendar repeats itself.
        self.looks = 1 + (units.cycle if days.is_every or units.cycle == 1 else CYCLE)
        second = start.hour * 3600 + start.minute * 60 + start.second
        self._units, self._start = units, start.toordinal() * units.a_day + second // units.size

    def times_of(self, day: int) -> Times:
        """The times on one of the days."""
        units = self._units
        return _unit_times(units, (self._start - day * units.a_day) % units.interval)

    def count_between(self, first: int, last: int) -> int:
        """How many there are on the days from one to another, both included."""
        cycle = self._units.cycle
        if cycle == 1:
            return self._days.count(first, last) * len(self.times_of(first))
        total, days = 0, last - first + 1
        if self._is_every and days > cycle:
            whole, rest = divmod(days, cycle)
            total = (whole - 1) * self.count_between(first, first + cycle - 1)
            first = last - rest - cycle + 1
        return total + sum(len(self.times_of(day)) for day in self._days.between(first, last))


@lru_cache(maxsize=64)
def _unit_times(units: Units, first: int) -> Listed:
    """The times of a day on which the first of the units is that."""
    starts = range(first * units.size, 86_400, units.interval * units.size)
    if units.size == 1 and not (units.hours or units.minutes or units.seconds):
        return Listed(starts)
    within = [
        minute * 60 + second
        for minute in ((units.minutes or range(60)) if units.size == 3600 else (0,))
        for second in ((units.seconds or range(60)) if units.size >= 60 else (0,))
    ]
    found = [start + offset for start in starts for offset in within]
    return Listed([second for second in found if _is_in(units, second)])


def _is_in(units: Units, second: int) -> bool:
    return (
        (not units.hours or second // 3600 in units.hours)
        and (not units.minutes or second // 60 % 60 in units.minutes)
        and (not units.seconds or second % 60 in units.seconds)
    )
