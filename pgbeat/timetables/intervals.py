"""Intervals, counted from an anchor."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pgbeat.errors import InvalidTimetable
from pgbeat.timetables.clocks import Fixed
from pgbeat.timetables.zones import TICK, shown, zone

_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Interval:
    """A fixed interval, counted from an anchor, so that it neither drifts nor restarts.

    A whole number of days follows the zone's calendar: it keeps the anchor's time of day, and
    treats clock changes as `Cron` does for a fixed time. Anything else is elapsed time.
    """

    every: timedelta
    #: The first due time.
    anchor: datetime
    timezone: str = "UTC"

    def __post_init__(self) -> None:
        if self.every <= timedelta(0):
            raise InvalidTimetable.of(
                "every", "out_of_range", f"every is {self.every}; it must be longer than nothing"
            )
        zone(self.timezone)

    def next_after(self, moment: datetime) -> datetime | None:
        """Returns the next whole number of intervals after the anchor."""
        if moment < self.anchor:
            return self.anchor.astimezone(UTC)
        if days := self._days():
            return days.next_after(moment)
        return _plus(self.anchor, ((moment - self.anchor) // self.every + 1) * self.every)

    def previous(self, moment: datetime) -> datetime | None:
        """Returns the last whole number of intervals after the anchor."""
        if moment <= self.anchor:
            return None
        if days := self._days():
            latest = days.previous(moment)
            return None if latest is None else max(latest, self.anchor.astimezone(UTC))
        return _plus(self.anchor, (moment - TICK - self.anchor) // self.every * self.every)

    def count(self, after: datetime, until: datetime) -> int:
        """Returns how many are in (after, until]."""
        if until <= after or until < self.anchor:
            return 0
        if after < self.anchor:
            return 1 + self.count(self.anchor, until)
        if days := self._days():
            return days.count(after, until)
        return (until - self.anchor) // self.every - (after - self.anchor) // self.every

    def _days(self) -> Fixed | None:
        """Returns the interval as wall times if it is whole days and the clock may change."""
        if self.timezone == "UTC" or self.every < _DAY:
            return None
        days, rest = divmod(self.every, _DAY)
        if rest:
            return None
        where = zone(self.timezone)
        return Fixed(_EveryDays(shown(where, self.anchor), days), where)


def _plus(moment: datetime, length: timedelta) -> datetime | None:
    try:
        return moment.astimezone(UTC) + length
    except OverflowError:
        return None


@dataclass(frozen=True, slots=True)
class _EveryDays:
    """A wall time, repeated after every `days` days."""

    start: datetime
    days: int

    def next(self, after: datetime) -> datetime | None:
        return self._at(max(0, self._number(after) + 1))

    def last(self, until: datetime) -> datetime | None:
        number = self._number(until)
        return self._at(number) if number >= 0 else None

    def count(self, after: datetime, until: datetime) -> int:
        return max(0, max(-1, self._number(until)) - max(-1, self._number(after)))

    def _number(self, wall: datetime) -> int:
        return (wall - self.start) // timedelta(days=self.days)

    def _at(self, number: int) -> datetime | None:
        try:
            return self.start + timedelta(days=number * self.days)
        except OverflowError:
            return None
