"""Wall times made of days and times of day, looked up and counted rather than iterated over."""

from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import lru_cache
from typing import Protocol

_LAST_DAY = date.max.toordinal()
#: Days after which the calendar repeats itself: 400 years.
CYCLE = 146_097


class DaySet(ABC):
    """A set of days, as ordinals of the calendar, in pages (months or years)."""

    #: How many days to look ahead, or back.
    reach = CYCLE

    @abstractmethod
    def page_of(self, day: int) -> int:
        """Returns the number of the page that a day is on."""

    @abstractmethod
    def page(self, number: int) -> tuple[int, Sequence[int]]:
        """Returns a page's first day, and the days of the set as offsets from it, in order."""

    def on_or_after(self, day: int) -> int | None:
        """Returns the first day of the set that is not before another, if any."""
        if day > _LAST_DAY:
            return None
        for number in range(self.page_of(day), self.page_of(min(day + self.reach, _LAST_DAY)) + 1):
            first, days = self.page(number)
            index = bisect_left(days, day - first)
            if index < len(days):
                return first + days[index]
        return None

    def on_or_before(self, day: int) -> int | None:
        """Returns the last day of the set that is not after another, if any."""
        if day < 1:
            return None
        for number in range(self.page_of(day), self.page_of(max(day - self.reach, 1)) - 1, -1):
            first, days = self.page(number)
            index = bisect_right(days, day - first)
            if index:
                return first + days[index - 1]
        return None

    def between(self, first: int, last: int) -> list[int]:
        """Returns the days of the set from `first` to `last`, both included."""
        result: list[int] = []
        if first <= last:
            for number in range(self.page_of(first), self.page_of(last) + 1):
                start, days = self.page(number)
                result += [start + day for day in days if first <= start + day <= last]
        return result

    def count(self, first: int, last: int) -> int:
        """Returns how many days of the set there are from `first` to `last`, both included."""
        if first > last:
            return 0
        total = 0
        for number in range(self.page_of(first), self.page_of(last) + 1):
            start, days = self.page(number)
            total += bisect_right(days, last - start) - bisect_left(days, first - start)
        return total


class Times(Protocol):
    """Times of day, in seconds from midnight, in order."""

    def __len__(self) -> int: ...

    def at(self, index: int) -> int:
        """Returns the time at an index."""

    def rank(self, second: int) -> int:
        """Returns how many times there are up to and including a second of the day."""


@dataclass(frozen=True, slots=True)
class EachOf:
    """Each of the hours, at each of the minutes, at each of the seconds."""

    hours: Sequence[int]
    minutes: Sequence[int]
    seconds: Sequence[int]

    def __len__(self) -> int:
        return len(self.hours) * len(self.minutes) * len(self.seconds)

    def at(self, index: int) -> int:
        """Returns the time at an index."""
        index, second = divmod(index, len(self.seconds))
        hour, minute = divmod(index, len(self.minutes))
        return self.hours[hour] * 3600 + self.minutes[minute] * 60 + self.seconds[second]

    def rank(self, second: int) -> int:
        """Returns how many times there are up to and including a second of the day."""
        minute, second = divmod(second, 60)
        hour, minute = divmod(minute, 60)
        hours = bisect_left(self.hours, hour)
        total = hours * len(self.minutes)
        if hours < len(self.hours) and self.hours[hours] == hour:
            minutes = bisect_left(self.minutes, minute)
            total += minutes
            if minutes < len(self.minutes) and self.minutes[minutes] == minute:
                return total * len(self.seconds) + bisect_right(self.seconds, second)
        return total * len(self.seconds)


@dataclass(frozen=True, slots=True)
class Listed:
    """Times of day, one by one."""

    seconds: Sequence[int]

    def __len__(self) -> int:
        return len(self.seconds)

    def at(self, index: int) -> int:
        """Returns the time at an index."""
        return self.seconds[index]

    def rank(self, second: int) -> int:
        """Returns how many times there are up to and including a second of the day."""
        return bisect_right(self.seconds, second)


class Daily(ABC):
    """Wall times that are counted by whole days, and by the times of the first and the last day."""

    @abstractmethod
    def count_between(self, first: int, last: int) -> int:
        """Returns how many there are on the days from `first` to `last`, both included."""

    @abstractmethod
    def _rank(self, day: int, second: int) -> int:
        """Returns how many there are on a day up to and including a second of it."""

    def count(self, after: datetime, until: datetime) -> int:
        """Returns how many there are in (after, until]: whole days by arithmetic."""
        if until <= after:
            return 0
        first, last = after.toordinal(), until.toordinal()
        return (
            self.count_between(first, last - 1)
            - self._rank(first, _second(after))
            + self._rank(last, _second(until))
        )


class DaysAndTimes(Daily):
    """Wall times at the same times of day on each day of a set."""

    #: For how many days to look for a time.
    reach = CYCLE

    def __init__(self, days: DaySet, times: Times) -> None:
        self._days, self._times = days, times

    def times_of(self, day: int) -> Times:
        """Returns the times on one of the days."""
        return self._times

    def count_between(self, first: int, last: int) -> int:
        """Returns how many there are on the days from `first` to `last`, both included."""
        return self._days.count(first, last) * len(self._times)

    def next(self, after: datetime) -> datetime | None:
        """Returns the first wall time strictly after another."""
        today = after.toordinal()
        day = self._days.on_or_after(today)
        while day is not None and day - today <= self.reach:
            times = self.times_of(day)
            index = times.rank(_second(after)) if day == today else 0
            if index < len(times):
                return _wall(day, times.at(index))
            day = self._days.on_or_after(day + 1)
        return None

    def last(self, until: datetime) -> datetime | None:
        """Returns the last wall time up to and including another."""
        today = until.toordinal()
        day = self._days.on_or_before(today)
        while day is not None and today - day <= self.reach:
            times = self.times_of(day)
            index = times.rank(_second(until)) if day == today else len(times)
            if index:
                return _wall(day, times.at(index - 1))
            day = self._days.on_or_before(day - 1)
        return None

    def _rank(self, day: int, second: int) -> int:
        return self.times_of(day).rank(second) if self._days.count(day, day) else 0


class Together(Daily):
    """The wall times of several sets of days and times, each of them once.

    Their sets of days have the same pages. The times of a day are the bits of a number.
    """

    def __init__(self, parts: Sequence[tuple[DaySet, EachOf]]) -> None:
        self._parts = parts
        self._walls = [DaysAndTimes(*part) for part in parts]

    def next(self, after: datetime) -> datetime | None:
        """Returns the first wall time strictly after another."""
        times = (wall.next(after) for wall in self._walls)
        return min((time for time in times if time is not None), default=None)

    def last(self, until: datetime) -> datetime | None:
        """Returns the last wall time up to and including another."""
        times = (wall.last(until) for wall in self._walls)
        return max((time for time in times if time is not None), default=None)

    def count_between(self, first: int, last: int) -> int:
        """Returns how many there are on the days from `first` to `last`, both included.

        Pages with the same days are counted once.
        """
        if first > last:
            return 0
        days = self._parts[0][0]
        pages = Counter(
            tuple(_days_of(days, number, first, last) for days, _ in self._parts)
            for number in range(days.page_of(first), days.page_of(last) + 1)
        )
        return sum(self._size(page) * number for page, number in pages.items())

    def _size(self, page: Sequence[Sequence[int]]) -> int:
        """Returns how many there are on a page, given the days of each set."""
        bits_of: defaultdict[int, int] = defaultdict(int)
        for (_, times), days in zip(self._parts, page, strict=True):
            for day in days:
                bits_of[day] |= _bits(times)
        return sum(bits.bit_count() for bits in bits_of.values())

    def _rank(self, day: int, second: int) -> int:
        bits = 0
        for days, times in self._parts:
            if days.count(day, day):
                bits |= _bits(times)
        return (bits & ((2 << second) - 1)).bit_count()


def _days_of(days: DaySet, number: int, first: int, last: int) -> tuple[int, ...]:
    """Returns the days from `first` to `last` that are on a page, as offsets from its first day."""
    start, offsets = days.page(number)
    return tuple(day for day in offsets if first <= start + day <= last)


@lru_cache(maxsize=256)
def _bits(times: EachOf) -> int:
    """Returns the times as bits, of which the lowest is midnight."""
    minute = sum(1 << second for second in times.seconds)
    hour = sum(minute << 60 * number for number in times.minutes)
    return sum(hour << 3600 * number for number in times.hours)


def _second(wall: datetime) -> int:
    return wall.hour * 3600 + wall.minute * 60 + wall.second


def _wall(day: int, second: int) -> datetime:
    return datetime.fromordinal(day) + timedelta(seconds=second)
