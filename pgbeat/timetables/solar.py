"""Celery's solar events, computed by ephem."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from math import radians
from typing import Any

from pgbeat.errors import InvalidTimetable

SOLAR_EXAMPLE = 'a solar timetable is "event latitude longitude", for example "sunset 59.91 10.75"'

#: Celery's events and their definitions (`celery.schedules.solar`): the sun's altitude in degrees
#: and minutes, whether it is that of the centre (or of the upper edge), and whether the sun rises
#: (-1), sets (1) or culminates (0).
EVENTS = {
    "dawn_astronomical": ("-18", True, -1),
    "dawn_nautical": ("-12", True, -1),
    "dawn_civil": ("-6", True, -1),
    "sunrise": ("-0:34", False, -1),
    "solar_noon": ("0", False, 0),
    "sunset": ("-0:34", False, 1),
    "dusk_civil": ("-6", True, 1),
    "dusk_nautical": ("-12", True, 1),
    "dusk_astronomical": ("-18", True, 1),
}
# Up to this latitude, less the event's depth below the horizon, it comes every day: the polar
# circles are at 66.
_DAILY_LATITUDE = 65
# At the pole there is one sunrise a year.
_SEARCHED_DAYS = 2 * 366
# Of more, in whole cycles of leap years, the others are taken to be like these.
_COUNTED_DAYS = 4 * 1461


@dataclass(frozen=True, slots=True)
class Solar:
    """An event of the sun at a place, to the second. Needs the extra `pgbeat[solar]`.

    If it doesn't happen on a day (polar day and night), it is due on the next day that has it.
    """

    event: str
    #: Degrees; north and east are positive.
    latitude: float
    longitude: float

    def __post_init__(self) -> None:
        if self.event not in EVENTS:
            message = f"solar event {self.event!r} is not known; there are {', '.join(EVENTS)}"
            raise InvalidTimetable.of("solar", "unknown", message)
        for label, limit in (("latitude", 90), ("longitude", 180)):
            value = getattr(self, label)
            if not -limit <= value <= limit:
                message = f"{label} {value} is not one of -{limit} to {limit} degrees"
                raise InvalidTimetable.of("solar", "out_of_range", message)

    def next_after(self, moment: datetime) -> datetime | None:
        """Returns the next time that it happens; `None` if it doesn't within two years."""
        day = self._day(moment)
        moments = map(self._on, range(day - 1, day + _SEARCHED_DAYS))
        return next((event for event in moments if event and event > moment), None)

    def previous(self, moment: datetime) -> datetime | None:
        """Returns the last time that it happened; `None` if it didn't within two years."""
        day = self._day(moment)
        moments = map(self._on, range(day + 1, day - _SEARCHED_DAYS, -1))
        return next((event for event in moments if event and event < moment), None)

    def count(self, after: datetime, until: datetime) -> int:
        """Returns how often it happens in (after, until]; in more than 16 years, about."""
        if until <= after:
            return 0
        first, last = self._day(after), self._day(until)
        edges = {first - 1, first, first + 1, last - 1, last, last + 1}
        total = sum(1 for event in map(self._on, edges) if event and after < event <= until)
        between = range(first + 2, last - 1)
        if self._is_daily():
            return total + len(between)
        near = between[-_COUNTED_DAYS:]
        found = sum(1 for event in map(self._on, near) if event)
        return total + round(found * len(between) / max(1, len(near)))

    def _day(self, moment: datetime) -> int:
        """Returns the ordinal of the day at the place, by mean solar time."""
        moment = moment.astimezone(UTC)
        hours = moment.hour + moment.minute / 60 + moment.second / 3600 + self.longitude / 15
        return moment.toordinal() + int(hours // 24)

    def _is_daily(self) -> bool:
        height, _, direction = EVENTS[self.event]
        return not direction or abs(self.latitude) <= _DAILY_LATITUDE + float(height.split(":")[0])

    def _on(self, day: int) -> datetime | None:
        return _event(self.event, self.latitude, self.longitude, day)


_NUMBER = re.compile(r"[+-]?[0-9]{1,3}(\.[0-9]{1,15})?")


@lru_cache(maxsize=1024)
def parse_solar(text: str) -> Solar:
    """Returns the timetable of a text such as `sunset 59.91 10.75`. Raises `InvalidTimetable`.

    The database's `pgbeat.solar_problem` checks the same.
    """
    parts = re.findall(r"\S+", text.lower(), re.ASCII)
    problem = _problem(parts)
    if problem:
        message = f"solar {text!r}: {problem}; {SOLAR_EXAMPLE}"
        raise InvalidTimetable.of("solar", "malformed", message)
    event, latitude, longitude = parts
    return Solar(event, float(latitude), float(longitude))


def _problem(parts: list[str]) -> str | None:
    if len(parts) != 3:
        return f"it has {len(parts)} parts, not 3"
    if parts[0] not in EVENTS:
        return f"event {parts[0]!r} is not known; there are {', '.join(EVENTS)}"
    for label, text, limit in (("latitude", parts[1], 90), ("longitude", parts[2], 180)):
        if not (_NUMBER.fullmatch(text) and abs(float(text)) <= limit):
            return f"{label} {text!r} is not a number of degrees from -{limit} to {limit}"
    return None


@lru_cache(maxsize=16_384)
def _event(event: str, latitude: float, longitude: float, day: int) -> datetime | None:
    """Returns when it happens on a day, to the second; `None` if it doesn't.

    The search starts at the day's noon, not at the last event as Celery's does: ephem's answers
    vary by a tenth of a second with the start, and one event must not become two.
    """
    ephem = _ephem()
    height, of_centre, direction = EVENTS[event]
    observer, sun = ephem.Observer(), ephem.Sun()
    observer.lat, observer.lon = radians(latitude), radians(longitude)
    observer.horizon, observer.pressure = height, 0
    try:
        about = datetime.fromordinal(day) + timedelta(hours=12 - longitude / 15)
        noon = observer.next_transit(sun, start=about - timedelta(hours=1))
        if direction < 0:
            date = observer.previous_rising(sun, start=noon, use_center=of_centre)
        elif direction > 0:
            date = observer.next_setting(sun, start=noon, use_center=of_centre)
        else:
            date = noon
        if abs(date - noon) > 0.55:  # days: near the poles it may find another day's event
            return None
        rounded: datetime = date.datetime() + timedelta(seconds=0.5)
    except (ValueError, OverflowError):  # ephem's CircumpolarError; the ends of the calendar
        return None
    return rounded.replace(microsecond=0, tzinfo=UTC)


def _ephem() -> Any:
    try:
        import ephem
    except ImportError:
        message = "solar timetables need ephem, which is not installed: pip install 'pgbeat[solar]'"
        raise InvalidTimetable.of("solar", "not_installed", message) from None
    return ephem
