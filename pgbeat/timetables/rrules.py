"""Recurrence rules (RFC 5545): when they are due."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache

from pgbeat.timetables.clocks import Elapsed, Fixed, Wall
from pgbeat.timetables.days import CYCLE, DaysAndTimes, EachOf
from pgbeat.timetables.rrule_days import ChosenDays, ChosenTimes, RuleDays, Units, UnitTimes
from pgbeat.timetables.rrule_parts import DAILY, HOURLY, SECONDLY, RuleParts, parse_rrule
from pgbeat.timetables.timetable import Timetable, bounded
from pgbeat.timetables.zones import LATEST, TICK, shown, zone

_SECOND = timedelta(seconds=1)
#: A COUNT that lasts longer has no effect.
_ENDLESS = timedelta(days=CYCLE)


@dataclass(frozen=True, slots=True)
class RRule:
    """A recurrence rule in the wall time of a zone, from its DTSTART on, or else from the anchor.

    DTSTART fills in what the rule leaves open, as in RFC 5545. An anchor fills in less: a rule with
    only BYHOUR is due at the full hour, one with only BYMINUTE at the full minute.

    Clock changes are as with `Cron`: a rule of days, or with hour and minute given, is a fixed
    time; one that repeats within the day goes by elapsed time. UNTIL is inclusive; as a date, it
    includes the whole day.
    """

    text: str
    anchor: datetime
    timezone: str = "UTC"

    def __post_init__(self) -> None:
        parse_rrule(self.text)
        zone(self.timezone)

    def next_after(self, moment: datetime) -> datetime | None:
        """Returns the next due time of the rule."""
        return _timetable(self.text, self.anchor, self.timezone).next_after(moment)

    def previous(self, moment: datetime) -> datetime | None:
        """Returns the last due time of the rule."""
        return _timetable(self.text, self.anchor, self.timezone).previous(moment)

    def count(self, after: datetime, until: datetime) -> int:
        """Returns how many due times of the rule are in (after, until]."""
        return _timetable(self.text, self.anchor, self.timezone).count(after, until)


@lru_cache(maxsize=4096)
def rrule(text: str, anchor: datetime, timezone: str) -> RRule:
    """Returns the timetable of a valid rule. Raises `InvalidTimetable`."""
    return RRule(text, anchor, timezone)


@lru_cache(maxsize=4096)
def _timetable(text: str, anchor: datetime, timezone: str) -> Timetable:
    parts, where = parse_rrule(text), zone(timezone)
    start = parts.start or anchor
    start = (shown(where, start) if start.tzinfo else start).replace(microsecond=0, fold=0)
    until = parts.until
    hours, minutes, seconds = _times(parts, start)
    wall = _wall(parts, start, hours, minutes, seconds)
    final = until if until and not until.tzinfo else LATEST
    if parts.count is not None:
        final = _last_of(wall, start, parts.count)
    clock = (Fixed if hours and minutes else Elapsed)(_From(wall, start, final), where)
    return bounded(clock, None, until if until and until.tzinfo else None)


def _times(parts: RuleParts, start: datetime) -> tuple[tuple[int, ...], ...]:
    """Returns hours, minutes and seconds of the day; empty for all."""
    hours, minutes, seconds = parts.hours, parts.minutes, parts.seconds
    if parts.start is None:
        if parts.hours:
            start = start.replace(minute=0, second=0)
        elif parts.minutes:
            start = start.replace(second=0)
    if not hours and parts.frequency >= DAILY:
        hours = (start.hour,)
    if not minutes and parts.frequency >= HOURLY:
        minutes = (start.minute,)
    if not seconds and parts.frequency > SECONDLY:
        seconds = (start.second,)
    return hours, minutes, seconds


def _wall(
    parts: RuleParts,
    start: datetime,
    hours: tuple[int, ...],
    minutes: tuple[int, ...],
    seconds: tuple[int, ...],
) -> Wall:
    days = RuleDays.of(parts, start)
    if parts.frequency < DAILY and parts.interval > 1:
        units = Units(60**parts.frequency, parts.interval, hours, minutes, seconds)
        return UnitTimes(days, units, start)
    times = EachOf(hours or range(24), minutes or range(60), seconds or range(60))
    if parts.positions:
        offsets = tuple(times.at(index) for index in range(len(times)))
        return ChosenTimes(ChosenDays(days, offsets, parts.positions))
    return DaysAndTimes(days, times)


@dataclass(frozen=True, slots=True)
class _From:
    """The wall times of a set from `first` to `final`, both included."""

    wall: Wall
    first: datetime
    final: datetime

    def next(self, after: datetime) -> datetime | None:
        wall = self.wall.next(max(after, self.first - TICK))
        return wall if wall is not None and wall <= self.final else None

    def last(self, until: datetime) -> datetime | None:
        wall = self.wall.last(min(until, self.final))
        return wall if wall is not None and wall >= self.first else None

    def count(self, after: datetime, until: datetime) -> int:
        return self.wall.count(max(after, self.first - TICK), min(until, self.final))


def _last_of(wall: Wall, start: datetime, number: int) -> datetime:
    """Returns the n-th wall time from a start on, or any later one before the next."""
    before, length = start - TICK, timedelta(days=1)
    if wall.next(before) is None:
        return LATEST
    low = high = before
    counted = 0
    while (more := wall.count(low, high)) < number - counted:
        if high == LATEST or high - start > _ENDLESS:
            return LATEST
        low, counted = high, counted + more
        high = low + length if LATEST - low > length else LATEST
        length *= 2
    while high - low > _SECOND:  # it is in (low, high]
        middle = low + (high - low) / 2
        more = wall.count(low, middle)
        if more < number - counted:
            low, counted = middle, counted + more
        else:
            high = middle
    return high
