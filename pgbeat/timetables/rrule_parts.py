"""Reads and checks the parts of a recurrence rule (RFC 5545)."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

from pgbeat.errors import InvalidTimetable

RRULE_EXAMPLE = (
    'an rrule is KEY=VALUE;… as in RFC 5545, for example "FREQ=WEEKLY;BYDAY=MO,FR;BYHOUR=9"'
)

#: From the shortest to the longest, so that their indexes compare.
FREQUENCIES = ("SECONDLY", "MINUTELY", "HOURLY", "DAILY", "WEEKLY", "MONTHLY", "YEARLY")
SECONDLY, MINUTELY, HOURLY, DAILY, WEEKLY, MONTHLY, YEARLY = range(7)
WEEKDAYS = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")


@dataclass(frozen=True, slots=True)
class RuleParts:
    """The parts of a rule. Lists are sorted, and empty for parts that the rule doesn't have."""

    #: Index in `FREQUENCIES`.
    frequency: int
    interval: int = 1
    count: int | None = None
    #: Naive in the schedule's zone, or aware in UTC.
    until: datetime | None = None
    start: datetime | None = None
    #: 0 is Monday.
    week_start: int = 0
    months: tuple[int, ...] = ()
    week_numbers: tuple[int, ...] = ()
    year_days: tuple[int, ...] = ()
    month_days: tuple[int, ...] = ()
    #: Weekday (0 is Monday) and its position in the month or year; 0 for every one.
    weekdays: tuple[tuple[int, int], ...] = ()
    hours: tuple[int, ...] = ()
    minutes: tuple[int, ...] = ()
    seconds: tuple[int, ...] = ()
    positions: tuple[int, ...] = ()


@lru_cache(maxsize=4096)
def parse_rrule(text: str) -> RuleParts:
    """Returns the parts of a rule `KEY=VALUE;…`, which `DTSTART:…` may precede.

    Raises `InvalidTimetable`. The database's `pgbeat.rrule_problem` checks only the shape.
    """
    try:
        return _parsed(_pairs(text))
    except _Problem as problem:
        message = f"rrule {text!r}: {problem}; {RRULE_EXAMPLE}"
        raise InvalidTimetable.of("rrule", "malformed", message) from None


class _Problem(Exception):
    """A problem, in a sentence."""


_PAIR = re.compile(r"([A-Za-z-]+)=([A-Za-z0-9+,-]+)")


def _pairs(text: str) -> list[tuple[str, str]]:
    """Returns the keys and values, in capitals, of a text that has the shape of a rule."""
    if "tzid" in text.lower():
        raise _Problem("it names a zone (TZID); the zone is the schedule's timezone")
    pairs = []
    for line in re.findall(r"\S+", text, re.ASCII):
        line = re.sub("^RRULE:", "", line, flags=re.I | re.A)
        line = re.sub("^DTSTART:", "DTSTART=", line, flags=re.I | re.A)
        for part in line.removesuffix(";").split(";"):
            pair = _PAIR.fullmatch(part)
            if not pair:
                raise _Problem(f"part {part!r} is not KEY=VALUE")
            pairs.append((pair[1].upper(), pair[2].upper()))
    frequency = next((value for key, value in pairs if key == "FREQ"), None)
    if frequency is None:
        raise _Problem("it has no FREQ")
    if frequency not in FREQUENCIES:
        raise _Problem(f"FREQ {frequency!r} is not known; there are {', '.join(FREQUENCIES)}")
    return pairs


def _parsed(pairs: Sequence[tuple[str, str]]) -> RuleParts:
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key not in _KEYS:
            raise _Problem(f"{key} is not known; there are {', '.join(_KEYS)}")
        name, read = _KEYS[key]
        if name in values:
            raise _Problem(f"it has {key} twice")
        values[name] = read(key, value)
    rule = RuleParts(**values)
    if problem := _contradiction(rule):
        raise _Problem(problem)
    return rule


def _contradiction(rule: RuleParts) -> str | None:
    """Returns which parts exclude each other, by RFC 5545 (3.3.10) or since we don't support it."""
    frequency = FREQUENCIES[rule.frequency]
    if rule.count is not None and rule.until is not None:
        return "it has both COUNT and UNTIL; keep one"
    if rule.week_numbers and rule.frequency != YEARLY:
        return f"BYWEEKNO goes with FREQ=YEARLY, not {frequency}"
    if rule.year_days and rule.frequency in (DAILY, WEEKLY, MONTHLY):
        return f"BYYEARDAY goes with FREQ=YEARLY, not {frequency}"
    if rule.month_days and rule.frequency == WEEKLY:
        return "BYMONTHDAY goes with FREQ=MONTHLY, not WEEKLY"
    if any(number for _, number in rule.weekdays):
        if rule.frequency not in (MONTHLY, YEARLY):
            return f"BYDAY with a number goes with FREQ=MONTHLY or YEARLY, not {frequency}"
        if rule.week_numbers:
            return "BYDAY with a number does not go with BYWEEKNO"
    if rule.positions:
        if rule.frequency < DAILY:
            return f"BYSETPOS goes with FREQ=DAILY or longer, not {frequency}"
        days = (rule.months, rule.week_numbers, rule.year_days, rule.month_days, rule.weekdays)
        if not any((*days, rule.hours, rule.minutes, rule.seconds)):
            return "BYSETPOS needs another BY… to choose from"
    return None


def _number(key: str, value: str) -> int:
    if not re.fullmatch("0*[1-9][0-9]{0,8}", value):
        raise _Problem(f"{key} {value!r} is not a number of 1 to 999999999")
    return int(value)


def _moment(key: str, value: str) -> datetime:
    try:
        if re.fullmatch("[0-9]{8}", value):
            day = datetime.strptime(value, "%Y%m%d")  # noqa: DTZ007 - of the schedule's zone
            # Until a day means until its end, as in calendars.
            return day + timedelta(days=1, seconds=-1) if key == "UNTIL" else day
        if re.fullmatch("[0-9]{8}T[0-9]{6}Z?", value):
            moment = datetime.strptime(value.removesuffix("Z"), "%Y%m%dT%H%M%S")  # noqa: DTZ007
            return moment.replace(tzinfo=UTC) if value.endswith("Z") else moment
    except (ValueError, OverflowError):
        pass
    raise _Problem(
        f"{key} {value!r} is not a time, for example 20301231T090000 or 20301231T090000Z"
    )


def _weekday(key: str, value: str) -> int:
    if value not in WEEKDAYS:
        raise _Problem(f"{key} {value!r} is not a weekday; there are {', '.join(WEEKDAYS)}")
    return WEEKDAYS.index(value)


def _weekdays(key: str, value: str) -> tuple[tuple[int, int], ...]:
    weekdays = set()
    for item in value.split(","):
        match = re.fullmatch("([+-]?[0-9]{1,2})?([A-Z]{2})", item)
        number = int(match[1] or "0") if match else 0
        if not match or match[2] not in WEEKDAYS or (match[1] and not 1 <= abs(number) <= 53):
            raise _Problem(f"{key} {item!r} is not a weekday, for example MO, or 1MO or -1FR")
        weekdays.add((WEEKDAYS.index(match[2]), number))
    return tuple(sorted(weekdays))


class _Numbers:
    """Reads a list of numbers; if `from_end`, those below 0 count from the end."""

    def __init__(self, low: int, high: int, *, from_end: bool = False) -> None:
        self._low, self._high, self._from_end = low, high, from_end

    def __call__(self, key: str, value: str) -> tuple[int, ...]:
        numbers = set()
        for item in value.split(","):
            is_number = re.fullmatch("[+-]?[0-9]{1,3}", item)
            number = int(item) if is_number else 0
            size = abs(number) if self._from_end else number
            if not is_number or not self._low <= size <= self._high:
                signs = ", or as much below 0" if self._from_end else ""
                raise _Problem(
                    f"{key} {item!r} is not a number of {self._low} to {self._high}{signs}"
                )
            numbers.add(number)
        return tuple(sorted(numbers))


_KEYS: dict[str, tuple[str, Callable[[str, str], Any]]] = {
    "FREQ": ("frequency", lambda key, value: FREQUENCIES.index(value)),
    "INTERVAL": ("interval", _number),
    "COUNT": ("count", _number),
    "UNTIL": ("until", _moment),
    "DTSTART": ("start", _moment),
    "WKST": ("week_start", _weekday),
    "BYMONTH": ("months", _Numbers(1, 12)),
    "BYWEEKNO": ("week_numbers", _Numbers(1, 53, from_end=True)),
    "BYYEARDAY": ("year_days", _Numbers(1, 366, from_end=True)),
    "BYMONTHDAY": ("month_days", _Numbers(1, 31, from_end=True)),
    "BYDAY": ("weekdays", _weekdays),
    "BYHOUR": ("hours", _Numbers(0, 23)),
    "BYMINUTE": ("minutes", _Numbers(0, 59)),
    "BYSECOND": ("seconds", _Numbers(0, 59)),
    "BYSETPOS": ("positions", _Numbers(1, 366, from_end=True)),
}
