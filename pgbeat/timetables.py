"""Timetables: pure functions of time that say when a schedule is due next."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Protocol
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from croniter import croniter

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

    Day and weekday, both given, match when either does, as in cron(8). So do the clocks: where
    they go forward, what falls into the gap comes right after it; where they go back, a fixed
    time comes once, one with a `*` (or `*/15`) for its minute or hour in both hours.
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


# croniter takes a range from a number to itself for the whole cycle.
_RANGE_OF_ONE = re.compile(r"\b0*(\w+)-0*\1(/\d+)?\b", re.ASCII)


@lru_cache(maxsize=4096)
def _cron_next(expression: str, timezone: str, after: datetime) -> datetime | None:
    fields = _RANGE_OF_ONE.sub(r"\1", _plain(expression))
    is_fixed = not any(field.startswith("*") for field in fields.split()[:2])
    moment: datetime = after.astimezone(zone(timezone))
    try:
        while True:
            moment = croniter(fields, moment).get_next(datetime)
            # Where the clocks went back, a time of day may have been already.
            if not is_fixed or moment.utcoffset() == moment.replace(fold=0).utcoffset():
                return moment.astimezone(UTC)
    except (ValueError, OverflowError):
        return None  # the 30th of February, the year 10000: well formed, and never


_NAMES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_MONTH = "(0*[1-9]|0*1[0-2]|jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)"
_WEEKDAY = "(0*[0-7]|sun|mon|tue|wed|thu|fri|sat)"
#: Each field's name, what it may hold, one number of it, and what else may stand alone. The
#: database's `pgbeat.cron_problem` has the same.
_FIELDS = (
    ("minute", "0-59", "0*[0-5]?[0-9]", ""),
    ("hour", "0-23", "0*([0-9]|1[0-9]|2[0-3])", ""),
    ("day of month", "1-31", "0*([1-9]|[12][0-9]|3[01])", "|l"),
    ("month", "1-12 or jan-dec", _MONTH, ""),
    ("weekday", "0-7 or sun-sat", _WEEKDAY, f"|l0*[0-7]|{_WEEKDAY}#[1-5]"),
)


@lru_cache(maxsize=4096)
def parse_cron(expression: str) -> None:
    """Raises `InvalidTimetable`, in a sentence, unless the expression is well formed."""
    problem = _problem(expression)
    if problem:
        raise InvalidTimetable(f"cron {expression!r}: {problem}; {CRON_EXAMPLE}")


def _plain(expression: str) -> str:
    """Lower case, without space around it, names like `@daily` replaced by their five fields."""
    expression = expression.strip(" \t\n\r\f\v").lower()
    return _NAMES.get(expression, expression)


def _problem(expression: str) -> str | None:
    expression = _plain(expression)
    if expression.startswith("@"):
        return f"no such name; there are {', '.join(_NAMES)}"
    fields = re.findall(r"\S+", expression, re.ASCII)
    if len(fields) != 5:
        return f"it has {len(fields)} fields, not 5"
    for field, (label, numbers, number, extra) in zip(fields, _FIELDS, strict=True):
        item = re.compile(rf"(\*|{number}(-{number})?)(/0*[1-9][0-9]*)?{extra}")
        for text in () if field == "?" and extra else field.split(","):
            if not item.fullmatch(text):
                return (
                    f"{label} {text!r} is not valid: numbers are {numbers}, "
                    "with lists, ranges and steps"
                )
    if len({bool(re.search("[#l]", item)) for item in fields[4].split(",")}) > 1:
        return f"weekday {fields[4]!r} mixes weeks of the month (mon#1, l5) with every week"
    return None


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
    0.001: {"ms", "msec", "millisecond"},
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
        size = next((size for size, names in _UNITS.items() if {unit, singular} & names), None)
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
