"""Durations as people write them."""

import re
from datetime import datetime, timedelta

from pgbeat.errors import InvalidTimetable

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
    """Returns a duration such as `90` (seconds), `15 minutes`, `1h 30m` or `2 days`.

    Raises `InvalidTimetable`, also for months and years, which have no fixed length.
    """
    written = text.strip().lower()
    parts = _PART.findall(written)
    total = 0.0
    problem = (
        "" if parts and not _PART.sub("", written).strip(" ,") else "it is not a length of time"
    )
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
    advice = "write seconds, or for example '15 minutes', '1h 30m' or '2 days'"
    raise InvalidTimetable.of("", "malformed", f"{text!r}: {problem}; {advice}")


_SPANS = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def relative(moment: datetime, now: datetime) -> str:
    """Returns how far away a time is: `in 2 h` or `5 min ago`."""
    return f"in {span(moment - now)}" if moment > now else f"{span(now - moment)} ago"


def span(length: timedelta, units: int = 2) -> str:
    """Returns a duration in words, in at most so many of its largest units."""
    seconds = abs(length.total_seconds())
    if seconds < 10 or (units > 2 and not seconds.is_integer()):
        return f"{round(seconds, 3 if units > 2 else 1):g} s"
    parts: list[str] = []
    rest = round(seconds)
    for size, name in _SPANS:
        count, rest = divmod(rest, size)
        if count or parts:
            parts.append(f"{count} {name}" if count else "")
    return " ".join(filter(None, parts[:units]))
