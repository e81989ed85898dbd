"""What the sun does: Celery's solar events, computed by ephem."""

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from importlib import import_module
from math import radians
from typing import Any

from pgbeat.errors import InvalidTimetable

SOLAR_EXAMPLE = 'a solar timetable is "event latitude longitude", for example "sunset 59.91 10.75"'

#: Celery's events and their definitions (`celery.schedules.solar`): how high the sun stands, in
#: degrees and minutes, whether that is said of its centre or of its upper edge, and whether it
#: rises (-1), sets (1) or is highest (0).
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
# Up to here from the equator, less how far below the horizon it is about, an event comes every
# day: the polar circles are at 66.
_DAILY_LATITUDE = 65
# How long the sun may go without: at the pole there is one sunrise a year.
_SEARCHED_DAYS = 2 * 366


@dataclass(frozen=True, slots=True)
class Solar:
    """An event of the sun at a place, to the second. Where it doesn't happen on a day (polar day
    and night) it is due on the next day that has it. Needs the extra `pgbeat[solar]`."""

    event: str
    #: Degrees; north and east are positive.
    latitude: float
    longitude: float

    def __post_init__(self) -> None:
        if self.event not in EVENTS:
            raise InvalidTimetable.of(
                "solar",
                "unknown",
                f"solar event {self.event!r} is not known; there are {', '.join(EVENTS)}",
            )
        for label, value, limit in (
            ("latitude", self.latitude, 90), ("longitude", self.longitude, 180),
        ):  # fmt: skip
            if not -limit <= value <= limit:
                raise InvalidTimetable.of(
                    "solar",
                    "out_of_range",
                    f"{label} {value} is not one of -{limit} to {limit} degrees",
                )

    def next_after(self, moment: datetime) -> datetime | None:
        """The next time that it happens; `None` when it doesn't within two years."""
        day = self._day(moment)
        return next(
            (
                found
                for number in range(day - 1, day + _SEARCHED_DAYS)
                if (found := self._on(number)) and found > moment
            ),
            None,
        )

    def previous(self, moment: datetime) -> datetime | None:
        """The last time that it happened; `None` when it didn't within two years."""
        day = self._day(moment)
        return next(
            (
                found
                for number in range(day + 1, day - _SEARCHED_DAYS, -1)
                if (found := self._on(number)) and found < moment
            ),
            None,
        )

    def count(self, after: datetime, until: datetime) -> int:
        """How often it happens in (after, until]."""
        if until <= after:
            return 0
        first, last = self._day(after), self._day(until)
        edges = {first - 1, first, first + 1, last - 1, last, last + 1}
        found = (self._on(day) for day in edges)
        total = sum(1 for moment in found if moment and after < moment <= until)
        between = range(first + 2, last - 1)
        if self._is_daily():
            return total + len(between)
        return total + sum(1 for day in between if self._on(day))

    def _day(self, moment: datetime) -> int:
        """The ordinal of the day at the place, by the mean sun."""
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
    """`sunset 59.91 10.75` as a timetable. Raises `InvalidTimetable`.

    The database's `pgbeat.solar_problem` says the same.
    """
    parts = re.findall(r"\S+", text.lower(), re.ASCII)
    problem = _problem(parts)
    if problem:
        raise InvalidTimetable.of(
            "solar", "malformed", f"solar {text!r}: {problem}; {SOLAR_EXAMPLE}"
        )
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
    """When it happens on a day, to the second; `None` when it doesn't.

    Searched from the day's noon, not from the last event as Celery does: ephem's answers differ by
    a tenth of a second with where it began, and one event must not be two.
    """
    ephem = _ephem()
    height, of_centre, direction = EVENTS[event]
    observer, sun = ephem.Observer(), ephem.Sun()
    observer.lat, observer.lon = radians(latitude), radians(longitude)
    observer.horizon, observer.pressure = height, 0
    try:
        about = datetime.combine(date.fromordinal(day), _NOON) - timedelta(hours=longitude / 15)
        noon = observer.next_transit(sun, start=about - timedelta(hours=1))
        if direction < 0:
            found = observer.previous_rising(sun, start=noon, use_center=of_centre)
        elif direction > 0:
            found = observer.next_setting(sun, start=noon, use_center=of_centre)
        else:
            found = noon
        if abs(found - noon) > 0.55:  # days: near the poles it may find the day's before or after
            return None
        rounded: datetime = found.datetime() + timedelta(seconds=0.5)
    except (ValueError, OverflowError):  # ephem's CircumpolarError; the ends of the calendar
        return None
    return rounded.replace(microsecond=0, tzinfo=UTC)


_NOON = time(12)


def _ephem() -> Any:
    try:
        return import_module("ephem")
    except ImportError:
        raise InvalidTimetable.of(
            "solar",
            "not_installed",
            "solar timetables need ephem, which is not installed: pip install 'pgbeat[solar]'",
        ) from None
