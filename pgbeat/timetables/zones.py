"""Time zones: what their clocks show, and when they change."""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from pgbeat.errors import InvalidTimetable
from pgbeat.suggest import did_you_mean

#: The resolution of a datetime.
TICK = timedelta(microseconds=1)
#: The ends of the calendar, as wall times.
EARLIEST = datetime.min  # noqa: DTZ901
LATEST = datetime.max  # noqa: DTZ901
_SECOND = timedelta(seconds=1)
# No zone has changed its clock twice within less than four days (Freetown, September 1939).
_SAMPLE = timedelta(days=2)


@lru_cache(maxsize=1024)
def zone(name: str) -> ZoneInfo:
    """Returns the IANA time zone of that name. Raises `InvalidTimetable`."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        known = available_timezones()
        by_city = {zone.rpartition("/")[2]: zone for zone in sorted(known)}
        city = by_city.get(name.strip().title().replace(" ", "_"))
        hint = f"did you mean {city!r}?" if city else did_you_mean(name, known)
        advice = hint or "use an IANA name, for example 'Europe/Oslo' or 'UTC'"
        message = f"timezone {name!r} is not known; {advice}"
        raise InvalidTimetable.of("timezone", "unknown", message) from None


@dataclass(frozen=True, slots=True)
class ClockChange:
    """A change of a zone's clock, which skips or repeats the wall times in [start, end)."""

    #: The instant, in UTC.
    at: datetime
    #: The offset from UTC until then, and from then on.
    before: timedelta
    after: timedelta

    @property
    def is_gap(self) -> bool:
        """Returns whether the clock goes forward."""
        return self.after > self.before

    @property
    def start(self) -> datetime:
        """Returns the first wall time that is skipped or repeated (naive)."""
        return self.at.replace(tzinfo=None) + min(self.before, self.after)

    @property
    def end(self) -> datetime:
        """Returns the first wall time after those that are skipped or repeated (naive)."""
        return self.at.replace(tzinfo=None) + max(self.before, self.after)


def shown(zone: ZoneInfo, moment: datetime) -> datetime:
    """Returns the wall time of a zone at a moment: naive, with `fold` set the second time.

    At the ends of the calendar, it is the nearest wall time that exists.
    """
    try:
        return moment.astimezone(zone).replace(tzinfo=None)
    except OverflowError:
        return LATEST if moment.year > 1 else EARLIEST


def instant(zone: ZoneInfo, wall: datetime, fold: int = 0) -> datetime:
    """Returns when the zone's clock shows a wall time, in UTC; `fold` is 1 for the second time.

    Raises `OverflowError` beyond the calendar.
    """
    return wall.replace(tzinfo=zone, fold=fold).astimezone(UTC)


def change_at(zone: ZoneInfo, wall: datetime) -> ClockChange | None:
    """Returns the change that skips or repeats a wall time, if any."""
    first, second = zone.utcoffset(wall), zone.utcoffset(wall.replace(fold=1 - wall.fold))
    if first is None or second is None or first == second:
        return None
    moment = wall.replace(microsecond=0, tzinfo=UTC)
    return _change(zone, moment - max(first, second), moment - min(first, second))


def changes(zone: ZoneInfo, after: datetime, until: datetime) -> Iterator[ClockChange]:
    """Yields the changes in (after, until], in order."""
    for year in range(after.astimezone(UTC).year, until.astimezone(UTC).year + 1):
        for change in _changes_of_year(zone, year):
            if after < change.at <= until:
                yield change


@lru_cache(maxsize=4096)
def _changes_of_year(zone: ZoneInfo, year: int) -> tuple[ClockChange, ...]:
    start = datetime(year, 1, 1, tzinfo=UTC)
    end = datetime(year + 1, 1, 1, tzinfo=UTC) if year < 9999 else datetime.max.replace(tzinfo=UTC)
    result = []
    while start < end:
        stop = min(start + _SAMPLE, end) if end - start > _SAMPLE else end
        if change := _change(zone, start, stop):
            result.append(change)
        start = stop
    return tuple(result)


@lru_cache(maxsize=4096)
def _change(zone: ZoneInfo, after: datetime, until: datetime) -> ClockChange | None:
    """Returns the change in (after, until], if there is one; `after` is a whole second."""
    try:
        offset = _offset(zone, after)
        if _offset(zone, until) == offset:
            return None
    except OverflowError:
        return None
    seconds = range((until - after) // _SECOND + 1)
    number = bisect_left(seconds, True, key=lambda n: _offset(zone, after + n * _SECOND) != offset)
    at = after + number * _SECOND
    return ClockChange(at, offset, _offset(zone, at))


def _offset(zone: ZoneInfo, moment: datetime) -> timedelta:
    offset = moment.astimezone(zone).utcoffset()
    assert offset is not None  # noqa: S101 - a ZoneInfo always has one
    return offset
