"""Timetables: pure functions of time that say when a schedule is due next."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Protocol
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from croniter import croniter
from croniter.croniter import CroniterError

from pgbeat.errors import InvalidTimetable

CRON_EXAMPLE = (
    'a cron expression is "minute hour day month weekday", '
    'for example "*/15 * * * *" or "0 2 * * mon-fri"'
)


class Timetable(Protocol):
    """When a schedule is due. Instances are immutable and compare by value."""

    def next_after(self, moment: datetime) -> datetime | None:
        """The first due time strictly after `moment` (aware); `None` when there is none."""
        ...


@lru_cache(maxsize=1024)
def zone(name: str) -> ZoneInfo:
    """The IANA time zone of that name. Raises `InvalidTimetable`."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise InvalidTimetable(
            f"timezone {name!r} is not known; use an IANA name, for example 'Europe/Oslo' or 'UTC'"
        ) from None


@dataclass(frozen=True, slots=True)
class Cron:
    """Five fields (minute hour day month weekday) or `@daily` and kin, in a time zone.

    Day and weekday, both given, match when either does, as in cron(8).
    """

    expression: str
    timezone: str = "UTC"

    def next_after(self, moment: datetime) -> datetime | None:
        """The next match. The answer is cached, so that schedules that share an expression and
        are asked at the same moment pay croniter once."""
        return _cron_next(self.expression, self.timezone, moment)


@lru_cache(maxsize=4096)
def cron(expression: str, timezone: str) -> Cron:
    """The cron timetable, checked. Raises `InvalidTimetable`."""
    zone(timezone)
    parse_cron(expression)
    return Cron(expression, timezone)


@lru_cache(maxsize=4096)
def _cron_next(expression: str, timezone: str, after: datetime) -> datetime | None:
    local = after.astimezone(zone(timezone))
    try:
        moment: datetime = croniter(expression, local).get_next(datetime)
    except CroniterError:
        return None  # the 30th of February: well formed, and never
    return moment.astimezone(UTC)


@lru_cache(maxsize=4096)
def parse_cron(expression: str) -> None:
    """Raises `InvalidTimetable`, in a sentence, unless the expression is well formed."""
    count = len(expression.split())
    problem: object
    if expression.strip().startswith("@"):
        known = croniter.is_valid(expression.strip())
        problem = None if known else "no such name; there are @hourly, @daily, @weekly, @monthly, "
        problem = problem and f"{problem}@yearly; {CRON_EXAMPLE}"
    elif count != 5:
        problem = f"it has {count} fields, not 5; {CRON_EXAMPLE}"
    else:
        try:
            croniter.expand(expression)
            problem = None
        except (CroniterError, ValueError, KeyError, AttributeError) as error:
            problem = f"{error}; {CRON_EXAMPLE}"
    if problem:
        raise InvalidTimetable(f"cron {expression!r}: {problem}")


@dataclass(frozen=True, slots=True)
class Interval:
    """Every so often, counted from an anchor, so that it neither drifts nor restarts."""

    every: timedelta
    anchor: datetime

    def __post_init__(self) -> None:
        if self.every <= timedelta(0):
            raise InvalidTimetable(f"every is {self.every}; it must be longer than nothing")

    def next_after(self, moment: datetime) -> datetime | None:
        """The next whole number of intervals after the anchor."""
        if moment < self.anchor:
            return self.anchor
        passed = (moment - self.anchor) // self.every
        try:
            return self.anchor + (passed + 1) * self.every
        except OverflowError:
            return None


_PART = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*([a-z]*)")
_UNITS = {
    1: {"", "s", "sec", "second"},
    60: {"m", "min", "minute"},
    3600: {"h", "hr", "hour"},
    86_400: {"d", "day"},
    604_800: {"w", "week"},
}


def parse_duration(text: str) -> timedelta:
    """A length of time as people write it: `90` (seconds), `15 minutes`, `1h 30m`, `2 days`.

    Raises `InvalidTimetable`. Months and years are refused: they have no fixed length.
    """
    written = text.strip().lower()
    parts = _PART.findall(written)
    total = 0.0
    problem = "" if parts and not _PART.sub("", written).strip(" ,") else "it is no length of time"
    for number, unit in parts:
        singular = unit.removesuffix("s")
        size = next((size for size, names in _UNITS.items() if singular in names), None)
        if singular in {"mon", "month", "y", "yr", "year"}:
            problem = "months and years have no fixed length, use cron (for example '0 0 1 * *')"
        elif size is None or (not unit and len(parts) > 1):
            problem = problem or f"{unit or number!r} is no unit of time"
        else:
            total += float(number) * size
    try:
        if not problem:
            return timedelta(seconds=total)
    except OverflowError:
        problem = "it is too long"
    raise InvalidTimetable(
        f"{text!r}: {problem}; write seconds, or for example '15 minutes', '1h 30m' or '2 days'"
    )
